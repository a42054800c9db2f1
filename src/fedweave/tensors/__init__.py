"""Trees of tensors, closures over them, compiled steps, and randomness as data."""
