"""Runs for which the value of edges was requested but is missing are named, in the text and on the page."""

import io
import re
from pathlib import Path

import pytest
from rich.console import Console
from weaving_results import study, write

import fedweave as fw
from fedweave import report, results
from fedweave.pipelines.stages import leaderboard
from fedweave.report import board
from fedweave.report.summary import summary

ASKED = {"evaluate": {"edges": 2}, "train": {}, "method": {}}
HEAD = "seed,round,learner,source,weight,gain\n"
REPORT = Path(__file__).resolve().parents[2] / "docs" / "report.md"


def write_runs(folder: Path, *labels: str, task: str = "t", measured: tuple[str, ...] = ("FedAGHN",)) -> None:
    """Runs with a request for the value of edges. Those in `measured` have it."""
    for label in labels:
        path = write(folder, task, label, rounds=3, spec=ASKED)
        if label in measured:
            (path / "edges.csv").write_text(HEAD + "0,3,0,1,0.1,0.2\n0,3,0,2,0.3,0.4\n")


def read_note(folder: Path) -> str:
    loaded = results.load_study(folder)
    lines = [line for line in summary(loaded, results.compute_tables(loaded)) if line.topic == "Value of edges"]
    assert len(lines) <= 1
    return lines[0].text if lines else ""


@pytest.mark.usefixtures("undrawn")
def test_runs_without_values_are_named_once(tmp_path: Path) -> None:
    """Every place with the summary names them. A run without the request is not named."""
    folder = study(tmp_path)
    for task in ("a", "b"):
        write_runs(folder, "Local", "FedAvg", "FedAGHN", task=task)
        write(folder, task, "SHN", rounds=3, spec={**ASKED, "evaluate": {}})
    text = read_note(folder)
    assert text.startswith("evaluate.edges measured nothing for FedAvg, Local. It needs at least three clients")
    console, loaded = Console(file=io.StringIO(), width=160), results.load_study(folder)
    leaderboard._print(console, loaded, results.compute_tables(loaded))
    assert console.file.getvalue().count(text) == 1  # type: ignore[attr-defined]
    assert report.build(folder).read_text(encoding="utf-8").count(text) == 1


def test_tasks_are_named_where_they_differ(tmp_path: Path) -> None:
    """Two clients are too few for a task, with any method."""
    folder = study(tmp_path)
    write_runs(folder, "Local", "FedAGHN", task="many")
    write_runs(folder, "Local", "FedAGHN", task="two", measured=())
    assert "nothing for many: Local; two: FedAGHN, Local." in read_note(folder)


@pytest.mark.parametrize("edges", ["measured", "not asked"])
def test_there_is_no_note_if_nothing_is_missing(tmp_path: Path, edges: str) -> None:
    folder = study(tmp_path)
    if edges == "measured":
        write_runs(folder, "FedAGHN")
    else:
        write(folder, label="Local", rounds=3)
    assert read_note(folder) == ""


@pytest.mark.usefixtures("undrawn")
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_run_records_the_request() -> None:
    """The runs are trained and not generated. Local receives no mixture, and pFedGraph does."""
    federation = fw.Federation.from_dataset("digits", "dirichlet", clients=4, beta=0.5)
    done = fw.compare(
        federation, ["local", "pfedgraph"], rounds=1, seeds=1, evaluate={"edges": 3}, progress=False, tune=0
    )
    assert "nothing for Local. It needs" in read_note(done.study.folder)
    assert "weight ~ gain" in done.report().read_text(encoding="utf-8")


def test_the_guide_explains_every_column_of_graphs() -> None:
    """docs/report.md has the titles of the report's columns about graphs."""
    table = REPORT.read_text(encoding="utf-8").split("### Leaderboard\n")[1].split("\n\n- ")[0]
    cells = [name.strip() for cell in re.findall(r"^\| (.*?) \|", table, flags=re.M) for name in cell.split(";")]
    assert {*board.GRAPHS.values()} <= {*cells}
