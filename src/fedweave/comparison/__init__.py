"""Comparisons of methods on one federation, and their results as objects."""
