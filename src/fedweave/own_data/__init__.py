"""Rows, files and graphs of users, read into federations."""
