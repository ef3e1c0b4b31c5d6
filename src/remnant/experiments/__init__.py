"""Runnable studies: one file each."""
