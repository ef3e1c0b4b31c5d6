"""Targets of known truth for `benchmarks/truth.py`, by plain PyTorch and scikit-learn.

Nothing here imports remnant: a fault of its training or of its files would otherwise be on both
sides of the comparison.
"""
