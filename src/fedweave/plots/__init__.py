"""Figures as small SVG that follows the page's theme; matplotlib is imported when one is drawn."""

from fedweave.plots.choices import ablation, factors_of, importance, tuning
from fedweave.plots.graph import graph, group_order
from fedweave.plots.over_time import clients_over_deliveries, over_deliveries
from fedweave.plots.scores import client_gains, client_spread, cliques_of, convergence, cost, critical_difference, sweep
from fedweave.plots.structure import client_map, collaboration, evolution, labels, spaced_indices
from fedweave.plots.style import DARK, LIGHT, SeriesStyle, assign_styles, draw_in_parallel, save, space_labels

__all__ = [
    "DARK",
    "LIGHT",
    "SeriesStyle",
    "ablation",
    "assign_styles",
    "client_gains",
    "client_map",
    "client_spread",
    "clients_over_deliveries",
    "cliques_of",
    "collaboration",
    "convergence",
    "cost",
    "critical_difference",
    "draw_in_parallel",
    "evolution",
    "factors_of",
    "graph",
    "group_order",
    "importance",
    "labels",
    "over_deliveries",
    "save",
    "space_labels",
    "spaced_indices",
    "sweep",
    "tuning",
]
