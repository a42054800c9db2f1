"""A study as data: params.yaml, its checks, search spaces, variants and the catalogue."""
