"""Dense layers: records behind one gradient, or between two checkpoints."""
