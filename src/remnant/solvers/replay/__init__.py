"""Replay a known training run and solve for the records in it that are not known."""
