"""Hyper-parameter searches with Optuna, and their dashboard."""
