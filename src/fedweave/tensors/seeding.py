"""A temporary seed of PyTorch's global generators, from which modules draw their initial parameters."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def use_seed(seed: int) -> Iterator[None]:
    """Draws inside this block are a function of `seed`; afterwards the CPU's generator has its earlier state.

    Without an accelerator only the CPU's generator is seeded: `torch.manual_seed` would store the seed and the
    whole call stack for each type of device that does not exist, which takes several milliseconds.
    """
    with torch.random.fork_rng(devices=[]):
        seed_all = torch.manual_seed if torch.accelerator.is_available() else torch.default_generator.manual_seed
        seed_all(seed)
        yield
