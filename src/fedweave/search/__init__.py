"""Hyper-parameter searches with Optuna, which is an optional extra."""
