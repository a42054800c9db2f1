"""Predictions of trained models on raw rows, and models in folders of their own."""
