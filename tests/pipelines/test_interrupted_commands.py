"""Ctrl-C during a training of the command line: one line, exit code 130, and the same command goes on."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from servers import until
from typer.testing import CliRunner

from fedweave.pipelines.commands.main import app

ROOT = Path(__file__).resolve().parents[2]
# SIGINT has its usual effect again, as in a terminal: the tests themselves may run in the background of a shell.
IN_TERMINAL = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from fedweave.pipelines.commands.main import program
program()
"""
# A pause after every checkpoint: a Ctrl-C after the second one comes long before the tenth.
WITH_PAUSES = """
import time
from fedweave.runs import repetition
save = repetition.save
def save_and_wait(*args):
    save(*args)
    time.sleep(0.1)
repetition.save = save_and_wait
"""
SETTINGS = ["--rounds", "10", "--set", "train.checkpoint=1"]
RUN = ["run", "--method", "fedavg", *SETTINGS, "--set", "model.name=mlp"]
COMPARE = [
    "compare",
    "rows.csv",
    "--client",
    "shop",
    "--label",
    "late",
    "--methods",
    "local,fedavg",
    "--seeds",
    "2",
    *SETTINGS,
    "--tune",
    "0",
]
OUTPUT = {"run": "--output", "compare": "--out"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a file of rows."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    draws = np.random.default_rng(0)
    rows = {"x": draws.normal(size=400), "late": draws.integers(2, size=400), "shop": draws.choice(["A", "B"], 400)}
    pd.DataFrame(rows).to_csv("rows.csv", index=False)
    return tmp_path


def start(*words: str, before: str = "") -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", before + IN_TERMINAL, *words]
    return subprocess.Popen(command, stdout=-1, stderr=-1, text=True, start_new_session=True)


def interrupt(*words: str, sign: str) -> str:
    """The errors of a command that gets Ctrl-C when a file like `sign` is there; a terminal sends it to all processes.

    It must end with 130, and with no traceback of any process.
    """
    with start(*words, before=WITH_PAUSES) as process:
        assert until(lambda: next(Path().glob(sign), None) is not None or process.poll() is not None, 120, 0.01)
        os.killpg(process.pid, signal.SIGINT)
        errors = process.communicate(timeout=60)[1]
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    return errors


@pytest.mark.timeout(600)
@pytest.mark.parametrize("command", [RUN, COMPARE], ids=["run", "compare"])
def test_ctrl_c_says_how_to_go_on(command: list[str], folder: Path) -> None:
    """What goes on afterwards ends with the scores of an uninterrupted training, bit for bit."""
    option = OUTPUT[command[0]]
    errors = interrupt(*command, option, "stopped", sign="stopped/.fedweave/checkpoints/*/*-00000000[2-9].pt")
    lines = [line for line in errors.splitlines() if line.startswith("stopped: ")]
    assert lines == [
        "stopped: stopped has what is finished and the last checkpoints; the same command goes on from there"
    ]
    assert not [*Path("stopped", "runs").glob("*/run.json")]
    with start(*command, option, "stopped") as process:
        output = "".join(process.communicate(timeout=150))
    assert process.returncode == 0, output
    assert CliRunner().invoke(app, [*command, option, "whole"]).exit_code == 0
    files = [path.relative_to("whole") for path in Path("whole").rglob("evaluations.parquet")]
    assert files
    for file in files:
        assert Path("stopped", file).read_bytes() == Path("whole", file).read_bytes()


def test_ctrl_c_before_a_checkpoint(folder: Path) -> None:
    """A command that shall not resume would begin again."""
    words = [word.replace("checkpoint=1", "checkpoint=0") for word in RUN]
    errors = interrupt(*words, "--output", "out", "--no-resume", sign="out/partitions/digits/federation.json")
    assert "\nstopped: out has no round of it yet; the same command begins again\n" in f"\n{errors}"


def test_ctrl_c_in_the_import_of_a_compiled_module(folder: Path) -> None:
    """Python makes an `ImportError` of it, which has the Ctrl-C as its cause: the command still says what it left."""
    program = IN_TERMINAL.replace(
        "program()\n",
        """
import sys
class Finder:
    def find_spec(self, name, path, target=None):
        if name == "matplotlib.figure":
            try:
                signal.raise_signal(signal.SIGINT)
            except KeyboardInterrupt as error:
                raise ImportError("initialization failed") from error
sys.meta_path.insert(0, Finder())
program()
""",
    )
    command = [sys.executable, "-c", program, *RUN, "--output", "out"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 130, done.stderr
    assert done.stderr.endswith("stopped: out has no round of it yet; the same command begins again\n")
    assert "Traceback" not in done.stderr
