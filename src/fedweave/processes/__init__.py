"""Processes that this program starts: signals, forks, and several at once."""
