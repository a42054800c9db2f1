"""Graphs between clients: weights, their quality, controls that replace them, and the setting that names one."""
