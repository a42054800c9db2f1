"""A study as tables: rounds selected on validation, scores reported on test."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedweave.files.atomic import write_atomic, write_json
from fedweave.graphs import quality
from fedweave.graphs.setting import is_control
from fedweave.metrics import Margin, clip
from fedweave.results import published, ranking, statistics
from fedweave.results.cohorts import cohorts, newcomers
from fedweave.results.formats import format_interval, format_mib, format_score
from fedweave.results.gains import gains
from fedweave.results.marks import CONTROLS, GRAPH_CONTROL, MARKS, SYMBOLS, add_marks, control_column
from fedweave.results.parts import scores_by_method
from fedweave.results.quantities import MIB, measures, run_columns
from fedweave.results.references import controls
from fedweave.results.repetitions import interval
from fedweave.results.runs import Run, Study, by_task, load_study, write_margins
from fedweave.results.selection import clients, progress, score_matrix
from fedweave.runs import selection

SCORES = ("mean", "std", "seeds", "pooled", "client_std", "worst10", "low", "high", "mark")
OVER_LOCAL = (*map(control_column, CONTROLS), "gain", "loss", "clients")
COSTS = ("bytes_up", "bytes_down", "seconds", "published_mean", "published_std")
COLUMNS = ["study", "dataset", "setting", "method", "metric", *SCORES, *OVER_LOCAL]
COLUMNS += ["pre", "post", "best_round", "at_last", *quality.MEANING, *COSTS]
# Field of `Tables` -> name of its file.
FILES = {
    "board": "leaderboard",
    "clients": "clients",
    "curves": "curves",
    "significance": "significance",
    "ranks": "ranks",
    "leaky": selection.LEAKY,
    "measures": "measures",
    "cohorts": "cohorts",
    "controls": "controls",
}


class Tables(NamedTuple):
    """Everything that is computed from the runs; `board` is the leaderboard with `run` and `task` in front.

    `leaky` must not be compared: scores at rounds chosen on test data, and runs that trained on it. `controls` are
    rules without a model.
    """

    board: pd.DataFrame
    clients: pd.DataFrame
    curves: pd.DataFrame
    significance: pd.DataFrame
    ranks: pd.DataFrame
    leaky: pd.DataFrame
    measures: pd.DataFrame
    cohorts: pd.DataFrame
    controls: pd.DataFrame


def _score(run: Run, table: pd.DataFrame) -> dict[str, Any]:
    values = score_matrix(table, run.name).to_numpy()
    numbers = {"seeds": len(values), **selection.summarise_run(values, run.higher_is_better)._asdict()}
    pooled_values = [*(run.info.get("pooled") or {}).values()]
    pooled = float(np.mean(pooled_values)) if len(pooled_values) == len(values) else np.nan
    return {**run_columns(run), "metric": run.info["metric"], **numbers, "pooled": pooled}


def board(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """One row per run, best first within each task; columns `run`, `task` and those of the leaderboard.

    A method with another graph than the one it learns (`graph_control_pairs`) is a control and comes last.

    `std` is over seeds (ddof 1). `pooled` is the metric of all clients' test rows together, averaged over seeds.
    `client_std` and `worst10` are averaged over seeds too. Bytes and seconds are totals of a run, averaged over seeds.
    `low` and `high` are the 95 % interval of the mean (over seeds and clients), within the metric's bounds. Where
    clients count as one (`parts`), it is that of the mean over parts; if these differ in size, it need not contain
    `mean`.
    `best_round` and `at_last` show when validation was best (`progress`). The columns of the tests are left empty
    (`add_marks` fills them). Printed numbers are filled only where the run had the paper's full budget.
    """
    rows = []
    scores = {task: scores_by_method(runs, table) for task, runs in by_task(study).items()}
    last = {task: {control for _, control in graph_control_pairs(runs)} for task, runs in by_task(study).items()}
    gain_counts = {name: counts for runs in by_task(study).values() for name, counts in gains(runs, table).items()}
    for run in study.runs:
        printed = None
        if run.reference and not run.shortfall:
            printed = published.lookup(run.reference, run.printed_label, run.info["metric"])
        printed_numbers = {"published_mean": printed.mean, "published_std": printed.std} if printed else {}
        order = -1.0 if run.higher_is_better else 1.0
        low, high = clip(run.info["metric"], interval(scores[run.task][run.label]))
        about = {"study": study.name, **_score(run, table), "low": low, "high": high, **points(run, table)}
        about |= {**progress(run), **gain_counts.get(run.name, {}), **run.totals.to_dict(), **printed_numbers}
        rows.append({**about, "order": order, "last": run.label in last[run.task]})
    frame = pd.DataFrame(rows).reindex(columns=["run", "task", *COLUMNS, "order", "last"])
    shared = frame.groupby(["dataset", "setting"])["task"].transform("nunique") > 1
    frame["setting"] = frame["setting"].where(~shared, frame["setting"] + " [" + frame["task"] + "]")
    frame["order"] *= frame["mean"]
    frame = frame.sort_values(["task", "last", "order", "method"], na_position="last", ignore_index=True)
    frame[["mark", *map(control_column, CONTROLS)]] = ""
    numbers = ["published_mean", "published_std", "gain", "loss", "clients"]
    return frame.drop(columns=["order", "last"]).assign(**frame[numbers].astype("float64"))


def points(run: Run, selected: pd.DataFrame) -> dict[str, float]:
    """The mean over clients and seeds at both points in the reported rounds: "pre" is of models as received, "post"
    after local training; NaN for a point that was not evaluated, and where a client has no finite score there.
    """
    rounds = selected[selected["run"] == run.name][["seed", "client", "round"]]
    if (rounds["round"] < 0).any():
        return dict.fromkeys(("pre", "post"), np.nan)
    tests = run.evaluations[run.evaluations["split"] == "test"]
    means = rounds.merge(tests, on=["seed", "client", "round"]).groupby("point")["value"].mean(skipna=False)
    return {point: float(means.get(point, np.nan)) for point in ("pre", "post")}


def curves(study: Study) -> pd.DataFrame:
    """Mean over clients by round: mean and std over seeds, for every run, evaluation point and split."""
    parts = []
    for run in study.runs:
        table = run.evaluations
        keys, rows = ["point", "split", "round"], ["split", "client", *(["seed"] if run.has_splits else [])]
        if (has_score := table["value"].notna()).all():
            scored = table
        else:
            scored = table[has_score.groupby([table[name] for name in rows]).transform("any")]
        per_seed = scored.groupby([*keys, "seed"])["value"].mean(skipna=False).groupby(keys)
        part = per_seed.agg(["mean", "std", "count"]).rename(columns={"count": "seeds"}).reset_index()
        parts.append(part.assign(run=run.name, task=run.task, method=run.label, metric=run.info["metric"]))
    return pd.concat(parts, ignore_index=True)[["run", "task", "method", "metric", *keys, "mean", "std", "seeds"]]


def significance(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Paired comparisons within each task, in five families.

    `pairs` is all against all. `leader` is the best against the rest, taken from `pairs` with their correction.
    `controls` is every method against Local and against FedAvg-FT, corrected over these tests alone. `graph` is every
    method against itself with another graph (`graph_control_pairs`), corrected over these tests alone. `newcomers` is
    `controls` on the clients that joined late alone.
    """
    rows: list[dict[str, Any]] = []
    for task, runs in by_task(study).items():
        scores, higher = scores_by_method(runs, table), runs[0].higher_is_better
        margin = study.margin(runs[0].info["metric"])
        pairs, graph_pairs = statistics.compare_all_pairs(scores, higher, margin), graph_control_pairs(runs)
        families = {
            "leader": statistics.leader_comparisons(pairs, _leader(runs, table)),
            "controls": statistics.compare_to_controls(scores, CONTROLS, higher, margin),
            "graph": statistics.compare_pairs(scores, graph_pairs, higher, margin) if graph_pairs else [],
            "newcomers": _newcomer_tests(runs, table, margin),
            "pairs": pairs,
        }
        rows += [{"task": task, "family": family, **asdict(c)} for family, part in families.items() for c in part]
    return pd.DataFrame(rows, columns=["task", "family", *(f.name for f in fields(statistics.TestedPair))])


def _newcomer_tests(runs: Sequence[Run], table: pd.DataFrame, margin: Margin) -> list[statistics.TestedPair]:
    members = newcomers(runs)
    if not members:
        return []
    scores = scores_by_method(runs, table[table["client"].isin(members)])
    return statistics.compare_to_controls(scores, CONTROLS, runs[0].higher_is_better, margin)


def _leader(runs: Sequence[Run], table: pd.DataFrame) -> str | None:
    """The first method of a task's leaderboard: means and ties are those of `board`, also where clients count as one in
    tests.
    """
    graph_controls = {control for _, control in graph_control_pairs(runs)}
    ordered = sorted((run for run in runs if run.label not in graph_controls), key=lambda run: run.label)
    means = {run.label: np.array(_score(run, table)["mean"]) for run in ordered}
    return statistics.leader(means, runs[0].higher_is_better)


def graph_control_pairs(runs: Sequence[Run]) -> list[tuple[str, str]]:
    """(label with the learned graph, label with a control in its place) of runs that are equal but for their graph."""
    pairs = []
    for run in runs:
        learned = _separate_graph(run)
        if learned is None or is_control(learned[0]):
            continue
        for other in runs:
            control = _separate_graph(other)
            if control is not None and is_control(control[0]) and control[1] == learned[1]:
                pairs.append((run.label, other.label))
    return pairs


def _separate_graph(run: Run) -> tuple[str, Mapping[str, Any]] | None:
    """(graph, all else that the result depends on) of a run whose method has a graph."""
    spec = run.info.get("spec") or {}
    method = spec.get("method")
    if not isinstance(method, Mapping) or "graph" not in method:
        return None
    rest = {name: value for name, value in method.items() if name != "graph"}
    return str(method["graph"]), {**spec, "method": rest}


def ranks(study: Study, table: pd.DataFrame) -> pd.DataFrame:
    """Average ranks of the methods over the clients of each task and over all tasks (task ""), if there are enough.

    A client's score is its mean over seeds, and clients that count as one have one rank (`parts`). A task with several
    splits ranks over these, each with its mean over clients. Methods without a finite score everywhere are left out.
    """
    rows: list[dict[str, Any]] = []
    means: dict[str, pd.Series] = {}
    higher = {task: runs[0].higher_is_better for task, runs in by_task(study).items()}
    for task, runs in by_task(study).items():
        axis = 1 if runs[0].has_splits else 0
        # Of series, as methods may have different numbers of splits.
        scores = pd.DataFrame({label: pd.Series(v.mean(axis)) for label, v in scores_by_method(runs, table).items()})
        means[task] = scores.mean(skipna=False)
        rows += _rank_rows(task, scores.dropna(axis="columns"), [higher[task]] * len(scores))
    rows += _rank_rows("", pd.DataFrame(means).T.dropna(axis="columns"), [*higher.values()])
    return pd.DataFrame(rows, columns=["task", "method", "rank", "blocks", "critical_difference", "p"])


def _rank_rows(task: str, scores: pd.DataFrame, higher: list[bool]) -> list[dict[str, Any]]:
    if len(scores) < 2 or len(scores.columns) < 3:
        return []
    ranked = ranking.ranking(list(scores.columns), scores.to_numpy(), higher)
    about = {"task": task, "blocks": ranked.tasks, "critical_difference": ranked.critical_difference, "p": ranked.p}
    return [{**about, "method": m, "rank": float(r)} for r, m in sorted(zip(ranked.ranks, ranked.methods, strict=True))]


def compute_tables(study: Study, partitions: Path | None = None) -> Tables:
    """All tables; `partitions` is the folder with <task>/summary.json, from which sizes of data sets are read."""
    table = clients(study)
    tests = significance(study, table)
    quantities = measures(study, table, partitions)
    return Tables(
        add_graph_quality(add_marks(board(study, table), tests), quantities),
        table,
        curves(study),
        tests,
        ranks(study, table),
        leaky_scores(study),
        quantities,
        cohorts(study, table, tests),
        controls(study),
    )


def add_graph_quality(board: pd.DataFrame, measures: pd.DataFrame) -> pd.DataFrame:
    """The leaderboard with the quality of each run's collaboration graph, averaged over layers and seeds."""
    averages = measures[(measures["part"] == "all") & measures["quantity"].isin(list(quality.MEANING))]
    values = averages.pivot_table(index="run", columns="quantity", values="value")
    columns = {name: board["run"].map(values[name]) if name in values else np.nan for name in quality.MEANING}
    return board.assign(**columns).astype(dict.fromkeys(quality.MEANING, "float64"))


def leaky_scores(study: Study) -> pd.DataFrame:
    """Scores that used test data, reported separately: rounds selected on it ("selection"), runs trained on it
    ("training").
    """
    selected = clients(study, selection.LEAKY)
    # Predictions of these rounds are not stored, so nothing is known of the pooled rows.
    rows = [{**_score(run, selected), "pooled": np.nan, "leak": "selection"} for run in study.runs]
    if study.leaky:
        trained = clients(study._replace(runs=study.leaky))
        rows += [{**_score(run, trained), "leak": "training"} for run in study.leaky]
    return pd.DataFrame(rows)


def dvc_metrics(frame: pd.DataFrame) -> dict[str, dict[str, float | None]]:
    """Run -> {metric: mean, std, worst10} from a `board`; null where there is no number.

    Seconds are in the leaderboard: as metrics they would differ after every run, and hide what has changed.
    """
    metrics = {}
    for row in frame.to_dict("records"):
        numbers = {row["metric"]: row["mean"], **{name: row[name] for name in ("std", "worst10")}}
        metrics[row["run"]] = {name: float(value) if np.isfinite(value) else None for name, value in numbers.items()}
    return metrics


def write(folder: Path | str, partitions: Path | None = None, margins: Mapping[str, object] | None = None) -> Tables:
    """Compute and write the tables of the study as CSV, and metrics/<run>.json.

    Args:
        margins: of practical equivalence, as in params.yaml; None keeps those of the folder.
    """
    if margins is not None:
        write_margins(Path(folder), margins)
    study = load_study(folder)
    result = compute_tables(study, partitions)
    for field, frame in result._replace(board=result.board[COLUMNS])._asdict().items():
        write_atomic(study.folder / f"{FILES[field]}.csv", frame.to_csv(index=False, lineterminator="\n"))
    for run, numbers in dvc_metrics(result.board).items():
        write_json(study.folder / "metrics" / f"{run}.json", numbers, indent=2)
    return result


def leaderboard_rows(frame: pd.DataFrame) -> Iterator[dict[str, str]]:
    """A leaderboard as text cells, best first within each dataset and setting; the rank restarts there.

    Controls with another graph have none.
    """
    for (dataset, setting), part in frame.groupby(["dataset", "setting"], sort=False):
        for rank, row in enumerate(part.to_dict("records"), start=1):
            yield {
                "task": f"{dataset} {setting}",
                "rank": str(rank) * (row["mark"] != GRAPH_CONTROL),
                "method": row["method"],
                "metric": row["metric"],
                "score": MARKS.get(row["mark"], "") + format_score(row["mean"], row["std"], row["metric"]),
                "interval": format_interval(row["low"], row["high"], row["metric"]),
                **{control_column(control): SYMBOLS[row[control_column(control)]] for control in CONTROLS},
                "gain": f"{row['gain']:.0f} / {row['loss']:.0f}" if np.isfinite(row["gain"]) else "",
                **{
                    name: format_score(row.get(name, np.nan), np.nan, row["metric"])
                    for name in ("pooled", "pre", "post", "worst10", "client_std")
                },
                "mib": format_mib((row["bytes_up"] + row["bytes_down"]) / MIB),
                "seconds": f"{row['seconds']:,.1f}",
                "published": format_score(row["published_mean"], row["published_std"], row["metric"]),
            }
