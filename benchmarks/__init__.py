"""Benchmarks: seconds per round, compared with the raw limit and the peers. `make bench` prints the table."""
