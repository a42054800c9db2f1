"""The result of one method: tidy tables, graphs, the clients' models and their predictions."""

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.comparison import further_rounds
from fedweave.comparison.figures import MethodPlots
from fedweave.comparison.origin import Origin
from fedweave.comparison.refit import refit
from fedweave.errors import BadInput, choose, format_count
from fedweave.metrics import probabilities
from fedweave.own_data.argument_checks import as_python, check_flag, check_folder
from fedweave.own_data.newcomers import add_newcomers
from fedweave.prediction.predictor import Predictor, load_predictor
from fedweave.results import Graphs, Run
from fedweave.runs.serving import read_stored

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
    comparison: Origin

    def __repr__(self) -> str:
        scores = self._scores_by_seed.dropna(axis="columns", how="all")  # clients without test rows have no score
        mean, metric = scores.to_numpy().mean(), self.run.info["metric"]
        rounds = format_count(self.run.trained_rounds, "round")
        return f"{self.run.label}: {metric} {mean:.4g} over {count_evaluated(self.run)}, {rounds}"

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """Names of the clients."""
        return tuple(self.run.client_names)

    @cached_property
    def evaluated_clients(self) -> tuple[str, ...]:
        """Names of the clients that were evaluated: all of them, or those of `evaluate={"clients": K}`."""
        return tuple(self.clients[i] for i in self.run.evaluated_clients)

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
        """Diagnostics of the server: seed, round, name, value."""
        return self.run.diagnostics

    @property
    def settings(self) -> dict[str, Any]:
        """All that the run depends on."""
        return dict(self.run.info.get("spec") or {})

    def select_scores(self, split: str = "test") -> pd.DataFrame:
        """Score of every seed and client at the round that validation chose: seed, client, round, value."""
        table = results.select_scores(self.run)
        if choose(split, ("test", "val"), "split") == "val":
            scores = self.run.reported_point
            table = table.drop(columns="value").merge(scores[scores["split"] == split], how="left")[[*table.columns]]
        return table.assign(client=np.array(self.clients, dtype=object)[table["client"]])

    @cached_property
    def scores(self) -> "pd.Series[float]":
        """Test score of every evaluated client, averaged over seeds; NaN where a seed has no finite score.

        With several splits: of every client of every split, as client 3 of one is not client 3 of another.
        """
        if not self.run.has_splits:
            return self._scores_by_seed.mean(skipna=False).rename(self.name)
        splits = pd.Index(map(self.run.split_of.__getitem__, self._scores_by_seed.index), name="split")
        return self._scores_by_seed.set_axis(splits).stack(future_stack=True).rename(self.name)

    @cached_property
    def _scores_by_seed(self) -> pd.DataFrame:
        """Test score of every seed (rows) and evaluated client (columns)."""
        table = self.select_scores().pivot(index="seed", columns="client", values="value")
        return table.reindex(columns=list(self.evaluated_clients))

    def graphs(self, seed: int | None = None) -> Graphs:
        """Weights over rounds and layers, [R, L, N, N]; row = learner, column = source.

        Raises:
            BadInput: an unknown seed, or the method has no graph.
        """
        self.check_seed(seed)
        graphs = results.graphs(self.run, seed)
        if graphs is None:
            names = [name for name, run in self.comparison.runs.items() if results.graphs(run) is not None]
            others = ", ".join(names) or "pfedgraph, fedaghn and others"
            raise BadInput(f"graph: {self.name} has no collaboration graph; methods that do: {others}")
        return graphs

    def graph(self, seed: int | None = None, round: int | None = None) -> pd.DataFrame:
        """Who learns from whom, averaged over layers: learners (rows) by sources (columns).

        Args:
            seed: of the repetition; default: the first.
            round: the last stored graph up to this round; default: that after the last round, which may be later than
                the round that the scores are of (`chosen`).

        Raises:
            BadInput: an unknown seed, the method has no graph, or none is stored up to this round.
        """
        graphs = self.graphs(seed)
        first, last = graphs.rounds[0], graphs.rounds[-1]
        if round is not None and not (isinstance(round, int | np.integer) and first <= round <= last):
            raise BadInput(f"round: {round!r} is not in {first} to {last}, where graphs are stored")
        weights = graphs.weights[-1 if round is None else graphs.index_at(round)].mean(0)
        return pd.DataFrame(weights, index=list(self.clients), columns=list(self.clients))

    def models(self, seed: int | None = None) -> dict[str, Any]:
        """Every evaluated client's model at the round that validation chose: name of the client -> tensors.

        Raises:
            BadInput: an unknown seed, or no models were stored, or they are damaged.
        """
        from fedweave.tensors import trees

        self.check_seed(seed)
        file = self.run.folder / f"models-{self.run.seeds[0] if seed is None else seed}.pt"
        if not file.is_file():
            raise BadInput(f"{file}: not found; train again with evaluate={{'models': True}}, which is the default")
        stacked = read_stored(file)["models"]
        return {name: trees.at(stacked, i) for i, name in enumerate(self.evaluated_clients)}

    def refit(self, *, seed: int | None = None) -> str:
        """Train again on training and validation rows, for the rounds and with the values that validation chose.

        `predict` and `export` use these models by default. They are stored with the results, so that later calls, also
        after `fedweave.load`, train nothing. All scores stay those of the models of the training rows alone.

        Args:
            seed: which repetition; default: the first.

        Returns:
            a line that says what the models were trained on; where it is not both kinds of rows, why not.

        Raises:
            BadInput: an unknown seed, or the folder of the results cannot be written.
        """
        return self._refit(seed)[1]

    def _refit(self, seed: int | None) -> tuple[Run, str]:
        """(the run whose models predict, what they were trained on)."""
        self.check_seed(seed)
        seed = self.run.seeds[0] if seed is None else int(seed)
        key, refitted = (self.run.name, seed), self.comparison.refitted
        if key not in refitted:
            has_models = (self.run.folder / f"models-{seed}.pt").is_file()
            if not (has_models and self.comparison.refits):
                return self.run, "trained on training rows"
            run, text = refit(self.run, seed, self.comparison.federation, self.comparison.model)
            line = f"refitted on {text}" if run else f"trained on training rows, not refitted: {text}"
            refitted[key] = run or self.run, line
        return refitted[key]

    def deployed_run(self) -> Run:
        """The run whose models `predict` uses: the one that was trained again, where there is one."""
        return self._refit(None)[0]

    def predict(
        self, x: Any, client: Any, *, seed: int | None = None, model: Any = None, refit: bool = True
    ) -> np.ndarray:
        """Predictions of the own model of `client` for new rows, which are scaled like those of training.

        The model is trained for the rounds that validation chose, in a comparison also on validation rows (`refit`).

        Args:
            x: rows [M, ...] as they were given to the federation. Of `from_pandas`: a table with its columns, of which
                forecasts read the last rows. Of `from_images`: paths of files too. Of graphs: the features [V, F], or a
                table, of all nodes of the client's graph. Of series: values and hours [M, window + horizon, 2], where
                values of the horizon are ignored.
            client: name of the client.
            seed: which repetition; default: the first.
            model: as it was given to `fit`, where it has no name and the results were loaded from a folder.
            refit: False for the model of the scores, which was trained on training rows alone.

        Returns:
            labels [M] of the type that training had, numbers [M], or forecasts [M, horizon]: numbers in the unit of the
            targets.

        Raises:
            BadInput: an unknown client or seed, rows of another shape or, by the clients' column, of another client, or
                no models were stored.
        """
        predictor = self._load_predictor(model, seed, refit)[0]
        outputs = predictor.outputs(x, client, seed)
        if not predictor.about["classes"]:
            return outputs[:, 0] if predictor.about.get("targets") == "numbers" else outputs
        return np.array(predictor.classes())[outputs.argmax(1)]

    def predict_proba(
        self, x: Any, client: Any, *, seed: int | None = None, model: Any = None, refit: bool = True
    ) -> pd.DataFrame:
        """Probability of each class (columns) for new rows; arguments and errors as of `predict`."""
        predictor = self._load_predictor(model, seed, refit)[0]
        classes, outputs = predictor.classes(), predictor.outputs(x, client, seed)
        index = x.index if isinstance(x, pd.DataFrame | pd.Series) else None  # a list has a method of this name
        return pd.DataFrame(probabilities(outputs), columns=classes, index=index)

    def export(
        self,
        folder: Path | str,
        client: Any,
        *,
        seed: int | None = None,
        model: Any = None,
        refit: bool = True,
        merge: bool = True,
    ) -> Path:
        """Write the model of a client, as `predict` uses it, to a folder that needs no fedweave.

        It holds the weights (safetensors), the program (`torch.export`, where PyTorch can make one), how raw rows
        become inputs, and the files that `mlflow models serve` reads. Its README has the lines that load it.

        Args:
            folder: new, empty, or with an earlier export of the same method, data and client.
            client: name of the client.
            seed, model, refit: as in `predict`.
            merge: of a model with an adapter, write all weights, with low-rank adapters added. False: the file of
                weights has what was trained alone, and the program has the frozen body.

        Raises:
            BadInput: an unknown client or seed, a folder with other content, or a model that cannot be exported.
        """
        from fedweave.prediction.export import export

        check_folder(folder, "folder")
        check_flag(merge, "merge")
        predictor, run, trained = self._load_predictor(model, seed, refit)
        return export(run, self.name, Path(folder), predictor, client, seed, trained, merge)

    def join(
        self,
        rows: Any,
        *,
        client: Any = None,
        label: Any = None,
        edges: Any = None,
        node: str = "node",
        rounds: int = 10,
        freeze: bool = False,
        federation: Any = None,
        out: Path | str | None = None,
        **options: Any,
    ) -> "MethodResult":
        """Let clients join after training, in the method's own way, and continue for some rounds.

        What was fitted on training rows (the scaling, the values of categories) stays as it is. The round of each
        client is chosen by validation from those after the newcomers joined. The newcomers are scored on their own
        test rows.

        Args:
            rows: of the newcomers, as `Federation.from_pandas`, `from_arrays` or `from_graphs` takes them.
            client, label: names of columns, or one value for each row; graphs without a table need none.
            edges, node: as in `Federation.from_graphs`, of a table of nodes.
            rounds: after they joined.
            freeze: the server does not learn any more: newcomers fine-tune what it sends, and the others do not change.
            federation: that of the training, where the results were loaded from a folder.
            out: folder for the results; default: one that goes with the returned object.
            options: of the newcomers' split: split, shares, time, gap, recording, val and seed; group and unit where
                the clients of training have them. The rule of the split is that of training, unless `split` names one.

        Returns:
            the result of all clients, with the newcomers behind the others: `scores`, `predict`, `export`.

        Raises:
            BadInput: rows that do not fit those of training, a class that it did not have, or no stored state.
        """
        federation = self.comparison.federation if federation is None else federation
        if federation is None:
            raise BadInput("join: the rows of training are not in memory; give federation= the one that was trained on")
        origin: Any = self.comparison
        further_rounds.check_join(self.run, federation, rounds := as_python(rounds), freeze := as_python(freeze))
        extended = add_newcomers(federation, rows, client, label, options, edges, node)
        further_rounds.check_groups(self.run, federation, extended)
        for line in extended.notes:
            warnings.warn(line, stacklevel=2)
        newcomers = len(extended) - len(federation)
        study, temporary = further_rounds.go_on(self.run, extended, newcomers, rounds, out, origin.model, freeze=freeze)
        joined = replace(origin, study=study, lost=(), temporary=temporary, federation=extended)
        result: MethodResult = joined[joined.methods[0]]
        return result

    def check_seed(self, seed: Any) -> None:
        if seed is not None and seed not in self.run.seeds:
            raise BadInput(f"seed: {seed!r} was not trained; choices: {', '.join(map(str, self.run.seeds))}")

    def _load_predictor(self, model: Any, seed: int | None, refit: bool) -> tuple[Predictor, Run, str]:
        """(the models that predict, their run, what they were trained on)."""
        check_flag(refit, "refit")
        known = len(self.comparison.refitted)
        run, trained = self._refit(seed) if refit else (self.run, "trained on training rows")
        if "not refitted" in trained and len(self.comparison.refitted) > known:  # once, not at every call
            warnings.warn(f"{self.name}: {trained}", stacklevel=3)
        if model is not None:
            return load_predictor(run, model), run, trained
        if run.folder not in self._predictors:
            self._predictors[run.folder] = load_predictor(run, self.comparison.model)
        return self._predictors[run.folder], run, trained

    @cached_property
    def _predictors(self) -> dict[Path, Predictor]:
        return {}

    @property
    def plot(self) -> MethodPlots:
        """Figures."""
        return MethodPlots(self.name, self.clients, self.graphs)

    def save(self, folder: Path | str) -> Path:
        """Copy the whole comparison, see `Comparison.save`."""
        return self.comparison.save(folder)


def count_evaluated(run: Run) -> str:
    """How many clients were evaluated, and of how many if that is a sample."""
    clients, evaluated = format_count(len(run.client_names), "client"), len(run.evaluated_clients)
    return clients if evaluated == len(run.client_names) else f"{evaluated} of {clients}"
