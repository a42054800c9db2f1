"""Named streams of random numbers on the host: partitions, participation, minibatch plans, resampling."""

import numpy as np


def stream(*ints: int) -> np.random.Generator:
    """A generator that depends on `ints` only, the same on every machine (Philox over numpy's SeedSequence)."""
    return np.random.Generator(np.random.Philox(np.random.SeedSequence([int(i) for i in ints])))
