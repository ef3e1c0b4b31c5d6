"""Transformers: sequences of tokens, or images, out of the gradients of their linear layers."""
