"""The host of one client."""
