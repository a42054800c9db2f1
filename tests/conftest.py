"""Fixtures and settings of all tests. The tests share the toy tasks in this folder, and use one thread each."""

import functools
import gc
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import xdist

if TYPE_CHECKING:
    from servers import Project

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
pytest_plugins = ["limits"]
gc.disable()  # until the tests are collected
# Groups that take longest, and those of few tests that take long: at the end, one of them would leave cores idle. Those
# of `make acceptance` come first: one of them takes minutes.
FIRST = (
    "prefect",
    "tests/deployment/test_flower.py",
    "tests/test_guides.py",
    "slurm",
    "experiments",
    "projects",
    "browser",
    "tests/comparison/test_examples.py",
    "faults",
    "pipeline",
    "tracking",
    "tests/runs/test_determinism.py",
    "tests/pipelines/test_interrupted_commands.py",
    "tests/report/test_report.py",
    "tests/test_limits.py",
    "tests/pipelines/test_tune.py",
    "tests/recommendation/test_recommend.py",
    "code",
    "tests/pipelines/test_own_data.py",
    "tests/comparison/test_api.py",
    "tests/pipelines/test_flow_options.py",
    "tests/contestants/test_flbench.py",
    "tests/comparison/test_adapters.py",
    "tests/comparison/test_leaderboard.py",
    "tests/results/test_summary.py",
    "tests/contestants/test_programs.py",
    "tests/pipelines/test_answers.py",
    "tests/comparison/test_rates.py",
    "tests/pipelines/test_single_run.py",
    "tests/lifecycle/test_kills.py",
    "tests/lifecycle/test_sites.py",
    "tests/data/test_fuzz.py",
    "tests/results/test_stale.py",
    "tests/pipelines/test_exit_codes.py",
    "tests/lifecycle/test_warm_start.py",
    "tests/pipelines/test_lifecycle_commands.py",
    "tests/comparison/test_library.py",
)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make acceptance` reads only the files that name the mark, or `tiny.sweep`, which sets it: a sixth of all."""
    if config.option.markexpr != "acceptance" or not collection_path.match("test_*.py"):
        return None
    text = collection_path.read_text(encoding="utf-8")
    return None if "mark.acceptance" in text or "tiny.sweep(" in text else True


def pytest_sessionstart(session: pytest.Session) -> None:
    """Tests use one thread each. The process that distributes them needs no PyTorch, whose import takes a second."""
    if not xdist.is_xdist_controller(session):
        import torch

        torch.set_num_threads(1)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Thousands of tests and their modules stay in memory until the end, so the garbage collector can ignore them."""
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(50_000, 20, 20)  # the library's own objects take a fiftieth of the time at the default 700
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The tests of a file run in one process, which makes their shared fixtures once, unless a file sets other groups.

    The groups of `FIRST` begin first, then those of many tests: a long group at the end would leave cores idle.
    """
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
    group_of = {item: item.get_closest_marker("xdist_group").args[0] for item in items}
    sizes = Counter(group_of.values())
    places = {group: place for place, group in enumerate(FIRST)}

    def place(item: pytest.Item) -> tuple[int, int, str, Path]:
        group = group_of[item]
        return places.get(group, len(FIRST)), -sizes[group], group, item.path

    items.sort(key=place)


def pytest_make_parametrize_id(val: object, argname: str) -> str | None:
    """A long text is not part of a test's name, because all processes exchange the names."""
    return argname if isinstance(val, str | bytes) and len(val) > 100 else None


@pytest.fixture(scope="session", autouse=True)
def without_pictures_of_labels() -> Iterator[None]:
    """No picture of the clients' labels, which every call of `compare` or `fit` draws: it takes longer than a small
    training. `labels_are_drawn` draws it again.
    """
    summary = import_module("fedweave.data.summary")  # `fedweave.data.summary` is also the name of a function
    draw = summary._draw

    @functools.wraps(draw)
    def touch(path: Path, *_: object) -> None:
        path.touch()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(summary, "_draw", touch)
        yield


@pytest.fixture(scope="module", autouse=True)
def same_methods() -> Iterator[None]:
    """The table of methods is the same after a file: a contestant that a test compares is listed in it."""
    from fedweave.methods import METHODS

    before = dict(METHODS)
    yield
    METHODS.clear()
    METHODS.update(before)


@pytest.fixture
def labels_are_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures of labels as users have them, for tests of these pictures."""
    summary = import_module("fedweave.data.summary")
    monkeypatch.setattr(summary, "_draw", summary._draw.__wrapped__)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages with empty drawings, for tests of their text: drawings take most of a page's time."""
    from fedweave.plots import style

    monkeypatch.setattr(style, "_draw_svg", lambda draw, *args, **options: "<svg></svg>")


@pytest.fixture(autouse=True, scope="module")
def start_of_draws(request: pytest.FixtureRequest) -> Mapping[str, Any] | None:
    """The state of the generator `DRAWS` of a module, if it has one, before its first test."""
    draws = getattr(request.module, "DRAWS", None)
    return draws.bit_generator.state if hasattr(draws, "bit_generator") else None


@pytest.fixture(autouse=True)
def same_draws(request: pytest.FixtureRequest, start_of_draws: Mapping[str, Any] | None) -> None:
    """The draws of a test do not depend on earlier tests."""
    if start_of_draws is not None:
        request.module.DRAWS.bit_generator.state = start_of_draws


@pytest.fixture
def seeded() -> None:
    """Torch's global generator, with the same seed for every test that uses this fixture."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API of a real Prefect server, one for all tests of the group `prefect`."""
    from servers import prefect_server

    with prefect_server(tmp_path_factory.mktemp("prefect")) as api:
        yield api


@pytest.fixture(scope="session")
def partitioned_project(tmp_path_factory: pytest.TempPathFactory) -> "Project":
    """A project of three runs with partitioned data and a finished search, which tests copy to train in. `fedavg_ft`
    takes longest.
    """
    from servers import Project, study

    settings = {"digits-fedavg_ft": {"train.rounds": 60, "train.checkpoint": 1}}
    project = Project(
        tmp_path_factory.mktemp("partitioned") / "project",
        study(["digits-fedavg", "digits-local", "digits-fedavg_ft"], settings),
    )
    project.python("dvc", "repro", "tune@digits")
    return project


@pytest.fixture
def reporting(prefect_api: str) -> Iterator[str]:
    """The flows of this process report to the real server.

    Afterwards nothing of them remains: the thread of an open socket would use Python's `random` in the middle of other
    tests.
    """
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker
    from prefect.settings import PREFECT_API_URL, temporary_settings
    from servers import until

    services = (APILogWorker, EventsWorker)
    with temporary_settings({PREFECT_API_URL: prefect_api}):
        yield prefect_api
        for service in services:
            service.drain_all(timeout=10)
        mine = {f"{service.__name__}Thread" for service in services}
        assert until(lambda: not mine & {thread.name for thread in threading.enumerate()})


ROOT = Path(__file__).resolve().parent.parent
# pip's message without a network; any other error is a failure.
UNREACHABLE = ("Temporary failure in name resolution", "Network is unreachable", "NewConnectionError", "ProxyError")


@pytest.fixture(scope="session")
def flower() -> Path:
    """The interpreter of `make flower`, which is called if it is out of date."""
    build = subprocess.run(["make", "flower"], cwd=ROOT, capture_output=True, text=True, check=False)
    output = build.stdout + build.stderr
    if build.returncode and any(message in output for message in UNREACHABLE):
        pytest.skip(f"make flower: the package index cannot be reached: {output.strip().splitlines()[-1:]}")
    assert build.returncode == 0, output
    return ROOT / ".flower" / "bin" / "python"
