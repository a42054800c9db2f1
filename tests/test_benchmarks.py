"""The benchmarks: equal kernels for all, phases whose times add up, and contestants that take the same steps."""

import ast
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import benchmarks.__main__ as bench
from benchmarks import contestant, gpu, growth, peers, raw, scale, shares
from benchmarks.workloads import WORKLOADS, images
from fedweave.engine.engine import run_round
from fedweave.engine.executors import Batched, Loop
from fedweave.engine.records import Settings
from fedweave.engine.start import begin
from fedweave.errors import BadInput
from fedweave.tensors.storage import temporary_storage

ROOT = Path(__file__).resolve().parent.parent


def pinned(file: str, package: str) -> str:
    """The version of `package` in a file of pins."""
    match = re.search(rf"^{package}==(\S+)", (ROOT / file).read_text(encoding="utf-8"), re.MULTILINE)
    assert match
    return match[1]


def test_peers_run_on_the_same_kernels() -> None:
    assert pinned("benchmarks/peers.txt", "torch") == pinned("constraints.txt", "torch")


# Imports the peers' side and takes a step by hand in an environment with only the packages that the arguments name.
WITHOUT_THE_REST = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder
from importlib.metadata import packages_distributions

allowed = {*sys.argv[1:]}
theirs = {
    name
    for name, owners in packages_distributions().items()
    if not allowed & {owner.lower().replace("_", "-") for owner in owners}
}

class Bare:
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] not in theirs - {"benchmarks", "fedweave", "pipelines"}:
            return PathFinder.find_spec(name, path, target)

sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Bare]
import torch
from benchmarks import contestant, peers, raw
peers.train_client("mlp", raw.network("mlp").state_dict(), 0)
"""


def declared() -> set[str]:
    """The packages in benchmarks/peers.txt."""
    lines = (ROOT / "benchmarks" / "peers.txt").read_text(encoding="utf-8").splitlines()
    return {re.split(r"[\[=<>~ ]", line)[0].lower() for line in lines if line and not line.startswith("#")}


def needs(package: str) -> set[str]:
    """The packages that the import of an installed package needs, with itself."""
    packages, waiting = set[str](), [package]
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in packages:
            packages.add(name)
            requirements = map(Requirement, metadata.requires(name) or [])
            waiting += [r.name for r in requirements if not r.marker or r.marker.evaluate({"extra": ""})]
    return packages


PEERS_OWN = {"flwr", "jax", "pfl"}


@pytest.mark.acceptance
def test_our_side_runs_in_the_peers_environment() -> None:
    """The peers themselves are not installed here. All other imported packages are declared with them."""
    installed = set[str]().union(*map(needs, declared() - PEERS_OWN))
    environment = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]), "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    command = [sys.executable, "-c", WITHOUT_THE_REST, *installed]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_peers_environment_has_the_packages_that_our_side_imports() -> None:
    """The test reads the source of the module, so it needs no process that imports it."""
    files = (Path(peers.__file__), Path(peers.__file__).with_name("jax_rounds.py"))
    nodes = [node for file in files for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    modules = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    modules += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    imported = {name.partition(".")[0] for name in modules} - sys.stdlib_module_names - {"benchmarks", "fedweave"}
    assert PEERS_OWN < imported <= declared()


def test_peers_take_part_if_they_are_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROOT", tmp_path)
    assert [name for name, _ in bench.contestants("mlp")] == ["raw", "loop", "batched", "kernel"]
    (tmp_path / bench.PEERS_PYTHON).parent.mkdir(parents=True)
    (tmp_path / bench.PEERS_PYTHON).touch()
    assert [name for name, _ in bench.contestants("cnn")] == ["raw", "loop", "bfloat16", "pfl", "flwr"]
    assert [name for name, _ in bench.contestants("gcn")] == ["raw", "loop", "batched"]
    assert [name for name, _ in bench.contestants("gru")] == ["raw", "loop", "batched", "kernel", "jax"]


def test_an_unknown_workload_and_a_failed_raw_limit_are_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["benchmarks", "nosuch"])
    with pytest.raises(SystemExit):
        bench.main()
    assert "error: nosuch is not a workload; choices: cnn, " in capsys.readouterr().err
    monkeypatch.setattr(bench, "measure", lambda *_: "no memory")
    with pytest.raises(SystemExit, match="mlp: the raw limit was not measured"):
        bench.compare("mlp", 1, 2, 1)


@pytest.mark.acceptance
@pytest.mark.timeout(900)
def test_the_benchmark_runs_without_the_peers(tmp_path: Path) -> None:
    """A fresh clone runs every contestant of one workload in its own process, and prints the table."""
    command = [sys.executable, "-m", "benchmarks", "tpt", "--repeats", "1", "--rounds", "2", "--json"]
    done = subprocess.run([*command, str(tmp_path / "x")], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not done.stderr
    rows = json.loads((tmp_path / "x").read_text(encoding="utf-8"))["rows"]
    assert [row["who"] for row in rows] == ["raw", "loop", "batched", "kernel"]
    assert all(row["milliseconds"] > 0 for row in rows)


@pytest.mark.parametrize("name", ["pfedhn", "pfedgat"])
def test_a_servers_share_is_measured(name: str) -> None:
    """It is the share of a round with its evaluation, for methods without and with a graph between clients."""
    work = images("mlp", 3, shape=(4,), samples=20)
    total, server = shares.late_rounds(work.method(name), work, Batched(), 2)
    assert 0 < server < total


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_raw_model_has_our_number_of_parameters(name: str) -> None:
    """So all contestants do the same work."""
    ours = sum(p.numel() for p in WORKLOADS[name]().task.template.parameters())
    assert ours == sum(p.numel() for p in raw.network(name).parameters())


def test_a_peer_takes_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Flower client that trains by hand from given weights has the batches, loss and step of ours."""
    monkeypatch.setitem(WORKLOADS, "mlp", lambda: images("mlp", 1, shape=(32,), samples=150))
    threads, work = torch.get_num_threads(), WORKLOADS["mlp"]()
    state = begin(work.method(), work.federation, 0, Loop())
    after = run_round(work.method(), state, work.federation, Settings(rounds=1), Loop())[0]
    names = raw.network("mlp").state_dict()
    weights = dict(zip(names, state.server["model"].values(), strict=True))
    peers._prepare.cache_clear()
    model, examples = peers.train_client("mlp", weights, 0)
    torch.set_num_threads(threads)
    assert examples == 150
    for expected, actual in zip(after.server["model"].values(), model.state_dict().values(), strict=True):
        torch.testing.assert_close(actual, expected)


def test_there_are_seconds_for_every_round() -> None:
    ticks = itertools.accumulate([0.0, 5.0, 1.0, 2.0, 1.0, 3.0])
    assert contestant.time_rounds(lambda: None, 3, lambda: next(ticks)) == [5.0, 2.0, 3.0]


def test_phases_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """An inner phase has its own time, except inside a server or an evaluation. The functions are restored."""
    now = [0.0]
    monkeypatch.setattr(shares.time, "process_time", lambda: now[0])

    def spend(seconds: float, *inner: str) -> None:
        now[0] += seconds
        for name in inner:
            getattr(work, name)()

    work = SimpleNamespace(
        backward=lambda: spend(3.0),
        forward=lambda: spend(2.0, "backward"),
        server=lambda: spend(5.0, "forward"),
        evaluation=lambda: spend(7.0, "forward", "server"),
    )
    before = dict(vars(work))
    with shares.time_phases({name: [(work, name)] for name in vars(work)}) as clock:
        now[0] += 1.0
        work.forward()
        work.evaluation()
    assert clock.seconds == {"rest": 1.0, "forward": 2.0, "backward": 3.0, "evaluation": 12.0, "server": 10.0}
    assert vars(work) == before


@pytest.mark.parametrize("executor", ["loop", "batched"])
def test_every_phase_of_training_is_measured(
    executor: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The wrapped functions exist, and each executor calls them."""
    monkeypatch.setitem(WORKLOADS, "mlp", lambda: images("mlp", 3, shape=(32,), samples=150))
    monkeypatch.setitem(shares.PROFILED, "mlp", executor)
    seconds: list[dict[str, float]] = []
    measure = shares.time_phases

    @contextmanager
    def keep_seconds(places: dict[str, list[shares.Place]]) -> Iterator[shares.Clock]:
        with measure(places) as clock:
            yield clock
        seconds.append(clock.seconds)

    monkeypatch.setattr(shares, "time_phases", keep_seconds)
    threads = torch.get_num_threads()
    shares.rounds("mlp")
    torch.set_num_threads(threads)
    assert all(seconds[0][phase] > 0 for phase in shares.PHASES)
    assert executor in capsys.readouterr().out


def test_a_round_on_a_gpu_without_a_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal is one line. With a device, stacked clients are timed on it."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(BadInput, match="no CUDA device"):
        gpu.measure("tpt", "batched")
    assert gpu.measure("tpt", "batched", "cpu", 1) > 0


def test_growth_prints_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    threads = torch.get_num_threads()
    growth.measure(growth.Case("clients", "3 clients", "mlp", 3, Batched(2), options={"hidden": 4}))
    torch.set_num_threads(threads)
    line = capsys.readouterr().out
    assert "3 clients" in line
    assert "182 parameters" in line
    assert "batched, 2 clients at once" in line


def test_shares_of_evaluation_are_counts_of_passes(capsys: pytest.CaptureFixture[str]) -> None:
    """Two forward passes of the graph, and five steps of three passes: 2 of 17."""
    shares.evaluations()
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("Cora"))
    assert f"{200 / 17:.1f} %" in line


@pytest.mark.parametrize("method", ["fedper", "fedaghn"])
def test_growth_has_a_line_for_many_clients(method: str) -> None:
    """The line has the described run: three rounds, tables in files, and one evaluation."""
    line = scale.Line("mlp", method, 12)
    work, executor, participation = scale.workload(line)
    assert participation == 1.0
    with temporary_storage() as files:
        usual, last = scale.time_last_rounds(line, work, executor, participation, files)
        assert any(file.stat().st_size for file in files.folder.iterdir())
    assert 0 < usual
    assert 0 < last
    assert [*scale.lines("fedamp")] == [
        scale.Line(model, "fedamp", n) for model in ("cnn", "mlp") for n in scale.CLIENTS
    ]
