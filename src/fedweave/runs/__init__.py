"""One run from its specification to files on disk."""
