"""The Python interface: federations in memory, methods compared on them, results as objects."""
