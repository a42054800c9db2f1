"""Flower as the transport: apps, messages, keys and processes. It needs the extra `fedweave[flower]`."""
