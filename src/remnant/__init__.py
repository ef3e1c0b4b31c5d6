"""Remnant: what remains of your training data in the model you release?"""
