"""Real servers on free ports, the project's pipeline in folders of their own, and processes that end with the test."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

from dvc.repo import Repo

from fedweave.pipelines.commands.params_file import dump

ROOT = Path(__file__).resolve().parent.parent
PARTS = (
    "src",
    "pipelines",
    "studies",
    "dvc.yaml",
    "prefect.yaml",
    ".env",
    ".dvcignore",
    ".gitignore",
    "pyproject.toml",
)


# Handwritten digits of scikit-learn, divided among ten clients: a task that trains in a second.
DIGITS = {
    "dataset": "digits",
    "setting": "dir0.3",
    "normalize": "unit",
    "partition": {"name": "dirichlet", "clients": 10, "seed": 666, "beta": 0.3},
    "model": {"name": "small_cnn"},
    "train": {"rounds": 2, "epochs": 1, "batch_size": 32, "lr": 0.05},
    "evaluate": {"every": 1, "select": "best_val_round"},
}


# A program that holds the lock of its folder.
HOLD = """import time
from fedweave.pipelines.launching import locking
with locking.hold():
    print(1)
    time.sleep(99)
"""


def free_port() -> int:
    """A port of loopback without a listener."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(condition: Callable[[], bool], seconds: float = 60.0, pause: float = 0.1) -> bool:
    """Whether `condition` becomes true in time; it is asked every `pause` seconds."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(pause)
    return condition()


def answers(address: str) -> bool:
    """Whether a GET of `address` succeeds."""
    try:
        with urlopen(address, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def python(*words: str, folder: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """What `python words` prints in `folder` (default: the current one). It imports this checkout."""
    command, sources = [sys.executable, *words], os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    variables = {**os.environ, "PYTHONPATH": sources, **env}
    return subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)


def state(pid: int) -> str:
    """The letter of a process's state, for example "Z" for a zombie or "T" if it is stopped. Empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # the second one if it ends between the opening and the reading
        return ""


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    return state(pid) not in ("", "Z")


def running(words: str, folder: Path) -> list[int]:
    """The processes in `folder` whose command line contains `words`."""
    pids = []
    for entry in Path("/proc").iterdir():
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if (
                entry.name.isdigit()
                and words in line
                and (entry / "cwd").resolve() == folder.resolve()
                and alive(int(entry.name))
            ):
                pids.append(int(entry.name))
        except OSError:
            continue
    return pids


def newest_checkpoint(folder: Path) -> int:
    """The round of the newest checkpoint of a repetition with seed 0 of the project in `folder`; 0 if there is none.

    The log shows a round before its checkpoint is written.
    """
    files = (folder / ".fedweave" / "checkpoints").rglob("[!.]*-0-[0-9]*.pt")
    return max((int(path.stem.rpartition("-")[2]) for path in files), default=0)


@contextmanager
def http_server(port: int = 0, **methods: Callable[[BaseHTTPRequestHandler], None]) -> Iterator[int]:
    """A server on loopback with `methods` such as do_GET; yields its port."""
    handler = type("Handler", (BaseHTTPRequestHandler,), {"log_message": lambda *_: None, **methods})
    with ThreadingHTTPServer(("127.0.0.1", port), handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        try:
            yield server.server_port
        finally:
            server.shutdown()


@contextmanager
def process(
    command: Sequence[str], folder: Path, env: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in the background, with its output in `log`. Its group ends with the block."""
    with log.open("wb") as file:
        started = subprocess.Popen(
            command, cwd=folder, env={**os.environ, **env}, stdout=file, stderr=file, start_new_session=True
        )
    try:
        yield started
    finally:
        if started.poll() is None:
            os.killpg(started.pid, signal.SIGTERM)
        try:
            started.wait(15)
        except subprocess.TimeoutExpired:
            started.kill()
            started.wait()
        with suppress(ProcessLookupError):  # processes that it started and did not end
            os.killpg(started.pid, signal.SIGKILL)


@contextmanager
def prefect_server(home: Path) -> Iterator[str]:
    """A Prefect server with its own database. Yields the address of its API."""
    port = free_port()
    api = f"http://127.0.0.1:{port}/api"
    env = {"PREFECT_HOME": str(home), "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "PREFECT_API_DATABASE_TIMEOUT": "60"}
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port)]
    home.mkdir(parents=True, exist_ok=True)
    with process(command, home, env, home / "server.log"):
        assert until(lambda: answers(f"{api}/health"), 120), (home / "server.log").read_text()
        yield api


def study(runs: Sequence[str], settings: Mapping[str, Mapping[str, object]] | None = None) -> str:
    """params.yaml of a study that takes seconds: `runs` on digits, one seed, one trial.

    `settings` are those of single runs (`{"digits-local": {"train.rounds": 9}}`).
    """
    methods = {run: run.partition("-")[2] for run in runs}
    return dump(
        {
            "study": "small",
            "about": "",
            "seeds": [0],
            "datasets": ["digits"],
            "tasks": {"digits": DIGITS},
            "runs": {
                run: {
                    "task": "digits",
                    "method": name,
                    **({"set": dict(settings[run])} if run in (settings or {}) else {}),
                }
                for run, name in methods.items()
            },
            "methods": {name: {} for name in methods.values()},
            "tune": {"trials": 1, "share": 0.5, "seeds": [1000], "workers": 1, "spaces": {}},
            "ablate": {},
            "margins": {},
        }
    )


class Project:
    """A folder with the project in it, under DVC without git."""

    def __init__(self, folder: Path, params: str, remote: Path | None = None, source: Path = ROOT):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        for part in PARTS:
            if (source / part).is_dir():
                shutil.copytree(source / part, folder / part, symlinks=True, ignore=shutil.ignore_patterns("*.pyc.*"))
            else:
                shutil.copy(source / part, folder / part)
        # Imports come from the copy, commands from the environment of the tests.
        self.env = {
            "PYTHONPATH": os.pathsep.join([str(folder / "src"), str(folder)]),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}",
            "PREFECT_HOME": str(folder / ".prefect"),
            "OMP_NUM_THREADS": "1",
        }
        Repo.init(str(folder), no_scm=True).close()
        self.configure(remote)
        if params:
            (folder / "params.yaml").write_text(params)

    def python(self, module: str, *words: str, check: bool = True, **env: str) -> subprocess.CompletedProcess[str]:
        """Run `python -m module words` in the project."""
        done = python("-m", module, *words, folder=self.folder, **{**self.env, **env})
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def copy(self, folder: Path, remote: Path | None = None) -> "Project":
        """Copy the project with its data, results and DVC's records to another folder."""
        other = object.__new__(Project)
        other.folder, other.env = (
            folder,
            {name: value.replace(str(self.folder), str(folder)) for name, value in self.env.items()},
        )
        # The server of DVC's stages may be ending: it removes its files meanwhile.
        shutil.copytree(self.folder, folder, symlinks=True, ignore=shutil.ignore_patterns("forkserver"))
        other.configure(remote)
        return other

    def configure(self, remote: Path | None) -> None:
        """DVC does not look for a newer version, and shares files by the folder `remote`."""
        with Repo(str(self.folder)) as repo, repo.config.edit() as config:
            config["core"]["check_update"] = False
            if remote:
                config["core"]["remote"], config["remote"]["shared"] = "shared", {"url": str(remote)}

    def background(self, *words: str, **env: str) -> "contextmanager[subprocess.Popen[bytes]]":
        """Run `python -m words` in the project until the block ends. Its output goes to a file next to the project."""
        log = self.folder.parent / f"{self.folder.name}-{words[0].rpartition('.')[2]}.log"
        return process([sys.executable, "-m", *words], self.folder, {**self.env, **env}, log)
