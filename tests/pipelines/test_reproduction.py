"""The page that lays our numbers beside the printed ones."""

from pathlib import Path

import pandas as pd
import pytest

from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.pipelines.commands import reproduction
from fedweave.results import published

ROOT = Path(__file__).resolve().parents[2]
UNIT = {"test_acc_pct": 1.0, "test_mse_x1e-3": 1e-3}  # as papers print
STORED = sorted((ROOT / reproduction.TABLES).rglob("*.csv"))


def row(method: str, mean: float, std: float, printed: float | None = None, spread: float | None = None) -> dict:
    """One row of a leaderboard."""
    about = {
        "study": "paper/table",
        "dataset": "cora",
        "setting": "s",
        "method": method,
        "metric": "accuracy",
        "seeds": 5,
    }
    return {**about, "mean": mean, "std": std, "client_std": 9.0, "published_mean": printed, "published_std": spread}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with a finished study."""
    monkeypatch.chdir(tmp_path)
    board = tmp_path / "results" / "paper" / "table" / "leaderboard.csv"
    board.parent.mkdir(parents=True)
    pd.DataFrame([row("A", 80.0, 0.3, 79.0, 0.4), row("B", 81.0, 0.3, 79.9, 0.4), row("C [mine]", 70.0, 1.0)]).to_csv(
        board, index=False
    )
    return tmp_path


def test_pages_show_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every study that is kept has its block, the methods of the five papers have theirs, and nothing in them is of
    yesterday.
    """
    monkeypatch.chdir(ROOT)
    pages = {path: path.read_text(encoding="utf-8") for path in (reproduction.PAGE, *reproduction.METHODS.glob("*.md"))}
    assert {path: reproduction.filled(text) for path, text in pages.items()} == pages
    blocks = {(match[2], match[3]): path for path, text in pages.items() for match in reproduction.BLOCK.finditer(text)}
    studies = {str(path.relative_to(ROOT / reproduction.TABLES).with_suffix("")) for path in STORED}
    assert {name for kind, name in blocks if kind == "study"} == studies
    own = {name: METHODS[name].label for name in ("fedaghn", "pfedgat", "pfedla", "heurpfedla", "shn", "fedsheafhn")}
    assert {path.stem: name for (kind, name), path in blocks.items() if kind == "method"} == own


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_printed_numbers_are_the_papers(path: Path) -> None:
    rows = pd.read_csv(path)
    paper, table = rows["study"].iloc[0].split("/")
    known = {cell(r.dataset, r.setting, r.method): (r.mean * UNIT[r.metric], r.std * UNIT[r.metric])
             for r in published.rows(paper) if r.table == table}  # fmt: skip
    beside = rows[rows["published_mean"].notna()]
    assert (len(beside) == 0) == path.stem.endswith("-reduced")
    for line in beside.to_dict("records"):
        printed = known[cell(line["dataset"], line["setting"], line["method"])]
        assert (line["published_mean"], line["published_std"]) == pytest.approx(
            printed, rel=1e-5
        )  # six digits are kept


def cell(dataset: str, setting: str, method: str) -> tuple[str, str, str]:
    """A place in a printed table; papers write TPT-48 and we tpt48."""
    return dataset.replace("-", ""), setting, published.canonical(method)


def test_a_difference_beyond_two_deviations_is_bold(folder: Path) -> None:
    """sqrt(0.3² + 0.4²) = 0.5: 1.0 is not beyond it twice, 1.1 is."""
    reproduction.take("paper/table")
    lines = reproduction.table("paper/table").splitlines()[2:]
    assert [line.split(" | ")[1] for line in lines] == ["B", "A", "C [mine]"]
    assert "| **+1.10** |" in lines[0]
    assert "| +1.00 |" in lines[1]
    assert "| 70.00 ± 1.00 | – | – |" in lines[2]


def test_taking_again_replaces_a_row_and_keeps_the_others(folder: Path) -> None:
    reproduction.take("paper/table")
    pd.DataFrame([row("A", 82.0, 0.1, 79.0, 0.4)]).to_csv(folder / "results/paper/table/leaderboard.csv", index=False)
    reproduction.take("paper/table")
    stored = pd.read_csv(folder / reproduction.TABLES / "paper/table.csv").set_index("method")["mean"]
    assert stored.to_dict() == {"A": 82.0, "B": 81.0, "C [mine]": 70.0}
    with pytest.raises(BadInput, match="fedweave study use paper/other"):
        reproduction.take("paper/other")
    with pytest.raises(BadInput, match="reproduction paper/other"):
        reproduction.table("paper/other")
