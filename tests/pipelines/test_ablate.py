"""What an ablation reports of its variants: the same clients as in the tables of a study, with the same numbers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedweave import results
from fedweave.metrics import Margin
from fedweave.pipelines.stages import ablate
from fedweave.report import optional_files
from fedweave.results import statistics
from tests.fake_results import write_run

CLIENTS = 12
MARGIN = Margin(points=1.0)
SHARING = [client // 2 for client in range(CLIENTS)]


@pytest.fixture
def run(tmp_path: Path) -> results.Run:
    """A declared run whose clients share their test nodes in pairs. The last client has no score."""
    folder = write_run(tmp_path, "blobs", "FedAvg", 0.0, {}, (0, 1, 2), CLIENTS, 3, np.random.default_rng(0))
    made = results.load_run(folder)
    made.evaluations.loc[made.evaluations["client"] == CLIENTS - 1, "value"] = np.nan
    return replace(made, info={**made.info, "sharing": SHARING})


def outcomes(run: results.Run) -> dict[str, ablate.VariantResult]:
    """The declared run, a slightly worse variant, and a variant with other clients."""
    declared = results.select_scores(run)[["seed", "client", "value"]]
    loss = np.random.default_rng(1).normal(1.0, 0.5, len(declared))
    other = pd.DataFrame({"seed": [0, 0, 1, 1], "client": [0, 7, 0, 7], "value": [50.0, np.nan, 60.0, np.nan]})
    return {
        ablate.DECLARED: ablate.VariantResult({}, declared, 1.0, 1.0, declared=True),
        "worse": ablate.VariantResult({"lam": 0}, declared.assign(value=declared["value"] - loss), 1.0, 1.0),
        "others": ablate.VariantResult({"partition.clients": 2}, other, 1.0, 1.0, has_other_partition=True),
    }


def test_clients_without_a_score_are_left_out_and_clients_that_share_nodes_count_once(run: results.Run) -> None:
    made = outcomes(run)
    table = pd.DataFrame(ablate.table("parts", run, made, MARGIN), columns=optional_files.ABLATION_COLUMNS)
    table = table.set_index("variant")
    frames = {
        name: made[name].values.pivot(index="seed", columns="client", values="value")
        for name in (ablate.DECLARED, "worse")
    }
    for name, frame in frames.items():
        assert table["mean"][name] == pytest.approx(frame.drop(columns=CLIENTS - 1).to_numpy().mean())
    assert table["mean"]["others"] == pytest.approx(55.0)
    grouped = {name: frame.drop(columns=CLIENTS - 1).T.groupby(SHARING[:-1]).mean().T for name, frame in frames.items()}
    expected = statistics.compare_pairs(
        {name: frame.to_numpy() for name, frame in grouped.items()}, [("worse", ablate.DECLARED)], True, MARGIN
    )[0]
    for name in ("difference", "low", "high", "p_adjusted", "margin", "seeds_needed"):
        assert float(table[name]["worse"]) == pytest.approx(getattr(expected, name), nan_ok=True)
    for name in ("over", "verdict"):
        assert table[name]["worse"] == getattr(expected, name) != ""
        assert table[name]["others"] == ""


def test_evaluated_clients_of_a_sample_keep_their_numbers(run: results.Run) -> None:
    rows = ablate.scores(outcomes(run))
    assert sorted({*rows[rows["run"] == "others"]["client"]}) == [0, 7]
