"""Start of stages: a launcher that imports the standard library only, and the fork server that it calls."""
