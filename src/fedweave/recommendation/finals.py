"""The end of a recommendation: finalists and controls on test rows, once, and learning curves on validation rows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.api.compare import perform
from fedweave.api.federation import Federation
from fedweave.api.plan import Plan
from fedweave.api.progress import Callback
from fedweave.federation.start import begin
from fedweave.recommendation.candidates import Candidate, build_plan
from fedweave.recommendation.subsets import subsample_training
from fedweave.results import Run, Study, statistics
from fedweave.runs import repetition
from fedweave.tensors import trees

EVALUATIONS = 25  # of a final run
SHARES = (0.25, 0.5)  # of the training rows, for the learning curve
FLOAT = 4  # bytes


@dataclass(frozen=True, eq=False)
class FinalComparison:
    """The last comparison.

    Attributes:
        made: what was trained.
        study: its runs, those of the controls with a changed graph among them.
    """

    made: Plan
    study: Study

    @property
    def runs(self) -> dict[str, Run]:
        """Name of a candidate -> its run."""
        return {run.name.removeprefix(f"{run.task}-"): run for run in self.study.runs}


def compare_finalists(
    federation: Federation,
    candidates: Sequence[Candidate],
    options: Mapping[str, Any],
    folder: Path,
    progress: bool,
    callbacks: Sequence[Callback],
) -> FinalComparison:
    """Train the finalists and the controls with seeds that no race had, and judge them on test rows.

    Raises:
        Diverged: none of them got anywhere.
    """
    every = max(1, options["train"]["rounds"] // EVALUATIONS)
    judged = {**options.get("evaluate", {}), "every": every}
    made = build_plan(federation, candidates, {**options, "evaluate": judged}, central=True)
    perform(made, folder, True, progress, callbacks)
    return FinalComparison(made, results.load_study(folder, made.study.runs))


def memory(finals: FinalComparison) -> dict[str, tuple[float, float]]:
    """Name -> (MiB of the server's state, MiB that one client holds: its own state and the model that it trains).

    States are those before the first round; what methods gather later has the same size.
    """
    sizes: dict[str, tuple[float, float]] = {}
    for name, run in finals.runs.items():
        bench = repetition.prepare(finals.made.study.run(run.name), *finals.made.inputs)
        first = bench.method.stages(bench.run.train.rounds)[0].method
        state = begin(first, bench.federation, 0, bench.executor)
        model = FLOAT * float(run.info["parameters"])
        own = trees.nbytes(state.clients) / bench.federation.clients
        sizes[name] = trees.nbytes(state.server) / results.MIB, (model + own) / results.MIB
    return sizes


def learning_curve(
    federation: Federation, candidate: Candidate, options: Mapping[str, Any], folder: Path, full: Run, progress: bool
) -> pd.DataFrame:
    """Validation score against the share of training rows: share, mean, low, high; and the difference to all rows.

    Args:
        federation: without its test rows.
        full: the final run, with all rows.
    """
    judged = {**options.get("evaluate", {}), "every": max(1, options["train"]["rounds"] // EVALUATIONS)}
    judged |= {"models": False, "predictions": False}
    scores = {1.0: results.validation_scores(full)}
    for share in SHARES:
        made = build_plan(subsample_training(federation, share), [candidate], {**options, "evaluate": judged})
        place = folder / f"{round(100 * share)}-percent"
        perform(made, place, True, progress, drawn=False)
        scores[share] = results.validation_scores(results.load_study(place, made.study.runs).runs[0])
    return _curve(scores, results.part_numbers([full]))


def _curve(scores: Mapping[float, pd.DataFrame], sharing: Sequence[int] | None) -> pd.DataFrame:
    """The rows of `learning_curve` from share -> validation scores (seeds by clients)."""
    measured = scores[1.0].columns[scores[1.0].notna().any()]
    names = {str(share): share for share in sorted(scores)}
    columns = results.average_parts({name: scores[share][measured] for name, share in names.items()}, sharing)
    rows = []
    for name, share in names.items():
        low, high = statistics.interval(columns[name])
        row = {"share": share, "mean": float(scores[share][measured].to_numpy().mean()), "low": low, "high": high}
        if share < 1:
            gain = columns[str(1.0)] - columns[name]
            row |= dict(
                zip(("gain", "gain_low", "gain_high"), (float(gain.mean()), *statistics.interval(gain)), strict=True)
            )
        rows.append(row)
    return pd.DataFrame(rows, columns=["share", "mean", "low", "high", "gain", "gain_low", "gain_high"])


def slope(run: Run) -> tuple[float, float, float]:
    """Change of the validation score per ten rounds over the last third of the rounds, with its 95 % interval.

    A line for every seed and client; the interval is over both. NaN for fewer than three evaluations there.
    """
    scores = run.evaluations
    there = scores[(scores["point"] == run.info["point"]) & (scores["split"] == "val")]
    late = there[there["round"] > there["round"].max() * 2 / 3]
    rounds = np.sort(late["round"].unique()).astype(float)
    if len(rounds) < 3:
        return (float("nan"),) * 3
    table = late.pivot(index=["seed", "client"], columns="round", values="value").dropna()
    centred = rounds - rounds.mean()
    slopes = 10.0 * (table.to_numpy() @ centred) / (centred**2).sum()
    square = pd.Series(slopes, index=table.index).unstack("client").dropna(axis="columns")
    columns = results.average_parts({run.name: square}, results.part_numbers([run]))[run.name]
    return float(square.to_numpy().mean()), *statistics.interval(columns)


def has_one_model(run: Run) -> bool:
    """Whether all clients have the same model in every seed, whatever BatchNorm statistics they keep."""
    from fedweave.files import load_tensors

    files = [run.folder / f"models-{seed}.pt" for seed in run.seeds]
    if not all(file.is_file() for file in files):
        return False
    return all(_are_identical(load_tensors(file)["models"]) for file in files)


def _are_identical(models: Any) -> bool:
    own = {name: value for name, value in models.items() if not name.endswith(STATISTICS)}
    return all(bool((leaf == leaf[:1]).all()) for leaf in trees.tree_leaves(own))


STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def seed_graphs(run: Run, chosen: pd.DataFrame) -> list[np.ndarray]:
    """The collaboration graph [N, N] of each seed behind the reported models, averaged over layers; none without."""
    return [
        graphs.weights[at].mean(0) for graphs, at in results.reported_graphs(run, chosen[chosen["run"] == run.name])
    ]
