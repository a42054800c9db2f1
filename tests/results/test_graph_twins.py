"""The learned graph compared with a control in its place: the compared runs, and the places of the result."""

import numpy as np
import pytest
from weaving_results import GROUP, keep, study, write

from fedweave import results
from fedweave.graphs.quality import AUC, EDGES, MASS
from fedweave.report.summary import summary
from fedweave.results.tables import graph_control_pairs


def spec(graph: str | None, lr: float = 0.1) -> dict:
    """The recorded settings of a run."""
    method = {"name": "fedaghn", "p0": 0.03} | ({} if graph is None else {"graph": graph})
    return {"method": method, "train": {"rounds": 12, "lr": lr}, "task": {}}


@pytest.fixture(scope="module")
def study_and_tables(tmp_path_factory: pytest.TempPathFactory) -> tuple[results.Study, results.Tables]:
    """A method with its graph, with two controls, one of which has another learning rate, and one without a graph."""
    folder = study(tmp_path_factory.mktemp("twins"))
    runs = {
        "FedAGHN": spec("learned"),
        "FedAGHN [uniform]": spec("uniform"),
        "FedAGHN [shuffled]": spec("shuffled"),
        "FedAGHN [slow]": spec("uniform", 0.01),
        "Local": spec(None),
    }
    for label, recorded in runs.items():
        path = write(folder, label=label, spec=recorded, seeds=(0, 1, 2))
        if label == "FedAGHN":
            for seed in range(3):
                keep(path, seed, [1, 6, 12])
            rows = [
                (seed, 12, i, (i + k) % 20, 0.1 * k, 0.2 * k) for seed in range(3) for i in range(20) for k in (1, 2, 3)
            ]
            lines = ["seed,round,learner,source,weight,gain", *(",".join(map(str, row)) for row in rows)]
            (path / "edges.csv").write_text("\n".join(lines) + "\n")
    loaded = results.load_study(folder)
    return loaded, results.compute_tables(loaded)


def test_twins_differ_in_their_graph_alone(study_and_tables: tuple[results.Study, results.Tables]) -> None:
    """A run with another learning rate, or without a graph, is not a twin. The family has its own correction."""
    loaded, tables = study_and_tables
    expected = {("FedAGHN", "FedAGHN [uniform]"), ("FedAGHN", "FedAGHN [shuffled]")}
    assert {*graph_control_pairs(loaded.runs)} == expected
    family = tables.significance[tables.significance["family"] == "graph"]
    assert {*zip(family["method"], family["other"], strict=True)} == expected
    assert np.isfinite(family[["difference", "low", "high", "p_adjusted"]].to_numpy(dtype=float)).all()


def test_the_summary_agrees_with_the_tests(study_and_tables: tuple[results.Study, results.Tables]) -> None:
    """One line has the difference and interval of each control."""
    line = next(line for line in summary(*study_and_tables) if line.topic == "Learned graphs")
    assert "FedAGHN [uniform] (" in line.text
    assert " to " in line.text
    groups = next(line for line in summary(*study_and_tables) if line.topic == "True groups")
    assert "uniform" not in groups.text


def test_the_board_has_the_measures_of_the_graph(study_and_tables: tuple[results.Study, results.Tables]) -> None:
    """Recovery of the groups and the value of edges, for the only run that stored them."""
    board = study_and_tables[1].board.set_index("method")
    assert board.loc["FedAGHN", AUC] == 1.0
    assert board.loc["FedAGHN", EDGES] == pytest.approx(1.0)
    assert 0.4 < board.loc["FedAGHN", MASS] < 1.0
    assert np.isnan(board.loc["Local", AUC])
    assert len(GROUP) == 20
