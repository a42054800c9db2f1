"""Scores of methods that do not differ, with known variances over clients, cells and seeds."""

import numpy as np


def draw_scores(
    rng: np.random.Generator,
    methods: int,
    seeds: int,
    clients: int,
    ratio: float,
    effects: str = "normal",
    spread: float = 1.0,
) -> np.ndarray:
    """Scores [M, S, N]: effects of standard deviation 1 of a method's client and cell, and of its seed.

    Args:
        ratio: standard deviation over seeds, divided by that over clients and cells together.
        effects: their distribution: "normal", "skewed" (exponential) or "heavy tails" (t with 4 degrees of freedom).
        spread: standard deviation of every second method, beside that of the others.
    """
    draw = {
        "normal": rng.standard_normal,
        "skewed": lambda size: rng.standard_exponential(size) - 1,
        "heavy tails": lambda size: rng.standard_t(4, size) / 2**0.5,
    }[effects]
    scale = np.where(np.arange(methods) % 2, spread, 1.0)[:, None, None]
    own = draw((methods, 1, clients)) + draw((methods, seeds, clients)) + ratio * 2**0.5 * draw((methods, seeds, 1))
    return 50 + draw((1, seeds, 1)) + 2 * draw((1, 1, clients)) + scale * own
