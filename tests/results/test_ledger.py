"""The ledger of printed numbers: complete, current, and without a number of a smaller budget beside a printed one."""

import math
from collections import Counter

import numpy as np
import pandas as pd
import pytest

from fedweave.results import published
from fedweave.results.quantities import WEIGHTS
from fedweave.study import catalogue
from tools.docs import ledger


@pytest.fixture(scope="module")
def entries() -> list[ledger.PrintedNumber]:
    return ledger.build()


def test_every_printed_number_stands_there_once(entries: list[ledger.PrintedNumber]) -> None:
    printed = Counter(repr(row) for paper in published.PAPERS for row in published.rows(paper))
    assert Counter(repr(published.Row(*entry[:8])) for entry in entries) == printed
    assert ledger.counts(entries).loc["all", "all"] == printed.total()


def test_the_stored_ledger_is_the_present_one(entries: list[ledger.PrintedNumber]) -> None:
    """Else: python -m tools.docs.ledger."""
    frame = pd.DataFrame(entries)
    assert ledger.CSV.read_text() == frame.to_csv(index=False, lineterminator="\n", float_format="%.6g")
    assert ledger.PAGE.read_text() == ledger.page(entries)


def test_only_whole_budgets_have_a_number(entries: list[ledger.PrintedNumber]) -> None:
    for entry in entries:
        whole = entry.state in (ledger.FULL, ledger.ONE_SEED, ledger.OTHER, ledger.SIZE)
        assert math.isfinite(entry.ours) == whole, entry
        assert bool(entry.verdict) == (entry.state in (ledger.FULL, ledger.OTHER, ledger.SIZE)), entry
        assert not (entry.state == ledger.ONE_SEED and entry.seeds > 1), entry


def test_a_study_has_no_two_columns_of_one_name() -> None:
    """A score of CIFAR-100 once stood in the column of the same data set under another model."""
    for study in catalogue.studies():
        tasks = [task for task in catalogue.expand(study)["tasks"].values() if task.get("published")]
        assert len(tasks) == len({(task["dataset"], task["setting"]) for task in tasks}), study


def test_a_number_of_ours_is_that_of_its_study(entries: list[ledger.PrintedNumber]) -> None:
    """Of each study, read again from its file, in the printed unit; a mean is that of the columns beside it."""
    frame = pd.DataFrame(entries)[lambda frame: frame["seeds"] > 0]
    weights = frame[frame["metric"].isin(WEIGHTS)]
    for row in weights.to_dict("records"):
        file, stage = ledger.FOLDER / f"{row['study']}.weights.csv", row["setting"].rpartition("/")[2]
        graph = (
            row["method"] if "-" in row["method"] else f"{row['method']}-all"
        )  # over all layers, where none is named
        stored = pd.read_csv(file, index_col="key").loc[f"{stage} {graph} {row['metric']}"]
        assert (row["ours"], row["seeds"]) == (stored["ours"], stored["seeds"])
        np.testing.assert_equal(row["ours_std"], pd.to_numeric(stored["std"], errors="coerce"))
    assert len(weights)
    frame = frame.drop(frame.index[frame["metric"].isin(WEIGHTS)])
    table = ["paper", "table", "dataset", "method"]
    columns = frame[frame["setting"] != ledger.MEAN].groupby(table)["ours"].agg(["mean", "size"])
    averages = frame[frame["setting"] == ledger.MEAN].set_index(table)["ours"]
    assert len(averages)
    for row, average in averages.items():
        assert math.isclose(average, columns["mean"][row], rel_tol=1e-9)
        assert columns["size"][row] == 3
    for study, group in frame[frame["setting"] != ledger.MEAN].groupby("study"):
        stored = pd.read_csv(ledger.FOLDER / f"{study}.csv")
        factor = stored["metric"].map({"accuracy": 1.0, "mse": 1e3})
        means = [*(stored["mean"] * factor)]
        assert all(any(math.isclose(ours, mean, rel_tol=1e-9) for mean in means) for ours in group["ours"])
