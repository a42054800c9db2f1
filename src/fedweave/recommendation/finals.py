"""The end of a recommendation: one comparison of finalists and controls on test rows, and a learning curve."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.comparison.compare import perform
from fedweave.comparison.earlier_runs import check_earlier_runs, read_earlier_runs
from fedweave.comparison.margins import store_margin
from fedweave.comparison.plan import Plan
from fedweave.comparison.progress import Callback
from fedweave.engine.start import begin
from fedweave.metrics import Margin, clip
from fedweave.models.base import STATISTICS
from fedweave.own_data.federation import Federation
from fedweave.recommendation.candidates import Candidate, build_plan, graph_controls
from fedweave.recommendation.subsets import subsample_training
from fedweave.results import Run, Study
from fedweave.results.repetitions import interval
from fedweave.runs import repetition, serving
from fedweave.tensors import trees

EVALUATIONS = 25  # of a final run
SHARES = (0.25, 0.5)  # of the training rows, for the learning curve
FLOAT = 4  # bytes


@dataclass(frozen=True, eq=False)
class FinalComparison:
    """The last comparison.

    Attributes:
        plan: what was trained.
        study: the runs, among them those of finalists with a changed graph.
    """

    plan: Plan
    study: Study

    @property
    def runs(self) -> dict[str, Run]:
        """Name of a candidate -> its run."""
        return {run.name.removeprefix(f"{run.task}-"): run for run in self.study.runs}


def check_folder(
    federation: Federation, entries: Sequence[Candidate], options: Mapping[str, Any], folder: Path
) -> None:
    """Refuse a folder with runs that the last comparison would not replace and that were made on other terms.

    Args:
        entries: the methods of the race, each of which may become a finalist.
        options: as of `compare_finalists`.

    Raises:
        BadInput: naming a run, what it was made with, and what the last comparison has.
    """
    candidates = [*entries, *(control for entry in entries for control in graph_controls(entry))]
    check_earlier_runs(_build_plan(federation, candidates, options), folder)


def compare_finalists(
    federation: Federation,
    candidates: Sequence[Candidate],
    options: Mapping[str, Any],
    folder: Path,
    progress: bool,
    callbacks: Sequence[Callback],
    margin: Margin | None = None,
) -> FinalComparison:
    """Train the finalists and the controls with seeds that the race did not use, and evaluate them on test rows.

    Finalists of an earlier call, which had a smaller budget, are removed.

    Args:
        margin: of practical equivalence, which is stored with the runs; None for that of the folder, or the default.

    Raises:
        Diverged: all of them diverged.
    """
    plan = _build_plan(federation, candidates, options)
    perform(plan, folder, True, progress, callbacks, margin=margin)
    for key, info in read_earlier_runs(plan, folder).items():
        if info.get("study") == plan.study.name:
            shutil.rmtree(folder / "runs" / key)
    study = results.load_study(folder, plan.study.runs)
    return FinalComparison(plan, study if margin is None else store_margin(study, margin))


def _build_plan(federation: Federation, candidates: Sequence[Candidate], options: Mapping[str, Any]) -> Plan:
    return build_plan(federation, candidates, {**options, "evaluate": _evaluation(options)}, central=True)


def _evaluation(options: Mapping[str, Any]) -> dict[str, Any]:
    every = max(1, options["train"]["rounds"] // EVALUATIONS)
    return {**options.get("evaluate", {}), "every": every}


def memory(comparison: FinalComparison) -> dict[str, tuple[float, float]]:
    """Name -> (MiB of the server's state, MiB that one client holds: its own state and the model that it trains).

    States are those before the first round; later ones have the same size.
    """
    sizes: dict[str, tuple[float, float]] = {}
    for name, run in comparison.runs.items():
        prepared = repetition.prepare(comparison.plan.study.run(run.name), *comparison.plan.inputs)
        first_method = prepared.method.stages(prepared.run.train.rounds)[0].method
        state = begin(first_method, prepared.federation, 0, prepared.executor)
        model = FLOAT * float(run.info["parameters"])
        client_state = trees.nbytes(state.clients) / prepared.federation.clients
        sizes[name] = trees.nbytes(state.server) / results.MIB, (model + client_state) / results.MIB
    return sizes


def learning_curve(
    federation: Federation,
    candidate: Candidate,
    options: Mapping[str, Any],
    folder: Path,
    full_run: Run,
    progress: bool,
) -> pd.DataFrame:
    """Validation score by share of training rows: columns share, mean, low, high, and the gain by all rows.

    Args:
        federation: without its test rows.
        full_run: the final run, with all rows.
    """
    evaluation = {**_evaluation(options), "models": False, "predictions": False}
    scores = {1.0: results.validation_scores(full_run)}
    for share in SHARES:
        plan = build_plan(subsample_training(federation, share), [candidate], {**options, "evaluate": evaluation})
        share_folder = folder / f"{round(100 * share)}-percent"
        perform(plan, share_folder, True, progress, figures=False)
        scores[share] = results.validation_scores(results.load_study(share_folder, plan.study.runs).runs[0])
    return _curve(scores, results.part_numbers([full_run]), full_run.info["metric"])


def _curve(scores: Mapping[float, pd.DataFrame], part_numbers: Sequence[int] | None, metric: str) -> pd.DataFrame:
    """The rows of `learning_curve` from share -> validation scores (seeds by clients)."""
    measured = scores[1.0].columns[scores[1.0].notna().any()]
    names = {str(share): share for share in sorted(scores)}
    columns = results.average_parts({name: scores[share][measured] for name, share in names.items()}, part_numbers)
    rows = []
    for name, share in names.items():
        low, high = clip(metric, interval(columns[name]))
        row = {"share": share, "mean": float(scores[share][measured].to_numpy().mean()), "low": low, "high": high}
        if share < 1:
            gain = columns[str(1.0)] - columns[name]
            gain_low, gain_high = interval(gain)
            row |= {"gain": float(gain.mean()), "gain_low": gain_low, "gain_high": gain_high}
        rows.append(row)
    return pd.DataFrame(rows, columns=["share", "mean", "low", "high", "gain", "gain_low", "gain_high"])


def slope(run: Run) -> tuple[float, float, float]:
    """Change of the validation score per ten rounds over the last third of the rounds, with its 95 % interval.

    A line is fitted for every seed and client; the interval is over both. NaN for fewer than three evaluations there.
    """
    scores = run.reported_point
    validation = scores[scores["split"] == "val"]
    last_third = validation[validation["round"] > validation["round"].max() * 2 / 3]
    rounds = np.sort(last_third["round"].unique()).astype(float)
    if len(rounds) < 3:
        return (float("nan"),) * 3
    table = last_third.pivot(index=["seed", "client"], columns="round", values="value").dropna()
    centred = rounds - rounds.mean()
    slopes = 10.0 * (table.to_numpy() @ centred) / (centred**2).sum()
    by_client = pd.Series(slopes, index=table.index).unstack("client").dropna(axis="columns")
    columns = results.average_parts({run.name: by_client}, results.part_numbers([run]))[run.name]
    return float(by_client.to_numpy().mean()), *interval(columns)


def has_one_model(run: Run) -> bool:
    """Whether all clients have the same model in every seed, apart from their BatchNorm statistics."""
    files = [run.folder / f"models-{seed}.pt" for seed in run.seeds]
    if not all(file.is_file() for file in files):
        return False
    return all(_are_identical(serving.read_stored(file)["models"]) for file in files)


def _are_identical(models: Any) -> bool:
    weights = {name: value for name, value in models.items() if not name.endswith(STATISTICS)}
    return all(bool((leaf == leaf[:1]).all()) for leaf in trees.tree_leaves(weights))


def seed_graphs(run: Run, client_scores: pd.DataFrame) -> list[np.ndarray]:
    """The collaboration graph [N, N] of each seed behind the reported models, averaged over layers; none without."""
    rows, stored = client_scores[client_scores["run"] == run.name], results.graphs_by_seed(run)
    return [graphs.weights[position].mean(0) for graphs, position in results.reported_graphs(run, rows, stored)]
