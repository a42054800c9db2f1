"""The host of the server."""
