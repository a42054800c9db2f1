"""Margins of drawings: no text is cut, whatever its length; panels of a figure have one size."""

import io
from collections.abc import Callable
from inspect import unwrap
from typing import Any, cast

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.text import Text

from fedweave import plots
from fedweave.plots import style

LONG = ["a method with a long name", "B", "10,000 µg/m³"]
LOOKS = plots.looks(LONG)
GRAPHS = np.random.default_rng(0).random((4, 3, 12, 12))
GROUP = np.arange(12) % 2
CURVES = pd.DataFrame(
    [(name, round, 1e-7 * round, 1e-8) for name in LONG for round in range(0, 2001, 100)],
    columns=["method", "round", "mean", "std"],
)
BOARD = pd.DataFrame({"method": LONG, "bytes_up": [0, 1e6, 1e9], "bytes_down": 1e6, "seconds": [1.0, 50, 2e4],
                      "mean": [1.0, 2.0, 1e5], "std": 0.5})  # fmt: skip
TRIALS = pd.DataFrame({"lr": [1e-4, 0.1, 3.0], "kind": LONG, "mu": [1, 2, 3], "value": [1, 2, np.nan], "reached": 1.0})
TABLE = pd.DataFrame({"variant": LONG, "metric": "mse", "settings": '{"a": 1}', "declared": [1, 0, 0], "mean": 1e-9,
                      "std": 1e-10})  # fmt: skip

DRAWINGS: dict[str, Callable[[], Figure]] = {
    "convergence": lambda: unwrap(plots.convergence)(CURVES, LOOKS, "mse"),
    "narrow": lambda: unwrap(plots.convergence)(CURVES, LOOKS, "mse", narrow=True),
    "spread": lambda: unwrap(plots.client_spread)(dict.fromkeys(LONG, np.arange(9.0)), LOOKS, "mse"),
    "cost": lambda: unwrap(plots.cost)(BOARD, LOOKS, "mse"),
    "tuning": lambda: unwrap(plots.tuning)(TRIALS, ["lr", "kind", "mu"], {"lr": 0.1, "kind": "B", "mu": 2}),
    "importance": lambda: unwrap(plots.importance)({"server.attention.heads": 0.9, "lr": 0.1}),
    "ablation": lambda: unwrap(plots.ablation)(TABLE),
    "graph": lambda: unwrap(plots.graph)(GRAPHS[0, 0], [f"client {i} of twelve" for i in range(12)], GROUP, LONG),
    "collaboration": lambda: unwrap(plots.collaboration)(GRAPHS, [1, 2, 3, 400], ["conv1", "conv2", "head"]),
    "evolution": lambda: unwrap(plots.evolution)(GRAPHS, [1, 2, 3, 400], ["conv1", "conv2", "head"], GROUP),
    "labels": lambda: unwrap(plots.labels)(np.ones((12, 3)), LONG, [f"client {i} of twelve" for i in range(12)]),
    "atlas": lambda: unwrap(plots.atlas)(GRAPHS[0, 0, :, :2], np.empty((2, 0), int), GROUP, LONG * 4, LONG[:2]),
}


def drawn(name: str) -> Figure:
    with mpl.rc_context(cast(Any, style.RC)):
        figure = DRAWINGS[name]()
        FigureCanvasSVG(figure).print_svg(io.StringIO())
    return figure


@pytest.mark.parametrize("name", DRAWINGS)
def test_no_text_is_cut(name: str) -> None:
    figure = drawn(name)
    width, height = figure.bbox.size
    texts = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    boxes = [(text.get_text(), text.get_window_extent()) for axes in figure.axes for text in texts if text.axes is axes]
    assert len(boxes) > 3
    assert [text for text, box in boxes if min(box.p0) < -1 or box.x1 > width + 1 or box.y1 > height + 1] == []


@pytest.mark.parametrize("name", ["cost", "tuning", "evolution", "collaboration"])
def test_panels_have_one_size(name: str) -> None:
    sizes = np.array([axes.get_position(original=True).size for axes in drawn(name).axes])
    assert np.allclose(sizes, sizes[0])
    assert sizes.min() > 0.1
