"""The same study gives the same numbers: the same bits on one machine, and numbers within a tolerance for other threads
and executors.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedweave import data
from fedweave.engine import records, start
from fedweave.engine.executors import Loop, Processes
from fedweave.processes import forks, parallel
from fedweave.runs import archive, build, federations, repetition, selection, tasks
from fedweave.runs.build import PreparedRun
from fedweave.runs.history import History, record, select_rows
from fedweave.study import objects, spec, validate
from fedweave.tensors import native
from fedweave.tensors.trees import tree_leaves
from tests.study.test_spec import good

ROOT = Path(__file__).resolve().parents[2]
# float64 weights after the rounds below, relative to the distance that training has moved them: 1e-15 was measured.
# Another order of additions changes the last bits of a sum. In float32 these bits can decide which of two nearly equal
# pixels is the maximum of a pool, and the gradient jumps: 1e-6 was measured, and 1e-3 for a client with such a pair.
TOLERANCE = 1e-13
ROWS = {"digits": 500, "digits-graph": 1000}
RUNS = {
    "digits-fedaghn": "digits",
    "digits-fedavg_ft": "digits",
    "digits-pfedhn": "digits",
    "graph-fedsheafhn": "graph",
}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Every test begins with one thread, independent of the test before."""
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(1)


@cache
def load(name: str) -> data.Dataset:
    """The first digits, and the edges between them."""
    whole, rows = data.load(name, "unused"), ROWS[name]
    edges = None if whole.edges is None else whole.edges[:, whole.edges.max(0) < rows]
    return replace(whole, x=whole.x[:rows], y=whole.y[:rows], edges=edges)


def prepared(key: str, model: str = "", **train: Any) -> PreparedRun:
    """A short run on digits or their graph, `digits` with another model on request."""
    content = good()
    for name in RUNS.values():
        content["tasks"][name]["train"] |= {"rounds": 2, "epochs": 1, **train}
    if model:
        content["tasks"]["digits"]["model"] = {"name": model}
    content["runs"] = {name: {"task": task, "method": name.partition("-")[2]} for name, task in RUNS.items()}
    content["methods"] = {"pfedhn": {"server_lr": 0.01}, "fedsheafhn": {"enrol_epochs": 2}}
    run = validate.check(spec.parse(content)).run(key)
    dataset = load(run.task.dataset)
    return repetition.prepare(run, dataset, data.partition(dataset, **run.task.partition))


def in_double(key: str, **train: Any) -> PreparedRun:
    """The same run in float64."""
    prepared_run = prepared(key, **train)
    dataset = load(prepared_run.run.task.dataset)
    partition = data.partition(dataset, **prepared_run.run.task.partition)
    task = tasks.build_task(prepared_run.run, dataset, partition, torch.float64)
    federation = federations.build_federation(dataset, partition, prepared_run.run.task.normalize, torch.float64)
    return replace(
        prepared_run,
        method=objects.build_method(prepared_run.run, task),
        federation=replace(prepared_run.federation, shared=federation.shared, own=federation.own),
    )


@cache
def reference(key: str) -> History:
    """The first seed of a run on one thread, computed once for all tests."""
    torch.set_num_threads(1)
    return repetition.run_repetition(prepared(key), 0)


@cache
def one_by_one(key: str) -> History:
    """The same repetition with one client after the other."""
    torch.set_num_threads(1)
    return repetition.run_repetition(prepared(key, executor="loop"), 0)


def digest(history: History) -> str:
    """A digest of all results of a repetition but its times."""
    content = hashlib.sha256()
    for leaf in tree_leaves(
        (
            history.scores,
            history.diagnostics,
            history.graphs,
            history.snapshot,
            [row[:3] + row[4:] for row in history.ledger],
        )
    ):
        content.update(leaf.contiguous().numpy().tobytes() if isinstance(leaf, torch.Tensor) else repr(leaf).encode())
    return content.hexdigest()


def assert_near(a: History, b: History, key: str) -> None:
    """Every client's stored model agrees. The tolerance is relative to its distance from the initial model."""
    prepared_run = in_double(key)
    initial = start.initial_model(prepared_run.method, prepared_run.federation, 0)
    first, second = a.snapshot["models"], b.snapshot["models"]
    assert first.keys() == second.keys() >= initial.keys()
    apart = sum((first[n] - second[n]).flatten(1).square().sum(1) for n in initial)
    moved = sum((second[n] - value).flatten(1).square().sum(1) for n, value in initial.items())
    assert len(moved) == prepared_run.federation.clients
    assert (apart <= TOLERANCE**2 * moved).all()


@pytest.mark.parametrize("key", RUNS)
def test_the_same_run_twice_is_the_same_bits(key: str) -> None:
    """Scores, diagnostics, graphs and models are equal."""
    prepared_run = prepared(key)
    assert (
        digest(repetition.run_repetition(prepared_run, 0))
        == digest(reference(key))
        != digest(repetition.run_repetition(prepared_run, 1))
    )


NAN = float("nan")


@pytest.mark.parametrize("rule", ["best_val_round", "per_client_best_val", "last"])
@pytest.mark.parametrize(
    "rounds",
    [
        [[50, 60, 70], [60, 60, 60], [60, 50, 70]],  # equal means: the earliest round
        [[NAN, 60, 70], [10, 20, 30], [20, 20, 30]],  # a first round that cannot be chosen
        [[50, NAN, 70], [60, NAN, 50], [70, NAN, 60]],  # a client without validation rows
        [[NAN, 1, 1], [1, NAN, 1], [1, 1, NAN], [0, 0, 0]],
        [[NAN, 1], [2, NAN], [1, NAN]],  # a client with a value only in a round that is not reported
        [[1, 2], [3, 1], [2, 2, 2], [4, 1, 3]],  # one joins
    ],
)
def test_kept_models_are_those_of_the_reported_rounds(rule: str, rounds: list[list[float]]) -> None:
    """After every round, each client has the model of the round that `selection.select` chooses."""
    for history, expected in record_rounds(rule, rounds):
        np.testing.assert_array_equal(history.snapshot["models"]["w"][:, 0], expected)


@pytest.mark.parametrize("rule", ["best_val_round", "per_client_best_val", "last"])
@pytest.mark.parametrize("absent", [0, 1])
def test_storing_models_costs_the_same_in_every_round(rule: str, absent: int) -> None:
    """After each of many rounds with equal means, missing values and a newcomer, the reported models are stored. Few
    rows are read again.
    """
    rng = np.random.default_rng(absent)
    values = rng.integers(0, 40, (120, 7)) / 7
    values[rng.uniform(size=values.shape) < 0.02] = np.nan
    values[:, :absent] = np.nan  # the clients without validation rows
    rounds = [row.tolist() if r >= 60 else row[:-1].tolist() for r, row in enumerate(values)]
    for history, expected in record_rounds(rule, rounds):
        np.testing.assert_array_equal(history.snapshot["models"]["w"][:, 0], expected)
        assert len(history.snapshot["rows"]) <= 2 * len(expected)


def record_rounds(rule: str, rounds: list[list[float]]) -> Iterator[tuple[History, np.ndarray]]:
    """After each of `rounds` with these validation values: the stored models, and the reported round of each client."""
    prepared_run = prepared("digits-fedavg_ft")
    prepared_run = replace(
        prepared_run, run=replace(prepared_run.run, evaluate=replace(prepared_run.run.evaluate, select=rule))
    )
    history, state = History(), start.begin(prepared_run.method, prepared_run.federation, 0, Loop())
    for r, values in enumerate(rounds, start=1):
        # The choice may read validation values of the run's own metric only; all others would choose other rounds.
        validated, others = torch.tensor(values), -torch.tensor(values)
        scores = {point: {"val": others, "test": others} for point in ("pre", "post")}
        scores[prepared_run.point] = {"val": validated, "test": others}
        models = {point: {"w": torch.full((len(values), 2), float(r))} for point in ("pre", "post")}
        history = record(
            history, records.Report(r, 0, 0, 0.0, 1.0, (), scores, models, {}, state, prepared_run.method), prepared_run
        )
        reported = select_rows(history, prepared_run)
        seen = np.array([[*row, *[NAN] * (len(values) - len(row))] for row in rounds[:r]])
        np.testing.assert_array_equal(reported, selection.select(seen, range(1, r + 1), rule, higher_is_better=True))
        # If no round can be reported yet, the newest models are stored.
        yield history, np.full(len(values), float(r)) if reported is None else 1.0 + reported


def test_the_order_of_runs_does_not_change_results() -> None:
    """Earlier runs do not affect generators, defaults or caches."""
    forth = {key: digest(reference(key)) for key in RUNS}
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002
    back = {key: digest(repetition.run_repetition(prepared(key), 0)) for key in reversed(RUNS)}
    assert forth == back


@pytest.mark.parametrize(
    "executor",
    [
        "auto",
        pytest.param("kernel", marks=pytest.mark.skipif(not native.find_compiler(), reason="no C++ compiler here")),
    ],
)
def test_parallel_repetitions_have_the_same_bits(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of repetitions in sequence in one process."""
    monkeypatch.setattr(build, "SMALL_RUN", 0)
    prepared_run = prepared("digits-fedaghn", "mlp" if executor == "kernel" else "", executor=executor)
    assert prepared_run.share_cores(2)[1] == min(2, parallel.cores())
    together = repetition.run_repetitions(prepared_run, tmp_path)
    torch.set_num_threads(1)
    assert {seed: digest(history) for seed, history in together.items()} == {
        s: digest(repetition.run_repetition(prepared_run, s)) for s in prepared_run.run.seeds
    }


@pytest.mark.skipif(not native.find_compiler(), reason="no C++ compiler on this machine")
def test_parallel_repetitions_build_the_kernel_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the process from which they fork."""
    prepared_run, file, build_library = (
        prepared("digits-fedaghn", "mlp", executor="kernel"),
        tmp_path / "pids",
        native._build,
    )

    def recorded(*inputs: Any) -> Path:
        with file.open("a", encoding="utf-8") as lines:
            lines.write(f"{os.getpid()}\n")
        return build_library(*inputs)

    monkeypatch.setattr(native, "_build", recorded)
    monkeypatch.setattr(build, "SMALL_RUN", 0)
    native.load.cache_clear()
    repetition.run_repetitions(prepared_run, tmp_path / "checkpoints")
    assert file.read_text(encoding="utf-8").split() == [str(os.getpid())]


@pytest.mark.parametrize(
    "key",
    [
        "graph-fedsheafhn",
        *(pytest.param(key, marks=pytest.mark.acceptance) for key in RUNS if key != "graph-fedsheafhn"),
    ],
)
def test_threads_stay_within_the_tolerance(key: str) -> None:
    """One thread is compared with two."""
    one = repetition.run_repetition(in_double(key), 0)
    torch.set_num_threads(2)
    assert_near(repetition.run_repetition(in_double(key), 0), one, key)


@pytest.mark.parametrize("key", RUNS)
def test_executors_stay_within_the_tolerance(key: str) -> None:
    """The loop over clients is compared with all at once and with chunks. Scores have the precision of studies."""
    prepared_run = prepared(key, executor="loop")
    one, double = one_by_one(key), repetition.run_repetition(in_double(key, executor="loop"), 0)
    rows = (prepared_run.federation.test >= 0).sum(1).numpy()
    for chunk in (0, 3):
        batched = {"executor": "batched", "chunk": chunk}
        assert_near(repetition.run_repetition(in_double(key, **batched), 0), double, key)
        other = repetition.run_repetition(prepared(key, **batched), 0)
        actual, expected = (archive.select_scores(prepared_run, history) for history in (other, one))
        assert (np.abs(actual - expected) / 100 * rows).sum() < 1.5  # one test row of all clients


@pytest.mark.skipif(not forks.can_train_in_forks(), reason="needs Linux without a GPU")
@pytest.mark.parametrize("key", RUNS)
def test_clients_in_processes_give_the_same_bits(key: str) -> None:
    """The loop over clients is compared with two and with three processes."""
    loop = digest(one_by_one(key))
    for count in (2, 3):
        processes = replace(prepared(key, executor="processes"), executor=Processes(count))
        assert digest(repetition.run_repetition(processes, 0)) == loop


@pytest.mark.skipif(not forks.can_train_in_forks(), reason="needs Linux without a GPU")
@pytest.mark.parametrize(("available", "repetitions", "expected"), [(1, 1, 1), (4, 1, 4), (6, 2, 3), (2, 3, 1)])
def test_repetitions_share_the_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, available: int, repetitions: int, expected: int
) -> None:
    """CNNs train one client per core, whatever the number of threads; the partition of a later split does too."""
    used: list[int] = []
    run_jobs = forks.map_jobs

    def record(job: Any, count: int, processes: int) -> Any:
        used.append(processes)
        return run_jobs(job, count, processes)

    for module in (parallel, build):
        monkeypatch.setattr(module, "cores", lambda: available)
    monkeypatch.setattr(build, "SMALL_RUN", 0)
    monkeypatch.setattr(forks, "map_jobs", record)
    monkeypatch.setattr(repetition, "run_processes", lambda *args, **options: None)  # so that all run here
    run = prepared("digits-fedavg_ft")
    run = replace(run, run=replace(run.run, seeds=(*range(repetitions),)))
    run = replace(run, split=lambda seed, first=run: first)
    repetition.run_repetitions(run, tmp_path)
    assert set(used) == ({expected} if expected > 1 else set())


def test_repetitions_of_a_small_run_need_no_processes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They end before a fork would pay. With more rounds, they run in parallel."""
    monkeypatch.setattr(parallel, "cores", lambda: 2)
    monkeypatch.setattr(repetition, "run_processes", lambda *args, **options: pytest.fail("forked"))
    run = prepared("digits-fedavg_ft", "linear")
    assert run.share_cores(2)[1:] == (1, 1)
    assert {*repetition.run_repetitions(run, tmp_path)} == {*run.run.seeds}
    longer = prepared("digits-fedavg_ft", "linear", rounds=100)
    assert longer.share_cores(2)[1:] == (2, 1)


PROGRAM = """
import os, sys; sys.path[:0] = [{src!r}, {root!r}, {tests!r}]
import torch; torch.set_num_threads(1)
from fedweave.runs import repetition
from tests.runs.test_determinism import prepared, digest
print(digest(repetition.run_repetition(prepared("digits-fedaghn"), 0)), flush=True)
os._exit(0)
"""


def test_another_process_and_hash_seed_give_the_same_bits() -> None:
    """No result depends on the order of a set."""
    program = PROGRAM.format(src=str(ROOT / "src"), root=str(ROOT), tests=str(ROOT / "tests"))
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == digest(reference("digits-fedaghn"))
