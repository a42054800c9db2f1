"""Programs: what they write is checked, and no process of theirs is left."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
from sklearn.dummy import DummyClassifier
from sklearn.ensemble import IsolationForest
from sklearn.linear_model import Ridge

from fedweave.contestants import environments, program, programs
from fedweave.contestants.checks import check_answers, check_bytes, check_curves, check_graph
from fedweave.contestants.exchange import read_answers, write_task
from fedweave.contestants.functions import EstimatorRunner
from fedweave.contestants.programs import run_program
from fedweave.contestants.rows import ContestAnswers, ContestClient, ContestTask
from fedweave.contestants.sandbox import find_problem, wrap
from fedweave.errors import ContestantFailed
from tests.servers import alive, until

ROOT = Path(__file__).parents[2]
PATH = {"PATH": os.environ["PATH"]}


def client(name: str, evaluated: bool = True) -> ContestClient:
    x = np.zeros((2, 1), np.float32)
    return ContestClient(name, x, np.array([0, 1]), x, np.array([0, 1]), np.zeros((3, 1), np.float32), evaluated)


TASK = ContestTask("d", "classes", 2, ("a", "b"), "accuracy", True, 0, 1, (client("Ann"), client("Bob")))
GOOD = [np.full((2, 2), 0.5), np.full((3, 2), 0.5)]


def answers(test) -> dict:
    return {"Ann": GOOD, "Bob": [GOOD[0], test]}


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ({"Ann": GOOD}, "me: client 'Bob': it gave no predictions for this client"),
        ([GOOD], "me: it gave 1 for 2 clients; give a pair (val, test) for each client in its order"),
        ([GOOD, 3], "me: client 'Bob': it gave no pair (val, test) of predictions"),
        (None, "me: it gave None; give {name of the client: (val, test)}"),
        (answers(np.full((2, 2), 0.5)), "me: client 'Bob': test: it gave 2 predictions for 3 rows"),
        (answers(0.5), "me: client 'Bob': test: it gave one number for 3 rows"),
        (answers(np.zeros(3)), "me: client 'Bob': test: it gave [3]; give a probability of each class, [3, 2]"),
        (answers([["a", "b"]] * 3), "me: client 'Bob': test: it gave no array of numbers"),
        (answers([[0.5, 0.5], [np.nan, 1], [1, 0]]), "me: client 'Bob': test: its prediction of row 1 is nan"),
        (
            answers([[0.5, 0.5], [1, 0], [2, -1]]),
            "me: client 'Bob': test: its probabilities of row 2 (2, -1) are below 0, or their sum is 1 and not 1",
        ),
    ],
)
def test_predictions_that_cannot_be_scored_are_one_line(predictions, message: str) -> None:
    assert refusal(lambda: check_answers(TASK, ContestAnswers(predictions), "me")) == message


def test_pairs_by_name_and_by_order_are_the_same() -> None:
    by_name = check_answers(TASK, {"Bob": GOOD, "Ann": GOOD[::1]}, "me")
    by_order = check_answers(TASK, [GOOD, GOOD], "me")
    assert all(np.array_equal(a, b) for i in (0, 1) for a, b in zip(by_name[i], by_order[i], strict=True))
    assert check_answers(TASK, answers([[0.3334, 0.6667]] * 3), "me")[1][1].sum(1) == pytest.approx(1, abs=1e-12)
    with pytest.raises(ContestantFailed, match=r"graph: it gave \[2, 3\]; give finite weights \[2, 2\]"):
        check_graph(TASK, np.ones((2, 3)), "me")


def write(folder: Path, position: int, part: str, text: str | None = None) -> None:
    place = folder / "clients" / str(position)
    place.mkdir(parents=True, exist_ok=True)
    if text is not None:
        (place / f"{part}.csv").write_text(text)
    else:
        np.savez(place / f"{part}.npz", outputs=GOOD[part == "test"])


def write_others(folder: Path) -> None:
    """All predictions but those of Bob's test rows."""
    for position, part in ((0, "val"), (0, "test"), (1, "val")):
        write(folder, position, part)


def refusal(check: Callable[[], object]) -> str:
    """The line by which predictions are refused."""
    with pytest.raises(ContestantFailed) as error:
        check()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "client 'Bob': clients/1/test.npz: it wrote neither this file nor one of Parquet or CSV in"),
        ('"row","p1","p2"\n1,0,1\n0,0,1\n2,0,1\n', "client 'Bob': clients/1/test.csv: its rows are not 0 to 2 in this"),
        ("row,p1,p2\n0,0,1\n", "client 'Bob': clients/1/test.csv: its rows are not 0 to 2 in this order"),
        ("p1,p2\nno,0\n", "client 'Bob': clients/1/test.csv: it cannot be read"),
        ("p1,p2\n5,0,1\n6,0,1\n7,1,0\n", "test.csv: it cannot be read: 'its rows have more values than its heading'"),
    ],
)
def test_files_that_cannot_be_read_are_one_line(tmp_path: Path, text: str | None, message: str) -> None:
    write_others(tmp_path)
    if text is not None:
        write(tmp_path, 1, "test", text)
    assert message in refusal(lambda: read_answers(TASK, tmp_path))
    write(tmp_path, 1, "test", '"row","p1","p2"\n0,0,1\n1,0,1\n2,1,0\n')
    assert check_answers(TASK, read_answers(TASK, tmp_path), "me")[1][1].tolist() == [[0, 1], [0, 1], [1, 0]]


def test_columns_with_the_names_of_classes_may_have_any_order(tmp_path: Path) -> None:
    """In a file as in a table of pandas; other names say nothing."""
    for header, expected in (("b,a", [0.9, 0.1]), (" B,A", [0.9, 0.1]), ("p1,p2", [0.1, 0.9])):
        for part, rows in (("val", 2), ("test", 3)):
            for position in (0, 1):
                write(tmp_path, position, part, f"row,{header}\n" + "".join(f"{i},0.1,0.9\n" for i in range(rows)))
        assert check_answers(TASK, read_answers(TASK, tmp_path), "me")[0][1].tolist() == [expected] * 3
        tables = [pd.DataFrame([[0.1, 0.9]] * rows, columns=header.split(",")) for rows in (2, 3)]
        assert check_answers(TASK, [tables, tables], "me")[1][0].tolist() == [expected] * 2


@pytest.mark.parametrize(
    ("classes", "header"), [(("0", "1"), "X1,X0"), (("not ok", "ok"), "ok,not.ok"), (("A", "a"), "a,A")]
)
def test_names_of_classes_as_r_writes_them(classes: tuple[str, str], header: str) -> None:
    """`data.frame` puts an X before a number, and a point in the place of other signs."""
    tables = [pd.DataFrame([[0.1, 0.9]] * rows, columns=header.split(",")) for rows in (2, 3)]
    first = check_answers(replace(TASK, classes=classes), [tables, tables], "me")[1][0][0]
    assert first.tolist() == [0.9, 0.1]


def test_a_client_may_have_no_validation_rows(tmp_path: Path) -> None:
    """Its tables have a heading alone, and an estimator gives no predictions for them."""
    x, y = np.zeros((2, 1, 2), np.float32), np.array([0, 1])
    task = replace(TASK, clients=(ContestClient("Ann", x, y, x[:0], y[:0], x),))
    write_task(task, tmp_path / "task")
    assert (tmp_path / "task" / "clients" / "0" / "val.csv").read_text() == "x1,x2,y\n"
    ((val, test),) = EstimatorRunner(DummyClassifier(), "client", False).run(task, tmp_path / "log").predictions
    assert (val.shape, test.shape) == ((0, 2), (2, 2))


@pytest.mark.parametrize("estimator", [Ridge(), IsolationForest(n_estimators=2)])
def test_an_estimator_that_predicts_no_class_is_refused(tmp_path: Path, estimator: Any) -> None:
    """Its numbers were cut to whole ones: 0.9 was class 0, and -1 the last class."""
    x, y = np.arange(4, dtype=np.float32).reshape(4, 1, 1), np.array([0, 0, 1, 1])
    task = replace(TASK, clients=(ContestClient("Ann", x, y, x, y, x),))
    with pytest.raises(ContestantFailed, match=r"predicted -?\S+: classes are 0 to 1; give a classifier"):
        EstimatorRunner(estimator, "client").run(task, tmp_path / "log")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"p1": [0.0] * 4, "p2": [1.0] * 4}, "cannot be read: 'it has more than 3 rows'"),
        ({"p1": ["0"] * 3, "p2": [1.0] * 3}, "cannot be read: \"its column 'p1' has no numbers\""),
        ({"row": [1, 0, 2], "p1": [0.0] * 3, "p2": [1.0] * 3}, "its rows are not 0 to 2 in this order"),
        (pd.DataFrame({"p1": [0.0] * 3, "p2": [1.0] * 3}, pd.Index([1, 0, 2], name="row")), "its rows are not 0 to 2"),
        ({"p1": [0.0] * 3}, "it gave [3, 1]; give a probability of each class, [3, 2]"),
        ({"row": [0, 1, 2], "p1": [0.0, 0, 1], "p2": [1, 1, 0]}, ""),
        (None, "cannot be read"),
    ],
)
def test_predictions_in_parquet(tmp_path: Path, table: dict | pd.DataFrame | None, message: str) -> None:
    """They are those of CSV; what is wrong is one line."""
    write_others(tmp_path)
    file = tmp_path / "clients" / "1" / "test.parquet"
    if table is None:
        file.write_bytes(b"PAR1 no PAR1")
    else:
        pd.DataFrame(table).to_parquet(file)
    if message:
        assert message in refusal(lambda: check_answers(TASK, read_answers(TASK, tmp_path), "me"))
    else:
        assert check_answers(TASK, read_answers(TASK, tmp_path), "me")[1][1].tolist() == [[0, 1], [0, 1], [1, 0]]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("bytes.json", "[" * 100_000, "bytes.json: it cannot be read: 'maximum recursion depth"),
        ("bytes.json", f'{{"up": {10**30}}}', "me: bytes: it gave 10"),
        ("curves.csv", "round,name,value\n1,a,inf\n", "me: curves: it gave (1, 'a', inf); give a round from 0"),
        ("curves.csv", f"round,name,value\n{10**30},a,1\n", "me: curves: it gave (10"),
        ("graph.csv", "nan,1\n1,1\n", "me: graph: it gave [2, 2]; give finite weights [2, 2]"),
        ("graph.csv", "", "me: graph: it gave [0, 1]; give finite weights [2, 2]"),
        (
            "clients/1/test.csv",
            "p1,p2\n" + "0,1\n" * 9,
            "clients/1/test.csv: it cannot be read: 'it has more than 3 rows'",
        ),
    ],
)
def test_notes_that_nobody_can_use_are_one_line(tmp_path: Path, name: str, text: str, message: str) -> None:
    write_others(tmp_path)
    if "test" not in name:
        write(tmp_path, 1, "test")
    (tmp_path / name).write_text(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert message in refusal(lambda: check_all(tmp_path))


def check_all(folder: Path) -> None:
    found = read_answers(TASK, folder)
    check_answers(TASK, found, "me")
    check_graph(TASK, found.graph, "me")
    check_bytes(found.bytes_up, "me")
    check_curves(found.curves, "me")


def test_a_link_leads_to_no_other_file(tmp_path: Path) -> None:
    """It would be read with our rights, and a message could have its first line."""
    (tmp_path / "targets.csv").write_text("p1,p2\nsecret,0\n")
    for name in ("clients/1/test.csv", "clients/1"):
        output = tmp_path / name.replace("/", "-")
        for position, part in ((0, "val"), (0, "test")):
            write(output, position, part)
        if name != "clients/1":
            write(output, 1, "val")
        (output / name).symlink_to(tmp_path / "targets.csv" if "." in name else output / "clients" / "0")
        assert refusal(partial(read_answers, TASK, output)) == f"{name}: it is a link; write a file"


def test_predictions_are_real_numbers_in_one_order() -> None:
    with pytest.raises(ContestantFailed, match="it gave no array of numbers"):
        check_answers(TASK, answers(np.full((3, 2), 0.5 + 0.1j)), "me")
    with pytest.raises(ContestantFailed, match="their sum is inf and not 1"):
        check_answers(TASK, answers(np.full((3, 2), 1e308)), "me")


@pytest.mark.skipif(bool(find_problem()), reason="no sandbox on this machine")
@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("import os; os.kill(os.getpid(), 9)", -9),
        ("import os; os.kill(os.getpid(), 15)", -15),
        ("raise SystemExit(255)", 255),
        ("raise SystemExit(3)", 3),
    ],
)
def test_a_sandbox_ends_as_its_program_does(script: str, code: int) -> None:
    """One that the kernel kills for its memory ends by SIGKILL."""
    ended = subprocess.run(wrap([sys.executable, "-S", "-c", script], []), capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (code, "")


@pytest.mark.parametrize("header", ["(" * 9000, "-" * 9000 + "1", "{'descr'"])
def test_a_header_that_no_parser_reads_is_one_line(header: str, tmp_path: Path) -> None:
    write(tmp_path, 0, "val")
    with zipfile.ZipFile(tmp_path / "clients" / "0" / "test.npz", "w") as archive:
        archive.writestr("outputs.npy", b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode())
    assert "it cannot be read: " in refusal(lambda: read_answers(TASK, tmp_path))


def test_no_object_is_unpickled(tmp_path: Path) -> None:
    write(tmp_path, 0, "val")
    np.savez(tmp_path / "clients" / "0" / "test.npz", outputs=np.array([{}, {}, {}], dtype=object))
    with pytest.raises(ContestantFailed, match="it cannot be read"):
        read_answers(TASK, tmp_path)


def run(script: str, tmp_path: Path, timeout: float = 120.0, memory: float | None = None) -> tuple[str, str]:
    log = tmp_path / "log.txt"
    reason = run_program([sys.executable, "-S", "-c", script], tmp_path, PATH, timeout, memory, log)
    return reason, log.read_text()


def test_a_program_that_ends_well_leaves_nothing(tmp_path: Path) -> None:
    assert run("print('hello')", tmp_path) == ("", "hello\n")


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    script = "import subprocess, time; print(subprocess.Popen(['sleep', '600']).pid, flush=True); time.sleep(600)"
    started = time.monotonic()
    reason, printed = run(script, tmp_path, timeout=5)
    assert reason == "was ended after its time limit of 5 s"
    assert time.monotonic() - started < 60
    assert not alive(int(printed))


def test_a_child_that_outlives_its_program_is_ended(tmp_path: Path) -> None:
    """Also one that has left the process group."""
    script = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True).pid)"
    reason, printed = run(script, tmp_path)
    assert reason == "left 1 process behind, which was ended"
    assert not alive(int(printed))


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("raise SystemExit(3)", "ended with exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", f"was ended by {signal.SIGSEGV.name}"),
        ("open('big', 'wb').truncate(1 << 31)", "ended with exit code 1"),
    ],
)
def test_a_program_that_fails_says_how(tmp_path: Path, script: str, reason: str) -> None:
    assert run(script, tmp_path)[0] == reason


def test_a_program_has_a_limit_of_memory_and_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_PASSWORD", "secret")
    assert run("bytearray(1 << 29)", tmp_path)[0] == ""
    reason, printed = run("import os; print(os.environ.get('MY_PASSWORD')); bytearray(1 << 29)", tmp_path, memory=256)
    assert reason == "ended with exit code 1"
    assert "None" in printed.splitlines()
    assert "MemoryError" in printed


CLOSED = """
import os, pathlib, socket
def tried(name, action):
    try:
        action()
        print(name, "open")
    except OSError:
        print(name, "closed")
parent = os.getppid()
tried("own", lambda: open("mine.py").read())
tried("used", lambda: open(os.environ["USED"]).read())
tried("temporary", lambda: pathlib.Path(os.environ["TMPDIR"], "x").write_text("x"))
tried("sibling", lambda: open("../targets.csv").read())
tried("folder", lambda: os.listdir(".."))
tried("overwrite", lambda: open("mine.py", "a"))
tried("create", lambda: open("../new", "w"))
tried("variables", lambda: open(f"/proc/{parent}/environ").read())
tried("memory", lambda: open(f"/proc/{parent}/mem").read(1))
tried("files", lambda: open(f"/proc/{parent}/cwd/targets.csv").read())
tried("signal", lambda: os.kill(parent, 0))
tried("network", lambda: socket.create_connection(("127.0.0.1", PORT), timeout=5))
"""


@pytest.mark.skipif(bool(find_problem()), reason=f"the sandbox: {find_problem()}")
def test_a_sandbox_closes_everything_but_what_a_program_needs(tmp_path: Path) -> None:
    """Each of them is open without it."""
    folder = tmp_path / "own"
    folder.mkdir()
    (tmp_path / "targets.csv").write_text("1")
    (tmp_path / "used.txt").write_text("1")
    with socket.create_server(("127.0.0.1", 0)) as server:
        (folder / "mine.py").write_text(CLOSED.replace("PORT", str(server.getsockname()[1])))
        lines = {}
        for sandbox in (True, False):
            given = {"env": {"USED": str(tmp_path / "used.txt")}, "uses": ["../used.txt"], "timeout": 60}
            runner = program("python -S mine.py", folder=folder, sandbox=sandbox, network=not sandbox, **given).runner
            with pytest.raises(ContestantFailed, match="it wrote neither this file"):
                runner.run(TASK, tmp_path / "log.txt")
            lines[sandbox] = dict(line.split() for line in (tmp_path / "log.txt").read_text().splitlines())
            (tmp_path / "new").unlink(missing_ok=True)
    closed = {name for name, state in lines[True].items() if state == "closed"}
    assert {*lines[True]} - closed == {"own", "used", "temporary"}
    assert {"sibling", "folder", "create", "signal", "network"} <= closed
    for name in ("sibling", "folder", "create", "variables", "signal", "network"):
        assert lines[False][name] == "open"


CONNECTING = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    socket.create_connection(server.getsockname(), timeout=5).close()
    print("localhost open")
try:
    socket.create_connection(("127.0.0.1", PORT), timeout=5)
    print("network open")
except OSError:
    print("network closed")
open("../new", "w").close()
"""


@pytest.mark.skipif(bool(find_problem(files=False)), reason=f"the network: {find_problem(files=False)}")
@pytest.mark.parametrize("network", [False, True])
def test_the_network_is_closed_unless_it_is_asked_for(tmp_path: Path, network: bool) -> None:
    """To a program without a sandbox, too. Its own localhost, which workers of libraries use, is open."""
    (tmp_path / "own").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as server:
        (tmp_path / "own" / "mine.py").write_text(CONNECTING.replace("PORT", str(server.getsockname()[1])))
        entry = program("python -S mine.py", folder=tmp_path / "own", network=network, timeout=60)
        with pytest.raises(ContestantFailed, match="it wrote neither this file"):
            entry.runner.run(TASK, tmp_path / "log.txt")
    state = "open" if network else "closed"
    assert (tmp_path / "log.txt").read_text().split("\n")[:2] == ["localhost open", f"network {state}"]
    assert (tmp_path / "new").exists()
    assert entry.record["contestant"]["network"] == state
    assert ("the network was open to it" in entry.record["contestant"]["unequal"]) == network


HIDDEN = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "-S", "-c", "import time; time.sleep(600)", MARK], {})
time.sleep(1)
"""


@pytest.mark.skipif(bool(find_problem()), reason=f"the sandbox: {find_problem()}")
@pytest.mark.parametrize(
    ("end", "message"),
    [
        ("", "exit code 125: its last line: it left processes behind, which were ended"),
        ("raise SystemExit(7)", "exit code 7"),
        ("os.abort()", "was ended by SIGABRT"),
        ("time.sleep(600)", "time limit of 4 s"),
    ],
)
def test_no_child_hides_in_a_sandbox(tmp_path: Path, end: str, message: str) -> None:
    """One that has left the group, lost its parent and cleared its variables, so that only the kernel knows it."""
    mark = f"hidden-{os.getpid()}-{len(message)}"
    (tmp_path / "mine.py").write_text(HIDDEN.replace("MARK", repr(mark)) + end + "\n")
    runner = program("python -S mine.py", folder=tmp_path, sandbox=True, timeout=4 if "600" in end else 60).runner
    with pytest.raises(ContestantFailed, match=message):
        runner.run(TASK, tmp_path / "log.txt")
    time.sleep(0.1)
    assert not [p for p in psutil.process_iter() if _named(p, mark)]


def _named(process: psutil.Process, mark: str) -> bool:
    try:
        return mark in process.cmdline() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def test_a_program_may_not_fill_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Many files, each of which is small enough; they are removed with the task."""
    monkeypatch.setattr(programs, "LARGEST_OUTPUT", 1 << 20)
    monkeypatch.setattr(programs, "LOOK", 0.1)
    text = "for i in range(40): open(f'{sys.argv[2]}/{i}', 'wb').write(bytes(1 << 16))"
    (tmp_path / "mine.py").write_text(f"import os, sys, time\nprint(os.environ['TMPDIR'])\n{text}\ntime.sleep(600)\n")
    with pytest.raises(ContestantFailed, match="it was ended: its files had more than 1048576 bytes"):
        program("python -S mine.py", folder=tmp_path, timeout=60).runner.run(TASK, tmp_path / "log.txt")
    assert not Path((tmp_path / "log.txt").read_text().strip()).exists()


def test_the_script_in_r_is_a_contestant(tmp_path: Path) -> None:
    """As the page prints it."""
    ask = ["Rscript", "-e", "library(jsonlite)"]
    if not which("Rscript") or subprocess.run(ask, capture_output=True).returncode:
        pytest.skip("R with jsonlite is not installed")
    (text,) = re.findall(r"^```r\n(.*?)^```$", (ROOT / "docs" / "contestants.md").read_text(), re.MULTILINE | re.DOTALL)
    (tmp_path / "mine.R").write_text(text)
    answered = program("Rscript mine.R", folder=tmp_path, timeout=120).runner.run(TASK, tmp_path / "log.txt")
    assert [part.shape for part in check_answers(TASK, answered, "me")[0]] == [(2, 2), (3, 2)]


def test_what_a_program_prints_is_limited_and_obeyed_by_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(programs, "LARGEST_LOG", 1 << 20)
    monkeypatch.setattr(programs, "LOOK", 0.1)
    assert run("while True: print('x' * 1000)", tmp_path, 60)[0] == "was ended: it printed more than 1048576 bytes"
    (tmp_path / "log.txt").write_text("first\n\x1b[31mred\x07 " + "long " * 1000)
    shown = environments.last_line(tmp_path / "log.txt")
    assert shown.isprintable()
    assert len(shown) <= 400


def test_an_environment_is_built_once_from_requirements(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a wheel beside the file, so that no network is needed; it takes some seconds."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    about = "tiny_package-1.dist-info"
    with zipfile.ZipFile(tmp_path / "tiny_package-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("tiny_package.py", "word = 'from its own environment'\n")
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny-package\nVersion: 1\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    (tmp_path / "needs.txt").write_text("./tiny_package-1-py3-none-any.whl\n")
    (tmp_path / "mine.py").write_text("import tiny_package; raise SystemExit(tiny_package.word)\n")
    (tmp_path / "none.txt").write_text("./no-such.whl\n")
    runner = program("python mine.py", folder=tmp_path, requirements="needs.txt").runner
    with pytest.raises(ContestantFailed, match="from its own environment"):
        runner.run(TASK, tmp_path / "log.txt")
    python = environments.prepare(tmp_path / "needs.txt")
    assert python.is_file()
    monkeypatch.setenv("PATH", "")  # nothing more is built
    monkeypatch.setattr(sys, "executable", "/none")
    assert environments.prepare(tmp_path / "needs.txt") == python
    with pytest.raises(FileNotFoundError):
        environments.prepare(tmp_path / "none.txt")


PLAYING = """
import sys
from pathlib import Path
from fedweave.contestants import program
from tests.contestants.test_programs import TASK
program("python -S mine.py", folder=sys.argv[1], sandbox=sys.argv[2] == "True").runner.run(TASK, Path("log.txt"))
"""


@pytest.mark.skipif(bool(find_problem()), reason=f"the sandbox: {find_problem()}")
@pytest.mark.parametrize("sandbox", [False, True])
def test_a_program_ends_with_a_killed_referee(tmp_path: Path, sandbox: bool) -> None:
    (tmp_path / "mine.py").write_text("import os, time\nprint('begun', flush=True)\ntime.sleep(600)\n")
    command = [sys.executable, "-c", PLAYING, str(tmp_path), str(sandbox)]
    env = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "TMPDIR": str(tmp_path)}
    log = tmp_path / "log.txt"
    with subprocess.Popen(command, cwd=tmp_path, env=env) as referee:
        assert until(lambda: log.exists() and log.read_text() == "begun\n")
        (folder,) = tmp_path.glob("fedweave-contestant-*")
        assert [p for p in psutil.process_iter() if _named(p, str(folder / "task"))]
        referee.kill()
    time.sleep(0.5)
    assert not [p for p in psutil.process_iter() if _named(p, str(folder / "task"))]
