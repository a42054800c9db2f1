"""Files: written whole or not at all; arrays, weights, and facts that are stored between programs."""
