"""Figures that a notebook displays and that can be saved."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedweave import plots, results
from fedweave.comparison.leaderboard import rename_methods
from fedweave.comparison.origin import Origin
from fedweave.errors import BadInput
from fedweave.own_data.argument_checks import check_path
from fedweave.results import Graphs

THEME = "color:#1b1d22;--muted:#5c616b;--grid:#dcdfe4;--surface:#ffffff;background:#ffffff;padding:8px"


@dataclass(frozen=True, repr=False)
class Figure:
    """A drawing.

    Attributes:
        title: what it shows.
        svg: the drawing as an element of a page.
    """

    title: str
    svg: str

    def save(self, path: Path | str) -> Path:
        """Write an SVG file and return its path.

        Raises:
            BadInput: the path does not end in .svg, or cannot be written.
        """
        check_path(path, "path")
        if Path(path).suffix != ".svg":
            raise BadInput(f"save: {str(path)!r} must end in .svg")
        plots.save(path, self.svg)
        return Path(path)

    def __repr__(self) -> str:
        return f"Figure {self.title!r}; save it with .save('figure.svg')"

    def _repr_html_(self) -> str:
        colors = "".join(f"--s{i}:{color};" for i, color in enumerate(plots.LIGHT))
        return f'<div style="{THEME};{colors}">{self.svg}</div>'


class ComparisonPlots:
    """Figures of a comparison."""

    def __init__(self, comparison: Origin) -> None:
        self._comparison = comparison

    def curves(self, split: str = "test") -> Figure:
        """Mean over clients by round, every method at the point that it reports."""
        if split not in ("val", "test"):
            raise BadInput(f"split: {split!r} is unknown; choices: test, val")
        comparison = self._comparison
        part = results.reported_curves(results.curves(comparison.study), comparison.study.runs, split)
        return Figure(
            f"{split} score by round",
            plots.convergence(rename_methods(part, comparison.runs), self._styles(), comparison.metric),
        )

    def clients(self) -> Figure:
        """The score of every client, one row per method."""
        comparison = self._comparison
        values = {name: comparison[name].scores.to_numpy() for name in comparison.scores()}
        return Figure("score of every client", plots.client_spread(values, self._styles(), comparison.metric))

    def cost(self) -> Figure:
        """Score against traffic and time."""
        comparison = self._comparison
        return Figure(
            "score against cost",
            plots.cost(rename_methods(comparison.board, comparison.runs), self._styles(), comparison.metric),
        )

    def _styles(self) -> dict[str, plots.SeriesStyle]:
        return plots.assign_styles(list(self._comparison.methods))


@dataclass(frozen=True, repr=False)
class MethodPlots:
    """Figures of one method.

    Attributes:
        name, clients: of the method, and of its clients.
        graphs: seed -> who learns from whom; see `MethodResult.graphs`.
    """

    name: str
    clients: Sequence[str]
    graphs: Callable[[int | None], Graphs]

    def graph(self, seed: int | None = None) -> Figure:
        """Who learns from whom, over rounds and layers; row = learner, column = source."""
        graphs = self.graphs(seed)
        drawing = plots.collaboration(graphs.weights, graphs.rounds, graphs.layers)
        return Figure(f"who learns from whom: {self.name}", drawing)

    def evolution(self, seed: int | None = None) -> Figure:
        """The weights between clients by round."""
        graphs = self.graphs(seed)
        drawing = plots.evolution(graphs.weights, graphs.rounds, graphs.layers, graphs.group, self.clients)
        return Figure(f"weights by round: {self.name}", drawing)
