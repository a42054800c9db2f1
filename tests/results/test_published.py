"""The papers' numbers: stored as printed, found by column and method, and shown for a run only if it had the full
budget.
"""

import json
import math
from pathlib import Path

import pytest

from fedweave import report, results
from fedweave.errors import BadInput
from fedweave.results import published
from tests.fake_results import write_single_run

PRINTED = {"paper": "pfedgat", "table": "table1", "dataset": "cifar10", "setting": "iid", "budget": "full"}


def test_every_printed_row_loads() -> None:
    counts = {paper: len(published.rows(paper)) for paper in published.PAPERS}
    assert counts == {"fedaghn": 261, "pfedgat": 257, "pfedla": 160, "shn": 157, "fedsheafhn": 436}
    assert all(math.isfinite(row.mean) for paper in published.PAPERS for row in published.rows(paper))


@pytest.mark.parametrize(
    ("paper", "table", "dataset", "setting", "method", "mean"),
    [
        ("pfedgat", "table2", "cifar100", "avg", "Local", 48.46),
        ("pfedgat", "table2", "cifar100", "avg", "FedAMP", 29.58),
        ("pfedgat", "table1", "cifar10", "avg", "pFedHN", 73.02),
        ("fedsheafhn", "table3", "ogbn-arxiv", "disjoint/clients20", "FedAvg", 36.56),
        ("fedsheafhn", "table3", "ogbn-arxiv", "disjoint/clients20", "FedSheafHN", 71.87),
        ("fedsheafhn", "table1", "ogbn-arxiv", "disjoint/clients20", "FedSheafHN", 71.75),
        ("shn", "table1", "cifar100", "lda-alpha0.1", "SHN", 48.26),
        ("pfedla", "table3", "emnist", "noniid_1/clients10/k1", "HeurpFedLA", 94.11),
    ],
)
def test_printed_values_are_stored_as_printed(
    paper: str, table: str, dataset: str, setting: str, method: str, mean: float
) -> None:
    number = published.lookup(
        published.reference({"paper": paper, "table": table}, dataset, setting), method, "accuracy"
    )
    assert number is not None
    assert number.mean == mean


def test_units_labels_and_budgets_of_the_printed_columns() -> None:
    metr = published.reference({"paper": "shn", "table": "table1"}, "metr-la", "natural")
    raw = next(row for row in published.rows("shn") if (row.dataset, row.method) == ("metr-la", "SHN"))
    assert published.lookup(metr, "shn", "mse").mean == pytest.approx(raw.mean / 1000)
    assert published.lookup(metr, "SHN", "accuracy") is None
    assert published.lookup(metr, "SFL*", "mse") is None
    pat = published.reference({"paper": "fedaghn", "table": "table1"}, "cifar10", "pathological")
    assert published.lookup(pat, "HeurFedAMP", "accuracy").mean == published.lookup(pat, "H-FedAMP", "accuracy").mean
    assert published.lookup(metr, "fedavg_ft", "mse") == published.lookup(metr, "FedAvg-FT", "mse")
    places = {
        ("fedaghn", "table1", "cifar10", "dir0.1"): 200,
        ("fedaghn", "table1", "cifar100-resnet18", "pathological"): 80,
        ("fedaghn", "table1", "tinyimagenet-resnet18", "dir0.1"): 40,
        ("pfedgat", "table3", "cifar10", "dir0.1/clients25"): 50,
        ("pfedla", "table1", "emnist", "noniid_1/clients10"): 600,
        ("pfedla", "table2", "emnist", "noniid_2/clients100"): 2500,
        ("shn", "table1", "tpt-48", "natural"): 2000,
        ("fedsheafhn", "table2", "ogbn-arxiv", "overlapping/clients30"): 200,
        ("fedsheafhn", "table1", "cora", "disjoint/clients10"): 100,
    }
    for place, rounds in places.items():
        assert published.paper_rounds(published.Reference(*place, True)) == rounds
    with pytest.raises(BadInput, match=r"published\.setting: 'dir0\.3' is unknown; did you mean 'dir0\.5'"):
        published.reference({"paper": "fedaghn", "table": "table2"}, "cifar10", "dir0.3")


def test_rounds_of_a_warm_up_are_added_to_the_budget(tmp_path: Path) -> None:
    """Fifty rounds, half of them in a first stage, are not the fifty rounds of the paper."""
    run = write_single_run(tmp_path, label="pFedGAT", rounds=50, published=PRINTED | {"budget": "full"})
    info = json.loads((run / "run.json").read_text())
    info["spec"]["train"]["rounds"] = 25
    (run / "run.json").write_text(json.dumps(info))
    study = results.load_study(run.parents[1])
    assert "trained 25 of the 50 rounds" in study.runs[0].shortfall


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize(
    ("rounds", "budget", "reason"),
    [
        (50, "full", ""),
        (60, "full", ""),
        (49, "full", "trained 49 of the 50 rounds"),
        (50, "reduced", "does not declare"),
    ],
)
def test_printed_numbers_are_shown_for_the_full_budget_only(
    tmp_path: Path, rounds: int, budget: str, reason: str
) -> None:
    run = write_single_run(tmp_path, label="pFedGAT", rounds=rounds, published=PRINTED | {"budget": budget})
    study = results.load_study(run.parents[1])
    row = results.compute_tables(study).board.iloc[0]
    expected = next(r.mean for r in published.rows("pfedgat") if r[1:5] == ("table1", "cifar10", "iid", "pFedGAT"))
    assert (row["published_mean"] == expected) == (reason == "")
    assert math.isnan(row["published_mean"]) == bool(reason)
    assert reason in study.runs[0].shortfall
    if rounds >= 50:
        text = report.build(run.parents[1]).read_text()
        assert (f"{expected:.2f}" in text) == (reason == "")
        assert ("Reduced budget" in text) == bool(reason)


def test_an_error_and_its_deviation_have_one_unit() -> None:
    """SHN prints a thousandth of a squared error as the unit. The stored value is the error itself."""
    block = {"paper": "shn", "table": "table1", "dataset": "tpt-48", "setting": "natural"}
    printed = published.lookup(published.reference(block, "", ""), "Local", "mse")
    assert printed is not None
    assert printed[:2] == pytest.approx((2.2e-3, 0.55e-3))
