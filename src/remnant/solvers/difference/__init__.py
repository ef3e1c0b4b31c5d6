"""Two checkpoints: the records whose training moved one set of weights to the other."""
