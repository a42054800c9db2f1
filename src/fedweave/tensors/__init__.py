"""Trees of tensors, closures over them, recorded steps, and randomness as data."""
