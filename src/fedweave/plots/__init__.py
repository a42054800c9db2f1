"""Figures as small SVG that follows the page's theme; matplotlib is imported when one is drawn."""

from fedweave.plots.scores import client_spread, cliques_of, convergence, cost, critical_difference, sweep
from fedweave.plots.structure import ablation, atlas, collaboration, evolution, labels, some, tuning
from fedweave.plots.style import DARK, LIGHT, Look, looks, save, spread

__all__ = [
    "DARK",
    "LIGHT",
    "Look",
    "ablation",
    "atlas",
    "client_spread",
    "cliques_of",
    "collaboration",
    "convergence",
    "cost",
    "critical_difference",
    "evolution",
    "labels",
    "looks",
    "save",
    "some",
    "spread",
    "sweep",
    "tuning",
]
