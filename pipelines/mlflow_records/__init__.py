"""The record of a study in MLflow."""
