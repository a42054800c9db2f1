"""Benchmarks: seconds a round beside the raw limit and the peers; `make bench` prints the table."""
