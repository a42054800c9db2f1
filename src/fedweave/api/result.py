"""The result of one method: tidy tables, graphs, the clients' models and what these predict."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.api.figures import MethodPlots
from fedweave.api.prediction import Predictor, client_names, predictor
from fedweave.errors import BadInput, choose
from fedweave.files import load_tensors
from fedweave.metrics import probabilities
from fedweave.results import Graphs, Run

if TYPE_CHECKING:
    from fedweave.api.comparison import Comparison

TIDY = ["method", "seed", "client", "round", "point", "split", "metric", "value"]


@dataclass(frozen=True, eq=False, repr=False)
class MethodResult:
    """One method of a comparison.

    Attributes:
        name: of the method.
        run: as the folder of results holds it.
        comparison: that it belongs to.
    """

    name: str
    run: Run
    comparison: "Comparison"

    def __repr__(self) -> str:
        mean, metric = self.scores.mean(), self.run.info["metric"]
        return (
            f"{self.run.label}: {metric} {mean:.4g} over {len(self.clients)} clients, {self.run.trained_rounds} rounds"
        )

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """Names of the clients."""
        return client_names(self.run.info)

    @cached_property
    def history(self) -> pd.DataFrame:
        """Every score: one row per seed, client, round, point and split."""
        table = self.run.evaluations
        names = np.array(self.clients, dtype=object)[table["client"]]
        return table.assign(method=self.name, client=names, metric=self.run.info["metric"])[TIDY]

    @property
    def rounds(self) -> pd.DataFrame:
        """One row per seed and round: bytes, seconds, training loss, dropped uploads."""
        return self.run.rounds

    @property
    def diagnostics(self) -> pd.DataFrame:
        """What the server says about itself: seed, round, name, value."""
        return self.run.diagnostics

    @property
    def settings(self) -> dict[str, Any]:
        """All that the run depends on."""
        return dict(self.run.info.get("spec") or {})

    def chosen(self, split: str = "test") -> pd.DataFrame:
        """Score of every seed and client at the round that validation chose: seed, client, round, value."""
        table = results.chosen(self.run)
        if choose(split, ("test", "val"), "split") == "val":
            scores = self.run.evaluations
            at = scores[(scores["point"] == self.run.info["point"]) & (scores["split"] == split)]
            table = table.drop(columns="value").merge(at, how="left")[[*table.columns]]
        return table.assign(client=np.array(self.clients, dtype=object)[table["client"]])

    @cached_property
    def scores(self) -> "pd.Series[float]":
        """Test score of every client, averaged over seeds."""
        return self.chosen().groupby("client", sort=False)["value"].mean().reindex(list(self.clients)).rename(self.name)

    def graphs(self, seed: int | None = None) -> Graphs:
        """Weights over rounds and layers, [R, L, N, N]; row = learner, column = source.

        Raises:
            BadInput: the method has no graph.
        """
        kept = results.graphs(self.run, seed)
        if kept is None:
            raise BadInput(
                f"graph: {self.name} keeps no collaboration graph; methods that do: {', '.join(self._others())}"
            )
        return kept

    def graph(self, seed: int | None = None, round: int | None = None) -> pd.DataFrame:
        """Who learns from whom, averaged over layers: learners (rows) by sources (columns), after the last round."""
        kept = self.graphs(seed)
        weights = kept.weights[-1 if round is None else kept.at(round)].mean(0)
        return pd.DataFrame(weights, index=list(self.clients), columns=list(self.clients))

    def models(self, seed: int | None = None) -> dict[str, Any]:
        """Every client's model at the round that validation chose: name of the client -> tensors.

        Raises:
            BadInput: no models were kept.
        """
        from fedweave.tensors import trees

        file = self.run.folder / f"models-{self.run.seeds[0] if seed is None else seed}.pt"
        if not file.is_file():
            raise BadInput(f"{file}: not there; train again with evaluate={{'models': True}}, which is the default")
        stacked = load_tensors(file)["models"]
        return {name: trees.at(stacked, i) for i, name in enumerate(self.clients)}

    def predict(self, x: Any, client: Any, *, seed: int | None = None, model: Any = None) -> np.ndarray:
        """What the own model of `client` says of new rows, which are scaled as those of training were.

        The model is that of the round that validation chose.

        Args:
            x: rows [M, ...] as they were given to the federation: of `from_pandas` a table with its columns; of graphs
                the features of all nodes of the client's graph [V, F]; of series values and hours
                [M, window + horizon, 2], where values of the horizon are ignored.
            client: name of the client.
            seed: which repetition; default: the first.
            model: what made the models, where they have no name and the results were loaded from a folder.

        Returns:
            names of classes [M], or forecasts [M, horizon] in the unit of the series.

        Raises:
            BadInput: an unknown client or seed, rows of another shape, or no models were kept.
        """
        predictor = self._predictor(model)
        outputs = predictor.outputs(x, client, seed)
        if predictor.about["kind"] == "series":
            return outputs
        return np.array(predictor.classes())[outputs.argmax(1)]

    def predict_proba(self, x: Any, client: Any, *, seed: int | None = None, model: Any = None) -> pd.DataFrame:
        """Probability of each class (columns) for new rows; arguments and errors as of `predict`."""
        predictor = self._predictor(model)
        classes, outputs = predictor.classes(), predictor.outputs(x, client, seed)
        return pd.DataFrame(probabilities(outputs), columns=classes, index=getattr(x, "index", None))

    def _predictor(self, model: Any) -> Predictor:
        if model is not None:
            return predictor(self.run, self.clients, model)
        return self._own_predictor

    @cached_property
    def _own_predictor(self) -> Predictor:
        return predictor(self.run, self.clients, self.comparison.model)

    @property
    def plot(self) -> MethodPlots:
        """Figures."""
        return MethodPlots(self)

    def save(self, folder: Path | str) -> Path:
        """Copy the whole comparison, see `Comparison.save`."""
        return self.comparison.save(folder)

    def _others(self) -> list[str]:
        found = [name for name, run in self.comparison.runs.items() if results.graphs(run) is not None]
        return found or ["pfedgraph, fedaghn and others"]
