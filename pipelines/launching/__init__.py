"""Start of stages: a launcher without imports, and the fork server that it asks."""
