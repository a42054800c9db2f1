"""Boards: what enters, what is refused in one line, and that nothing of a contestant decides the terms."""

import shutil
from pathlib import Path

import pandas as pd
import pytest
import yaml

from fedweave import boards
from fedweave.contestants.sandbox import find_problem
from fedweave.errors import BadInput
from fedweave.files.atomic import digest_file
from fedweave.pipelines.commands.boards import submit as command

EXAMPLE = Path(__file__).parents[2] / "examples" / "board"
pytestmark = pytest.mark.skipif(bool(find_problem()), reason=f"the sandbox: {find_problem()}")
SHARES = (EXAMPLE / "contestants" / "base_rate" / "base_rate.sh").read_text(encoding="utf-8")


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """The example with one method, one seed and no contestants."""
    folder = tmp_path / "board"
    folder.mkdir()
    rows = (EXAMPLE / "rows.csv").read_text(encoding="utf-8").splitlines()
    small = [rows[0], *(row for row in rows if row.startswith(("w1,", "w2,", "w3,")))]
    (folder / "rows.csv").write_text("\n".join(small))
    terms = yaml.safe_load((EXAMPLE / "board.yaml").read_text(encoding="utf-8"))
    terms |= {"methods": ["local"], "rounds": 1, "seeds": [3], "seconds": 50}
    terms["rows"]["sha256"] = digest_file(folder / "rows.csv")
    (folder / "board.yaml").write_text(yaml.safe_dump(terms))
    return folder


def write(file: Path, text: str = SHARES) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


def content(folder: Path) -> dict[str, str]:
    """What is committed of a board."""
    files = (file for file in folder.rglob("*") if file.is_file() and "results" not in file.parts)
    return {str(file.relative_to(folder)): file.read_text(encoding="utf-8") for file in files}


def test_contestants_enter_by_themselves_and_by_a_copy(board: Path, tmp_path: Path) -> None:
    """A pull request is a copy: its new contestants enter, and its page and results count nothing."""
    entered = boards.submit(board, write(tmp_path / "shares.sh"), progress=False)
    assert entered is not None
    assert entered.methods == ("local", "shares")
    copy = shutil.copytree(board, tmp_path / "proposal", ignore=shutil.ignore_patterns("results"))
    rates = write(tmp_path / "rates" / "more.sh").parent
    write(rates / "contestant.yaml", "command: sh more.sh\nabout: shares again\n")
    boards.submit(copy, rates, progress=False)
    (copy / "README.md").write_text("we win")
    finished = {file: file.stat().st_mtime_ns for file in board.rglob("run.json")}
    judged = boards.submit(board, copy, progress=False)
    assert judged is not None
    assert set(judged.methods) == {"local", "shares", "rates"}
    page = (board / "README.md").read_text(encoding="utf-8")
    assert "`rates`: `sh more.sh`: shares again" in page
    assert "Seeds 3: a contestant runs once with each" in page
    table = pd.read_csv(board / "board.csv").set_index("method")["mean"]
    assert table["rates"] == table["shares"]
    assert all(file.stat().st_mtime_ns == time for file, time in finished.items())  # nothing has run again
    with pytest.raises(BadInput, match="proposes no new contestant"):
        boards.submit(board, copy, progress=False)
    write(copy / "contestants" / "shares" / "shares.sh", SHARES + "# better\n")
    with pytest.raises(BadInput, match=r"proposal: changes the contestant 'shares'"):
        boards.submit(board, _entered_again(copy), progress=False)
    (copy / "board.yaml").write_text((board / "board.yaml").read_text() + "# seeds\n")
    with pytest.raises(BadInput, match=r"proposal/board\.yaml: differs from that of the board"):
        boards.submit(board, copy, progress=False)


def _entered_again(copy: Path) -> Path:
    """The copy with the digests of the files that it has now."""
    place = copy / "contestants.yaml"
    entries = yaml.safe_load(place.read_text())
    entries["shares"]["sha256"] = boards.board.digest_folder(copy / "contestants" / "shares")
    place.write_text(yaml.safe_dump(entries))
    return copy


PEEK = """
import pathlib, sys
for place in ("{rows}", "{board}", "/proc/self/cwd/../..", "{results}"):
    try:
        pathlib.Path(place).read_text() if place.endswith("csv") else list(pathlib.Path(place).iterdir())
    except PermissionError:
        continue
    sys.exit("found " + place)
sys.exit("found nothing")
"""


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("peek.py", PEEK, "it ended with exit code 1: its last line: found nothing"),
        ("hang.sh", "sleep 600", "was ended after its time limit of 1 s"),
        ("greedy.py", "bytearray(1 << 33)", "exit code 1: its last line: MemoryError"),
        ("silent.sh", "true", "wrote neither this file nor one of Parquet or CSV"),
        ("short.sh", SHARES.replace("NR > 1 {print 1", "NR > 2 {print 1"), "it gave"),
        ("nan.sh", SHARES.replace("print 1 - p", 'print "nan"'), "its prediction of row 0 is nan"),
    ],
)
def test_one_that_fails_does_not_enter(board: Path, tmp_path: Path, name: str, text: str, message: str) -> None:
    """Among them one that looks for targets; the board is as before."""
    if name == "hang.sh":
        file = board / "board.yaml"
        file.write_text(file.read_text().replace("seconds: 50", "seconds: 1"))
    before = content(board)
    for word, place in (("rows", board / "rows.csv"), ("board", board), ("results", board / "results")):
        text = text.replace(f"{{{word}}}", str(place))
    with pytest.raises(BadInput) as error:
        boards.submit(board, write(tmp_path / name, text), progress=False)
    assert "it cannot enter the board" in str(error.value)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert content(board) == before


def test_what_is_the_boards_is_not_the_contestants(board: Path, tmp_path: Path) -> None:
    mine = write(tmp_path / "mine" / "mine.sh").parent
    for line in ("seeds: [1]", "timeout: 9", "memory: 1", "env: {A: 1}", "sandbox: false"):
        write(mine / "contestant.yaml", f"command: sh mine.sh\n{line}\n")
        with pytest.raises(BadInput, match=rf"mine/contestant\.yaml\.{line.split(':')[0]}: not a setting"):
            boards.submit(board, mine)
    (mine / "contestant.yaml").unlink()
    (mine / "rows").symlink_to(board / "rows.csv")
    with pytest.raises(BadInput, match="mine/rows: is a link or no file"):
        boards.submit(board, mine)
    for given, message in (
        (tmp_path / "none.py", "is not there; name a script"),
        (board / "rows.csv", "is no script"),
        (write(tmp_path / "two" / "a.sh").parent, "^two: has 2 scripts and no contestant.yaml"),
        (write(tmp_path / "a b.sh"), "'a b' is not a name"),
    ):
        if given.name == "two":
            write(given / "b.sh")
        with pytest.raises(BadInput, match=message):
            boards.submit(board, given)
    with pytest.raises(BadInput, match=r"has no board\.yaml"):
        boards.read(tmp_path)


def test_other_rows_and_other_code_are_not_judged(board: Path, tmp_path: Path) -> None:
    """Without its rows a board enters contestants and judges none."""
    rows = (board / "rows.csv").rename(tmp_path / "hidden.csv")
    command(board, write(tmp_path / "shares.sh"))
    with pytest.raises(BadInput, match="the board has a contestant 'shares'"):
        boards.submit(board, tmp_path / "shares.sh")
    with pytest.raises(BadInput, match=r"rows\.csv is not here; whoever keeps the rows judges"):
        boards.judge(boards.read(board))
    (board / "rows.csv").write_text(rows.read_text() + "\n")
    with pytest.raises(BadInput, match=r"rows\.csv has the digest \w+, and the board names"):
        boards.judge(boards.read(board), progress=False)
    write(board / "contestants" / "shares" / "shares.sh", SHARES + "# more\n")
    with pytest.raises(BadInput, match="shares has another command or digest"):
        boards.judge(boards.read(board), progress=False)
    entries = board / "contestants.yaml"
    for text, message in (("../x: {command: a, sha256: b}", "'../x' is not a name"), ("x: 3", "needs command and")):
        entries.write_text(text)
        with pytest.raises(BadInput, match=message):
            boards.read(board)


def test_the_example_is_what_its_files_say() -> None:
    board = boards.read(EXAMPLE)
    page = (EXAMPLE / "README.md").read_text(encoding="utf-8")
    assert len(board.build_all()) == 3
    assert all(f"{name} (program)" in page and entry["sha256"][:12] in page for name, entry in board.entries.items())
    assert digest_file(board.file) == board.rows.sha256
    assert board.rows.sha256[:12] in (EXAMPLE.parents[1] / "docs" / "boards.md").read_text(encoding="utf-8")


@pytest.mark.acceptance
@pytest.mark.timeout(600)
def test_the_example_is_judged_as_its_page_says(tmp_path: Path) -> None:
    """On this machine, numbers may differ in their last digits."""
    copy = shutil.copytree(EXAMPLE, tmp_path / "board", ignore=shutil.ignore_patterns("results"))
    command(copy)
    found, stored = (pd.read_csv(folder / "board.csv") for folder in (copy, EXAMPLE))
    assert found["method"].tolist() == stored["method"].tolist()
    assert found["mean"].tolist() == pytest.approx(stored["mean"].tolist(), abs=2e-3)
