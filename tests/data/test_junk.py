"""Junk in place of a stage's table: one line names the file and the command that makes it again."""

import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from fedweave import results
from fedweave.pipelines import paths
from fedweave.pipelines import search_dashboard as dashboard
from fedweave.pipelines.mlflow_records import tracking
from fedweave.report import optional_files
from fedweave.search import search
from fedweave.study import validate
from tests.data.test_bad_data import assert_refused
from tests.fake_results import write_study
from tests.pipelines.test_tune import RUN, prepare
from tools.docs import reproduction

WAYS = ("empty", "junk", "text", "cut")


def damage(file: Path, way: str) -> bytes:
    """Damage `file`. Returns its content."""
    content = file.read_bytes()
    cut = content[: len(content) // 2 + 1].rstrip(b"\n")
    file.write_bytes({"empty": b"", "junk": b"\x00\xff{<html>\n", "text": b"hello\nworld\n", "cut": cut}[way])
    return content


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small study with every kind of file."""
    folder = tmp_path_factory.mktemp("junk") / "results" / "toy"
    write_study(folder, {"blobs": {}}, {"Local": -6.0, "FedAMP": -5.0, "FedAGHN": 0.0}, (0,), 6, 3)
    (folder / "runs" / "blobs-fedaghn" / "diagnostics.csv").write_text("seed,round,name,value\n0,1,energy,0.5\n")
    results.write(folder)
    return folder


READ: dict[str, tuple[Callable[[Path], object], str]] = {
    "runs/blobs-fedaghn/rounds.csv": (results.load_study, "train the run again"),
    "runs/blobs-fedaghn/diagnostics.csv": (results.load_study, "train the run again"),
    "runs/blobs-fedaghn/evaluations.parquet": (results.load_study, "train the run again"),
    "runs/blobs-fedaghn/run.json": (results.load_study, "train the run again"),
    "runs/blobs-fedaghn/collaboration-0.npz": (
        lambda f: [results.graphs(run) for run in results.load_study(f).runs],
        "train the run again",
    ),
    "ablations/depth/table.csv": (optional_files.ablations, "dvc repro ablate@depth"),
    "tuned/blobs/trials/blobs-fedaghn.json": (optional_files.tuning, "dvc repro tune"),
    "../../data/partitions/blobs/labels.csv": (
        lambda f: optional_files.label_counts(f / LABELS),
        "dvc repro partition@blobs",
    ),
}
LABELS = "../../data/partitions/blobs/labels.csv"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", READ)
def test_damaged_files_of_stages_are_refused(name: str, way: str, study: Path) -> None:
    reader, again = READ[name]
    content = damage(study / name, way)
    try:
        if way == "text" and name == LABELS:  # a table without labels is that of a series
            assert reader(study) is None
        else:
            assert_refused(lambda: reader(study), str(study / name), again)
    finally:
        (study / name).write_bytes(content)
    reader(study)


@pytest.mark.parametrize("content", ["junk\n", '{"op_code": 99}\n', '{"worker_id": "a"}\n', "[1]\n"])
def test_a_damaged_journal_of_a_search_is_refused(
    content: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trials are lost, and the way out says so."""
    prepare(tmp_path, monkeypatch)
    study = validate.load()
    file = search.journal_path(study, RUN)
    search.open_search(study, RUN)
    file.write_text(content + file.read_text())
    assert_refused(lambda: search.open_search(study, RUN), f"{file}: damaged", "move it away", "dvc repro tune")
    assert_refused(lambda: dashboard.SearchReplica(study).update(), f"{file}: damaged")


def test_damaged_trials_are_refused_by_the_dashboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path, monkeypatch)
    file = paths.trials("toy", "toy", RUN)
    file.parent.mkdir(parents=True)
    file.write_text('{"trials": [{}]}')
    assert_refused(lambda: dashboard.SearchReplica(validate.load()).update(), f"{file}: damaged", "dvc repro tune")


@pytest.mark.parametrize("name", [".fedweave", ".fedweave/tune"])
def test_a_file_in_place_of_the_folder_of_searches_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(tmp_path, monkeypatch)
    Path(name).parent.mkdir(exist_ok=True)
    Path(name).write_text("")
    assert_refused(
        lambda: search.open_search(validate.load(), RUN),
        ".fedweave/tune/toy",
        "cannot be written",
        "a folder that can be written",
    )


def test_damaged_tables_of_a_reproduction_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both the new and the stored table. A study without a paper is refused before any table is read."""
    monkeypatch.chdir(tmp_path)
    assert_refused(lambda: reproduction.main("quick"), "'quick' is unknown", "choices")
    board = Path("results/paper/table/leaderboard.csv")
    table = reproduction.TABLES / "paper" / "table.csv"
    for file in (board, table):
        file.parent.mkdir(parents=True)
        file.write_text("hello\n")
    assert_refused(lambda: reproduction.merge_board("paper/table"), f"{board}: damaged", "dvc repro evaluate")
    assert_refused(lambda: reproduction.table("paper/table"), f"{table}: damaged", "git restore")
    assert table.read_text() == "hello\n"


@pytest.fixture
def make_database(study: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Makes the database of MLflow by a script of SQL."""
    file = tmp_path / "mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{file}")
    monkeypatch.setattr(tracking, "RESULTS", study.parent)

    def make(script: str) -> Path:
        with closing(sqlite3.connect(file)) as database:
            database.executescript(script)
        return file

    return make


@pytest.mark.parametrize("way", ["junk", "cut"])
def test_a_damaged_database_of_mlflow_is_refused_at_once(way: str, make_database: Callable[[str], Path]) -> None:
    """MLflow itself would try for two minutes."""
    file = make_database("CREATE TABLE a (b TEXT); INSERT INTO a VALUES (hex(zeroblob(20000)));")
    damage(file, way)
    start = time.monotonic()
    assert_refused(lambda: tracking.main("toy"), f"{file}: no database for MLflow", "move it away", "fedweave log")
    assert time.monotonic() - start < 30


def test_a_database_that_only_others_may_write_is_not_to_be_moved(make_database: Callable[[str], Path]) -> None:
    """Such as one of another user of the folder: it is whole. SQLite cannot open its log, whoever runs this test."""
    file = make_database("PRAGMA journal_mode = WAL; CREATE TABLE a (b TEXT)")
    Path(f"{file}-wal").mkdir()
    message = f"{file}: unable to open database file; make it and its folder writable for you, then: fedweave log toy"
    assert_refused(lambda: tracking.main("toy"), message)


def test_a_database_of_a_newer_mlflow_is_refused(make_database: Callable[[str], Path]) -> None:
    file = make_database("CREATE TABLE alembic_version (version_num TEXT); INSERT INTO alembic_version VALUES ('next')")
    assert_refused(lambda: tracking.main("toy"), f"{file}: of a newer MLflow", "then: fedweave log toy")


def test_an_invalid_port_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal comes before the study is read."""
    monkeypatch.setattr(validate, "load", lambda: pytest.fail("it was read"))
    for port in (-1, 0, 70000):
        assert_refused(lambda port=port: dashboard.main(port), f"--port: {port}", "between 1 and 65535")
