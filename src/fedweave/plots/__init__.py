"""Figures as small SVG that follows the page's theme; matplotlib is imported when one is drawn."""

from fedweave.plots.choices import ablation, factors_of, importance, is_number, tuning
from fedweave.plots.graph import graph, group_order
from fedweave.plots.over_time import clients_over_deliveries, over_deliveries
from fedweave.plots.scores import client_gains, client_spread, cliques_of, convergence, cost, critical_difference, sweep
from fedweave.plots.structure import client_map, collaboration, evolution, labels, spaced_indices
from fedweave.plots.style import DARK, LIGHT, SeriesStyle, assign_styles, draw_in_parallel, save, space_labels
