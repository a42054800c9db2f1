"""Hostile clients, differential privacy, and robust aggregation."""
