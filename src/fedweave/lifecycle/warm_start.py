"""Warm start: a challenger that goes on from the champion, beside the one that is trained from scratch.

A state fits the inputs that it was trained on. So the rows of the new version are prepared as those of the champion
were: what was fitted (the scale of numbers, values of categories, the unit of targets) stays, and goes with the models.
"""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedweave import results
from fedweave.comparison import further_rounds, refit
from fedweave.comparison.compare import load
from fedweave.comparison.method_result import MethodResult
from fedweave.data.partitions.splits import PARTS
from fedweave.errors import BadInput, format_count, format_value
from fedweave.own_data import rows
from fedweave.own_data.arrays import partition_block
from fedweave.own_data.federation import Federation
from fedweave.own_data.options import TABLE_OPTIONS
from fedweave.own_data.row_options import row_options
from fedweave.prediction import input_description
from fedweave.results.selection import common_means

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "warm"  # in that of the training from scratch


def prepare_alike(
    about: Mapping[str, Any], table: "pd.DataFrame", client: str, label: str, options: Mapping[str, Any]
) -> Federation:
    """Rows as a federation that is prepared as an earlier one; its clients come first, in their order.

    Args:
        about: the earlier one, see `input_description.read_description`.
        table, client, label, options: as of `Federation.from_pandas`.

    Raises:
        BadInput: one of its clients has no rows, there is another class, or each client scales its own columns.
    """
    columns = input_description.columns(about)
    if columns is None or columns.clients or options.get("preprocess") == "client":
        raise BadInput("each client scales its columns by its own rows, which have changed")
    kept = {name: value for name, value in options.items() if name not in ("exclude", "embed", "text")}
    names = [column.name for column in columns.columns]
    given = row_options({**kept, "features": names, "name": about["name"]}, TABLE_OPTIONS)
    with warnings.catch_warnings():  # of values that are new: they count as unknown until a training from scratch
        warnings.simplefilter("ignore")
        new = Federation(**rows.fields_from_table(table, client, label, given, columns))
    if other := sorted({*new.classes} ^ {*about["classes"]}):
        raise BadInput(f"class {format_value(other[0])} is {'new' if other[0] in new.classes else 'gone'}")
    if gone := [name for name in about["clients"] if name not in new.names]:
        raise BadInput(f"client {gone[0]} has no rows any more")
    order = [new.names.index(name) for name in dict.fromkeys([*about["clients"], *new.names])]
    parts: dict[str, Any] = {part: tuple(getattr(new.partition, part)[i] for i in order) for part in PARTS}
    partition = replace(new.partition, **parts, names=tuple(new.names[i] for i in order))
    normalize = new.normalize
    if new.dataset.targets is not None:
        targets = {"offset": about["offset"][0], "unit": about["unit"][0]}
        normalize = {"name": "none", "targets": targets}
    return replace(
        new, partition=partition, partition_block=partition_block(new.dataset, partition), normalize=normalize
    )


def train(champion: MethodResult, federation: Federation, rounds: int, folder: Path) -> MethodResult:
    """The models of the champion after further rounds on more rows, and again on validation rows too.

    Args:
        federation: prepared as that of the champion.
        folder: for the results; one that was begun there is finished.

    Raises:
        BadInput: the method cannot go on, or its state was not stored.
        Diverged: the training diverged.
    """
    run = champion.run
    if not (folder / "runs" / run.name / "run.json").is_file():
        newcomers = len(federation) - len(champion.clients)
        further_rounds.go_on(run, federation, newcomers, rounds, folder, keep_state=True)
    warm = load(folder)[champion.name]
    seed = run.seeds[0]
    refit.refit(warm.run, seed, federation, None, run.folder / further_rounds.STATE.format(seed))
    return warm


def choose(scratch: MethodResult, warm: MethodResult, version: int) -> tuple[bool, str]:
    """(whether validation prefers the models that went on from a version, a sentence that says so)."""
    # By the names of clients, which have other numbers in the two trainings.
    means = common_means(
        {
            name: results.validation_scores(run).rename(columns=dict(enumerate(run.client_names)))
            for name, run in (("", scratch.run), (FOLDER, warm.run))
        }
    )
    is_warm = results.best_first(means, scratch.run.higher_is_better)[0] == FOLDER
    metric = str(scratch.run.info["metric"])
    own, other = (results.format_score(means[name], float("nan"), metric) for name in ("", FOLDER))
    further = format_count(int(warm.rounds["round"].nunique()), "round")
    first, second = f"from scratch {own}", f"{further} on from version {version} {other}"
    if is_warm:
        first, second = second, first
    return is_warm, f"On validation rows, {metric}: {first}, {second}."
