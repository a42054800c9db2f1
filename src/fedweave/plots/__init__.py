"""Figures as small SVG that follows the page's theme; matplotlib is imported when one is drawn."""

from fedweave.plots.choices import ablation, factors_of, importance, tuning
from fedweave.plots.graph import by_group, graph
from fedweave.plots.scores import client_spread, cliques_of, convergence, cost, critical_difference, sweep
from fedweave.plots.structure import atlas, collaboration, evolution, labels, some
from fedweave.plots.style import DARK, LIGHT, Look, looks, save, spread, together

__all__ = [
    "DARK",
    "LIGHT",
    "Look",
    "ablation",
    "atlas",
    "by_group",
    "client_spread",
    "cliques_of",
    "collaboration",
    "convergence",
    "cost",
    "critical_difference",
    "evolution",
    "factors_of",
    "graph",
    "importance",
    "labels",
    "looks",
    "save",
    "some",
    "spread",
    "sweep",
    "together",
    "tuning",
]
