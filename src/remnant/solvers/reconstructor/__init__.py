"""Maps from what is seen of a released model to the record, learned from shadow models."""
