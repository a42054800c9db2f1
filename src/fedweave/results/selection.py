"""The round that a run reports, chosen on validation data, and the values of its clients there."""

import math
from collections.abc import Collection, Iterable, Mapping

import numpy as np
import pandas as pd

from fedweave.errors import BadInput
from fedweave.results.runs import Run, Study
from fedweave.runs import selection


def select_scores(run: Run, rule: str | None = None) -> pd.DataFrame:
    """Test value of each seed and client at the round that `rule` (default: the run's own) selects.

    Columns seed, client, round, value. A seed without a round that has a finite validation value of every client, as
    far as the client has one in any, has diverged: NaN, round -1.
    """
    (seeds, rounds, clients), splits = run.scores_by_split
    if not len(seeds):
        points = sorted(run.evaluations["point"].unique())
        raise BadInput(
            f"{run.folder / 'run.json'}: point: {run.info['point']!r} was not evaluated; choices: {', '.join(points)}"
        )
    parts = []
    for number, seed in enumerate(seeds):
        names = [name for name, split in splits.items() if split.has_row[number].any()]
        if {*names} != {"val", "test"}:
            raise BadInput(f"{run.folder / 'evaluations.parquet'}: splits {names}; both val and test are needed")
        has_val, has_test = (splits[name].has_row[number] for name in ("val", "test"))
        in_both, tested = has_val.any(1) & has_test.any(1), has_test.any(0)
        val, test = (splits[name].values[number][np.ix_(in_both, tested)] for name in ("val", "test"))
        value, selected_rounds = np.full(tested.sum(), np.nan), np.full(tested.sum(), -1)
        index = selection.select(val, rounds[in_both], rule or run.info["select"], run.higher_is_better, test)
        if index is not None:
            value, selected_rounds = test[index, np.arange(len(index))], rounds[in_both][index]
        parts.append((np.full(len(value), seed), clients[tested], selected_rounds, value))
    columns = map(np.concatenate, zip(*parts, strict=True))
    return pd.DataFrame(dict(zip(("seed", "client", "round", "value"), columns, strict=True)))


def validation_scores(run: Run) -> pd.DataFrame:
    """Validation value of every seed and client (columns) at the round that a run reports; NaN where it diverged."""
    scores = run.reported_point
    selected = select_scores(run).drop(columns="value")
    merged = selected.merge(scores[scores["split"] == "val"], on=["seed", "client", "round"], how="left")
    return merged.pivot(index="seed", columns="client", values="value")


def validation_means(runs: Mapping[str, Run]) -> dict[str, float]:
    """Name -> mean of `validation_scores` over seeds and clients, for the `runs` of one task; see `common_means`."""
    return common_means({name: validation_scores(run) for name, run in runs.items()})


def common_means(tables: Mapping[str, pd.DataFrame]) -> dict[str, float]:
    """Name -> mean of a table of seeds and clients (columns); NaN for one that has diverged in a seed.

    Clients without a value in any table are left out.
    """
    scored = sorted({client for table in tables.values() for client in table.columns[table.notna().any()]})
    return {
        name: float(table.reindex(columns=scored).to_numpy().mean()) if scored else math.nan
        for name, table in tables.items()
    }


def best_first(means: Mapping[str, float], higher_is_better: bool) -> list[str]:
    """Names sorted by their means, best first; names with NaN come last."""
    order = -1.0 if higher_is_better else 1.0
    return sorted(means, key=lambda name: (math.isnan(means[name]), order * means[name]))


def clients(study: Study, rule: str | None = None) -> pd.DataFrame:
    """Test value of every run, seed and client at its selected round, with the client's name.

    A client that is NaN in every run of a task has no test rows there and is left out (`drop_unscored_clients`).
    """
    parts, splits = [], {run.task for run in study.runs if run.has_splits}
    for run in study.runs:
        columns, names = {"run": run.name, "task": run.task, "method": run.label}, run.client_names
        part = select_scores(run, rule).assign(**columns)
        part["name"] = [names[client] for client in part["client"]]
        parts.append(part[[*columns, "seed", "client", "name", "round", "value"]])
    return drop_unscored_clients(pd.concat(parts, ignore_index=True), splits)


def drop_unscored_clients(table: pd.DataFrame, splits: Collection[str] = ()) -> pd.DataFrame:
    """`table` (run, task, seed, client, value) without the clients that are NaN in every run of a task, unless all
    are.

    Args:
        splits: the tasks where each seed has a split of its own, and so other test rows. There, a client is left out if
            it is NaN in every run with some seed, unless all clients are so with that seed.
    """
    if table["value"].notna().all():
        return table.reset_index(drop=True)
    task, client = table["task"], table["client"]
    split = table["seed"].where(task.isin(splits), 0)
    is_scored = table["value"].notna().groupby([task, split, client]).transform("any")
    counts = is_scored.groupby([task, split]).transform("any")
    has_scores = (is_scored | ~counts).groupby([task, client]).transform("all")
    remains = has_scores.groupby(task).transform("any")
    return table[has_scores | ~remains].reset_index(drop=True)


def reported_curves(curves: pd.DataFrame, runs: Iterable[Run], split: str) -> pd.DataFrame:
    """The rows of a table of `curves` of one split, for each of `runs` at the point that it reports."""
    points = {run.name: run.info["point"] for run in runs}
    return curves[(curves["split"] == split) & (curves["point"] == curves["run"].map(points))]


def score_matrix(table: pd.DataFrame, run: str) -> pd.DataFrame:
    """Seeds x clients of one run from a table of `clients`; NaN where there is no row."""
    rows = (table["run"] == run).to_numpy()
    columns = (table[key].to_numpy()[rows] for key in ("seed", "client"))
    (seeds, row), (clients, column) = (np.unique(values, return_inverse=True) for values in columns)
    values = np.full((len(seeds), len(clients)), np.nan)
    values[row, column] = table["value"].to_numpy()[rows]
    # A copy would have another order in memory, and so other last bits of sums.
    return pd.DataFrame(values, pd.Index(seeds, name="seed"), pd.Index(clients, name="client"), copy=False)


def best_rounds(run: Run) -> np.ndarray:
    """Per seed, the round with the best mean validation score and the last evaluated one, [S, 2]; NaN without a finite
    one.

    Always by the mean over clients, even if the run selects otherwise: this shows whether more rounds would have
    helped.
    """
    (_, rounds, _), splits = run.scores_by_split
    best = []
    for values, has_row in zip(*splits["val"], strict=True) if "val" in splits else ():
        if not has_row.any():
            continue
        scored, clients = has_row.any(1), has_row.any(0)
        val = values[np.ix_(scored, clients)]
        index = selection.select(val, rounds[scored], "best_val_round", run.higher_is_better)
        last = rounds[scored][-1]
        best.append((np.nan, np.nan) if index is None else (rounds[scored][index[0]], last))
    return np.array(best, dtype=np.float64).reshape(-1, 2)


def progress(run: Run) -> dict[str, float]:
    """`best_round`: the best validation round, averaged over seeds; `at_last`: the number of seeds where it is the last
    one.

    A run that was evaluated in only one round does not show its progress: `at_last` is 0. A run with the scores of
    another metric has the progress by its own one.
    """
    if "progress" in run.info:
        return dict(run.info["progress"])
    rounds_by_seed = best_rounds(run)
    best = rounds_by_seed[:, 0][np.isfinite(rounds_by_seed[:, 0])]
    at_last = int((rounds_by_seed[:, 0] == rounds_by_seed[:, 1]).sum()) if evaluated_rounds(run) > 1 else 0
    return {"best_round": float(best.mean()) if best.size else np.nan, "at_last": at_last}


def evaluated_rounds(run: Run) -> int:
    """The number of rounds in which the run has scores; one of a run with the scores of another metric."""
    return len(run.scores_by_split[0][1])


def unconverged_rows(board: pd.DataFrame) -> pd.DataFrame:
    """Rows of a leaderboard that have not converged: the best validation round is the last one in half of the seeds or
    more.
    """
    return board[(board["at_last"] > 0) & (2 * board["at_last"] >= board["seeds"])]
