"""Exit codes of commands that Ctrl-C ends, or that find another run in the folder, as the documentation has them."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import toy_project
import yaml

from fedweave.errors import Busy
from fedweave.pipelines.launching import locking
from tests.servers import HOLD, process, python, until

ROOT = Path(__file__).resolve().parents[2]
# SIGINT has its usual effect again, as in a terminal: the tests themselves may run in the background of a shell.
IN_TERMINAL = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A DVC project of four stages, none of which has run; it is the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    toy_project.make(tmp_path)
    return tmp_path


@pytest.mark.parametrize("ends_itself", [True, False], ids=["at work", "at its start"])
def test_ctrl_c_ends_a_run_with_130(project: Path, ends_itself: bool) -> None:
    """A terminal sends SIGINT to all processes. A stage that is still importing has no handler of its own yet."""
    Path("hold").touch()
    if ends_itself:
        step = Path("step.py").read_text()
        work = "from fedweave.pipelines.processes import run_main\ndef main(_):\n    "
        head, hold, rest = step.partition("while ")
        Path("step.py").write_text(head + work + (hold + rest).strip().replace("\n", "\n    ") + "\nrun_main(main)\n")
    command = [sys.executable, "-c", IN_TERMINAL, sys.executable, "-m", "fedweave.pipelines.launching.reproduce"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, start_new_session=True) as run:
        assert until(lambda: any(Path("pids").iterdir()), 120)
        os.killpg(run.pid, signal.SIGINT)
        output, errors = run.communicate(timeout=60)
    assert run.returncode == 130, output + errors
    assert "(1 stopped)" in output


def test_a_second_ctrl_c_ends_a_run_whose_stage_does_not_end(project: Path) -> None:
    """DVC ends with it, and the lock is free."""
    Path("hold").touch()
    ignored = "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
    Path("step.py").write_text(ignored + Path("step.py").read_text())
    command = [sys.executable, "-c", IN_TERMINAL, sys.executable, "-m", "fedweave.pipelines.launching.reproduce"]
    with subprocess.Popen(command, stdout=-1, stderr=-1, text=True, start_new_session=True) as run:
        assert until(lambda: any(Path("pids").iterdir()), 120)
        for _ in range(2):
            time.sleep(1)  # in which the first one would have ended it
            assert run.poll() is None
            os.killpg(run.pid, signal.SIGINT)
        _, errors = run.communicate(timeout=60)
    Path("hold").unlink()
    assert (run.returncode, errors) == (130, "")

    def is_free() -> bool:
        with suppress(Busy), locking.hold():
            return True
        return False

    assert until(is_free, 20)


def test_a_failed_stage_ends_a_run_with_the_code_of_dvc(project: Path) -> None:
    Path("fail").touch()
    done = subprocess.run([sys.executable, "-m", "fedweave.pipelines.launching.reproduce"], check=False, stdout=-1)
    assert done.returncode == 255


def test_another_run_in_the_folder_is_no_wrong_input(tmp_path: Path) -> None:
    """`study use` ends with 1 then, as `study run` and a flow do. A wrong name ends it with 2, also then."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONUNBUFFERED": "1"}
    partition = {"name": "iid", "clients": 3, "seed": 0}
    task = {"dataset": "digits", "setting": "iid", "partition": partition, "model": {"name": "mlp"}}
    tasks = {"digits": {**task, "train": {"rounds": 1, "lr": 0.1, "batch_size": 0}}}
    runs = {"digits-fedavg": {"task": "digits", "method": "fedavg"}}
    study = {"study": "mine", "seeds": [0], "tasks": tasks, "runs": runs, "methods": {"fedavg": {}}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(study))

    use = partial(python, "-m", "fedweave.pipelines.commands.main", "study", "use", folder=tmp_path)
    with process([sys.executable, "-c", HOLD], tmp_path, environment, tmp_path / "log") as other:
        assert until((tmp_path / "log").read_text), "nobody has the lock"
        refused, wrong = use("mine.yaml"), use("nosuch.yaml")
    assert refused.stderr.startswith(f"error: another run is active in this folder (process {other.pid})")
    assert (refused.returncode, wrong.returncode) == (1, 2)
