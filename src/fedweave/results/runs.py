"""Finished runs on disk: `<study>/runs/<run>/{run.json, evaluations.parquet, rounds.csv}`.

A run without `run.json` is unfinished.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from fedweave.errors import BadInput, choose
from fedweave.files.atomic import read, read_json, read_table, write_json
from fedweave.metrics import Margin, default_margin, margin_of, parse_margins
from fedweave.results import published
from fedweave.results.marks import CONTROLS, REFERENCES, control_column
from fedweave.runs import selection

MARGINS = "margins.json"  # margins of practical equivalence as the study writes them, by metric
RETRAIN_HINT = "remove the folder of the run, and train the run again"  # the advice for every damaged file
KEYS = ("seed", "round", "point", "split", "client")
_INTEGER, _TEXT = ("int64", "int32"), ("string", "large_string")
COLUMNS = dict(zip((*KEYS, "value"), (_INTEGER, _INTEGER, _TEXT, _TEXT, _INTEGER, ("double",)), strict=True))
NEEDED = ("run", "task", "dataset", "setting", "method", "metric", "higher_is_better", "point", "select")


class SplitScores(NamedTuple):
    """The scores of one split at the reported point: values [S, R, N], and where there is a row, which may be NaN."""

    values: np.ndarray
    has_row: np.ndarray


@dataclass(frozen=True)
class Run:
    """One finished run: method x task, all seeds."""

    folder: Path
    info: Mapping[str, Any]
    evaluations: pd.DataFrame
    rounds: pd.DataFrame
    diagnostics: pd.DataFrame  # seed, round, name, value; empty for a run without any
    machine: pd.DataFrame  # time and the machine's load while it was trained; empty for a run without any
    shares_label: bool = False  # another run of the task has the same printed label

    @property
    def name(self) -> str:
        """Name of the run's folder and of its block in `params.yaml`."""
        return str(self.info["run"])

    @property
    def task(self) -> str:
        """Key of the task in `params.yaml`."""
        return str(self.info["task"])

    @property
    def label(self) -> str:
        """The method's name in tables, unique within the task."""
        return f"{self.printed_label} [{self.name}]" if self.shares_label else self.printed_label

    @property
    def printed_label(self) -> str:
        """The method as the papers print it."""
        return str(self.info.get("label") or self.info["method"])

    @property
    def is_reference(self) -> bool:
        """Whether it is a control, such as Local, and not another method with the label by which tests look for it."""
        return self.printed_label in REFERENCES and control_column(self.printed_label) == f"vs_{self.info['method']}"

    @property
    def higher_is_better(self) -> bool:
        """Direction of the metric."""
        return bool(self.info["higher_is_better"])

    @property
    def leaks(self) -> bool:
        """Whether it trained on test rows; such a run is reported separately and compared with nothing."""
        return bool(self.info.get("leaks"))

    @property
    def seeds(self) -> list[int]:
        """Seeds of the repetitions."""
        return sorted(int(seed) for seed in self.evaluations["seed"].unique())

    @property
    def has_splits(self) -> bool:
        """Whether every repetition has a split of its own."""
        return bool(self.info.get("splits"))

    @cached_property
    def split_of(self) -> dict[int, int]:
        """Seed of a repetition -> seed of its split, where every repetition has a split of its own."""
        return dict(zip(self.info.get("seeds") or self.seeds, self.info.get("splits") or (), strict=False))

    @property
    def pools(self) -> bool:
        """Whether it trained on the pooled rows of all clients; such a run is a control and not federated."""
        return bool(self.info.get("pools"))

    @cached_property
    def client_names(self) -> list[str]:
        """Name of every client, "client 3" where the data have none."""
        count = int(self.info.get("clients") or self.evaluations["client"].max() + 1)
        return list(map(str, self.info.get("client_names") or [f"client {i}" for i in range(count)]))

    @cached_property
    def evaluated_clients(self) -> list[int]:
        """The clients that were evaluated: all of them, or the sample of the task."""
        return list(map(int, self.info.get("evaluated") or range(len(self.client_names))))

    @cached_property
    def group(self) -> np.ndarray | None:
        """The true group of every client [N], where it is known."""
        group = self.info.get("group")
        return None if group is None else np.asarray(group, dtype=np.int64)

    def group_names(self, group: np.ndarray) -> list[str]:
        """Names of the groups 0 .. max of `group` [N], "group 2" where the data have none."""
        count = int(group.max()) + 1
        names = list(map(str, self.info.get("group_names") or []))
        return names if len(names) >= count else [f"group {i}" for i in range(count)]

    @cached_property
    def trained_rounds(self) -> int:
        """Rounds that every seed went through."""
        return int(self.rounds.groupby("seed")["round"].nunique().min())

    @cached_property
    def totals(self) -> "pd.Series[float]":
        """`bytes_up`, `bytes_down` and `seconds` of one repetition: sums over rounds, averaged over seeds."""
        return self.rounds.groupby("seed")[["bytes_up", "bytes_down", "seconds"]].sum().mean()

    @property
    def reported_point(self) -> pd.DataFrame:
        """The rows of `evaluations` at the point that the run reports."""
        return self.evaluations[self.evaluations["point"] == self.info["point"]]

    @cached_property
    def scores_by_split(self) -> tuple[list[np.ndarray], dict[str, SplitScores]]:
        """The seeds [S], rounds [R] and clients [N] at the reported point, and split -> its scores, in one pass over
        the rows: a board needs this for hundreds of runs, and a mask for each seed takes most of its time.
        """
        table = self.reported_point
        labels, places = zip(
            *(np.unique(table[key], return_inverse=True) for key in ("seed", "round", "client")), strict=True
        )
        splits, values = {}, table["value"].to_numpy(np.float64)
        for name in sorted(table["split"].unique()):
            rows = (table["split"] == name).to_numpy()
            cells = tuple(place[rows] for place in places)
            split = SplitScores(np.full([*map(len, labels)], np.nan), np.zeros([*map(len, labels)], bool))
            split.values[cells], split.has_row[cells] = values[rows], True
            splits[name] = split
        return [*labels], splits

    @cached_property
    def reference(self) -> published.Reference | None:
        """The printed column that the task names, if it names one."""
        block = self.info.get("published")
        return published.reference(block, self.info["dataset"], self.info["setting"]) if block else None

    @cached_property
    def margin(self) -> Margin | None:
        """The margin of practical equivalence as it was before the run had scores; None where the run does not say."""
        if "margins" not in self.info:
            return None
        stored = parse_margins(self.info["margins"], f"{self.folder / 'run.json'}: margins.")
        return margin_of(str(self.info["metric"]), stored)

    @cached_property
    def shortfall(self) -> str:
        """Why no printed number may be shown for this run; empty if it may be shown, or if none is declared."""
        if not self.reference:
            return ""
        declared = self.info.get("spec", {}).get("train", {}).get("rounds", self.trained_rounds)
        # Rounds of a warm-up are additional to the declared ones.
        return published.shortfall(self.reference, min(self.trained_rounds, declared))


class Study(NamedTuple):
    """The finished runs of a folder that are compared, the names of the unfinished, the runs that train on test rows,
    and those that train on pooled rows: controls that are not federated; `margins` are those that the study sets.
    """

    name: str
    folder: Path
    runs: tuple[Run, ...]
    unfinished: tuple[str, ...]
    leaky: tuple[Run, ...] = ()
    pooled: tuple[Run, ...] = ()
    margins: Mapping[str, Margin] = {}

    def margin(self, metric: str) -> Margin:
        """The margin of practical equivalence of a metric: the study's own, or the default.

        One that differs from the margin that a run had when it was trained was chosen after its results.
        """
        margin = margin_of(metric, self.margins)
        before = [run.margin for run in self.runs if run.info["metric"] == metric and run.margin is not None]
        is_new = margin != default_margin(metric) and any(margin != earlier for earlier in before)
        return replace(margin, after_results=is_new)

    @property
    def all_runs(self) -> tuple[Run, ...]:
        """All finished runs, compared or not."""
        return (*self.runs, *self.leaky, *self.pooled)


def load_run(folder: Path | str) -> Run:
    """Read one run.

    Raises:
        BadInput: a missing file, key or column, a duplicate row, or a round that was selected on test data.
    """
    folder = Path(folder)
    for name in ("run.json", "evaluations.parquet", "rounds.csv"):
        if not (folder / name).is_file():
            raise BadInput(f"{folder / name}: missing; {RETRAIN_HINT}")
    info = read_json(folder / "run.json", RETRAIN_HINT)
    missing = [key for key in NEEDED if key not in info]
    if missing:
        raise BadInput(f"{folder / 'run.json'}: no {', '.join(missing)}; {RETRAIN_HINT}")
    choose(
        info["select"], [rule for rule in selection.RULES if rule != selection.LEAKY], f"{folder / 'run.json'}: select"
    )
    evaluations = read_scores(folder / "evaluations.parquet")
    if evaluations.duplicated(list(KEYS)).any():
        raise BadInput(f"{folder / 'evaluations.parquet'}: two rows for one {', '.join(KEYS)}; {RETRAIN_HINT}")
    costs = ("seed", "round", "bytes_up", "bytes_down", "seconds")
    rounds = read_table(folder / "rounds.csv", costs, RETRAIN_HINT, costs)
    diagnostics = _read_optional(folder / "diagnostics.csv", ("seed", "round", "name", "value"), ("round", "value"))
    return Run(folder, info, evaluations, rounds, diagnostics, _read_optional(folder / "system.csv", ("time",)))


def read_scores(path: Path) -> pd.DataFrame:
    """The table of scores of a run: seed, round, point, split, client, value.

    Raises:
        BadInput: the file is damaged, lacks a column, or has other types.
    """
    return read(path, _read_parquet, RETRAIN_HINT)


def _read_parquet(path: Path) -> pd.DataFrame:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        types = {field.name: str(field.type) for field in file.schema_arrow}
        if missing := [column for column in COLUMNS if column not in types]:
            raise ValueError(f"no column {', '.join(missing)}")
        if wrong := [column for column, choices in COLUMNS.items() if types[column] not in choices]:
            raise ValueError(f"column {wrong[0]} is of type {types[wrong[0]]}")
        return file.read(list(COLUMNS)).to_pandas()


def _read_optional(file: Path, columns: tuple[str, ...], numbers: tuple[str, ...] = ()) -> pd.DataFrame:
    return read_table(file, columns, RETRAIN_HINT, numbers) if file.is_file() else pd.DataFrame(columns=list(columns))


def _as_control(run: Run, peers: Sequence[Run]) -> Run:
    """`run` by the label of a control if it is the only run of that method among its `peers`, the runs of its task.

    Tests and gains look for controls by their labels. So a name of the user's own, such as {"alone": "local"}, must not
    hide one. A run that trains in another way than its peers keeps its name.
    """
    label = next((label for label in CONTROLS if control_column(label) == f"vs_{run.info['method']}"), "")
    alone = [peer.info["method"] for peer in peers].count(run.info["method"]) == 1
    ways = [(peer.info.get("spec") or {}).get("train") for peer in peers]
    return replace(run, info={**run.info, "label": label}) if label and alone and ways == ways[:1] * len(ways) else run


def load_study(folder: Path | str, only: Collection[str] | None = None) -> Study:
    """Read every finished run under `folder`/runs, or those named in `only`, in the order of their names.

    Raises:
        BadInput: no finished run, none that may be compared, or a broken one.
    """
    folder = Path(folder)
    folders = sorted(
        path for path in (folder / "runs").glob("*") if path.is_dir() and (only is None or path.name in only)
    )
    finished = [path for path in folders if (path / "run.json").is_file()]
    if not finished:
        if not folder.is_dir():
            raise BadInput(folder, "there is no such folder of results; check the path, or train first")
        if (folder / "run.json").is_file():  # such as the folder that `fedweave run` prints
            raise BadInput(folder, f"is the folder of one run; give that of its results, {folder.parent.parent}")
        raise BadInput(f"{folder / 'runs'}: no finished run; train one first")
    runs = [load_run(path) for path in finished]
    runs = [_as_control(run, [other for other in runs if other.task == run.task]) for run in runs]
    labels = [(run.task, run.printed_label) for run in runs]
    runs = [
        replace(run, shares_label=labels.count(key) > 1 and not run.is_reference)
        for run, key in zip(runs, labels, strict=True)
    ]
    runs.sort(key=lambda run: (run.task, run.name))
    leaky, pooled = tuple(run for run in runs if run.leaks), tuple(run for run in runs if run.pools)
    comparable = tuple(run for run in runs if not (run.leaks or run.pools))
    if not comparable:
        rows = "test rows or on pooled rows" if pooled else "test rows"
        raise BadInput(
            f"{folder / 'runs'}: every run trains on {rows}, and there is nothing to compare; add one that does not"
        )
    return Study(
        str(runs[0].info.get("study", folder.name)),
        folder,
        comparable,
        tuple(_describe_unfinished(p) for p in folders if p not in finished),
        leaky,
        pooled,
        read_margins(folder),
    )


def _describe_unfinished(folder: Path) -> str:
    """The name of a run without results; of a contestant that failed, also why."""
    file = folder / "failed.txt"
    return f"{folder.name} ({file.read_text(encoding='utf-8').strip()})" if file.is_file() else folder.name


def by_task(study: Study) -> dict[str, list[Run]]:
    """Task -> its runs."""
    return {task: [run for run in study.runs if run.task == task] for task in sorted({run.task for run in study.runs})}


def write_margins(folder: Path, margins: Mapping[str, object]) -> None:
    """Store the margins of a study, as users write them, beside its results."""
    write_json(folder / MARGINS, dict(margins), indent=2)


def read_margins(folder: Path) -> dict[str, Margin]:
    """Metric -> the margin of practical equivalence that the study sets; empty where it sets none.

    Raises:
        BadInput: the file is damaged.
    """
    file = folder / MARGINS
    if not file.is_file():
        return {}
    stored = read_json(file, "evaluate the study again")
    return parse_margins(stored, f"{file}: ")
