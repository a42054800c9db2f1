"""Prefect flows, workers, and stages on other hosts."""
