"""The kernel in training and evaluation: programs, solvers, what it does not cover, and the folder of its code."""

import warnings
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from fedweave.client import kernel_forward, kernel_steps
from fedweave.client.data import ClientData
from fedweave.client.execution_mode import ExecutionMode, use_mode
from fedweave.client.solvers import SGD, Adam, Solver
from fedweave.engine.engine import run, run_round
from fedweave.engine.evaluation import evaluate
from fedweave.engine.executors import Batched, Loop, Processes
from fedweave.engine.protocol import ClientState, Update
from fedweave.engine.records import Report, Settings
from fedweave.engine.schedule import evaluation_cohort
from fedweave.engine.start import begin
from fedweave.files import stored
from fedweave.methods.fedavg import FedAvg
from fedweave.models.mlp import MLP
from fedweave.tensors import native, trees
from fedweave.tensors.mapping import map_stacked
from fedweave.tensors.trees import Tree
from fedweave.testing.contract import CLOSE, SOME, assert_close

pytestmark = pytest.mark.skipif(not native.find_compiler(), reason="no C++ compiler on this machine")
KERNEL = Batched(kernel=True)


@pytest.fixture(autouse=True)
def programs(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[Any, Any]]:
    """No programs of earlier tests: those of steps, and those of forward passes."""
    found: dict[str, dict[Any, Any]] = {"steps": {}, "forward": {}}
    monkeypatch.setattr(kernel_steps, "_PROGRAMS", found["steps"])
    monkeypatch.setattr(kernel_forward, "_PROGRAMS", found["forward"])
    return found


@pytest.mark.parametrize("kind", ["rows", "series"])
def test_training_and_evaluation_use_one_program_each_for_all_rounds(
    kind: str, programs: dict[str, dict[Any, Any]]
) -> None:
    task, federation = (make() for make in tiny.TASKS[kind])
    reports = [*run(tiny.method("fedavg", task, kind), federation, Settings(rounds=3, seed=1), KERNEL)]
    assert len(reports) == 3
    assert [len(of_one_kind) for of_one_kind in programs.values()] == [1, 1]
    assert all(program is not None for of_one_kind in programs.values() for program in of_one_kind.values())


@pytest.mark.parametrize(
    "solver",
    [
        SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
        SGD(lr=0.1, clip=0.2),
        Adam(lr=0.01, weight_decay=0.1),
        Adam(lr=0.01, clip=0.2),
    ],
)
@pytest.mark.parametrize("name", ["fedprox", "fedrep"])
def test_solvers_agree_with_the_loop(name: str, solver: Solver, programs: dict[str, dict[Any, Any]]) -> None:
    """A proximal term, two phases of training, and optimisers that are kept over rounds."""
    task, federation = (make() for make in tiny.TASKS["rows"])
    method = replace(tiny.method(name, task, "rows"), solver=solver)
    method = replace(method, training=replace(method.training, keep_optimizer=True))
    loop, kernel = ([*run(method, federation, SOME, executor)][-1] for executor in (Loop(), KERNEL))
    assert_close(kernel.state, loop.state, CLOSE)
    assert None not in programs["steps"].values()


def test_two_rounds_have_the_same_bits_in_any_chunks() -> None:
    """A client's result does not depend on the other clients."""

    def last(chunk: int) -> Report:
        task, federation = (make() for make in tiny.TASKS["rows"])
        return [*run(tiny.method("ditto", task, "rows"), federation, SOME, Batched(chunk, kernel=True))][-1]

    assert_close((last(0).state.clients, last(0).loss), (last(2).state.clients, last(1).loss), 0.0)


def test_images_have_the_same_bits_in_any_chunks_and_processes() -> None:
    task, federation = (make() for make in tiny.TASKS["images"])
    method = tiny.method("ditto", replace(task, augment=0), "images")
    executors = (Loop(kernel=True), KERNEL, Batched(2, kernel=True), Processes(2, kernel=True))
    first, *others = ([*run(method, federation, SOME, executor)][-1] for executor in executors)
    for other in others:
        assert_close((first.state.clients, first.loss), (other.state.clients, other.loss), 0.0)


def test_the_step_that_is_recorded_trains_no_client() -> None:
    """Tensors of a single client may fill their memory, so that a part of them is no copy."""
    task, federation = (make() for make in tiny.TASKS["rows"])
    method = tiny.method("fedavg", replace(task, build=lambda: MLP((6,), tiny.CLASSES, hidden=2000)), "rows")
    executors = (Loop(), Batched(1, kernel=True))
    loop, kernel = ([*run(method, federation, Settings(rounds=1), executor)][-1] for executor in executors)
    assert_close(kernel.state, loop.state, CLOSE)


def test_bits_do_not_depend_on_how_many_programs_there_were_before(
    programs: dict[str, dict[Any, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that tunes has one program for each learning rate."""
    monkeypatch.setattr(kernel_steps, "LIMIT", 2)
    task, federation = (make() for make in tiny.TASKS["rows"])

    def last(lr: float) -> Report:
        method = replace(tiny.method("fedavg", task, "rows"), solver=SGD(lr=lr))
        return [*run(method, federation, SOME, KERNEL)][-1]

    first = last(0.1)
    programs["steps"].clear()
    *_, later = [last(lr) for lr in (0.2, 0.3, 0.1)]
    assert_close(later.state, first.state, 0.0)
    assert len(programs["steps"]) == 2


class Sorted(MLP):
    """A layer that the kernel has no operation for."""

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return super().features(x.sort(-1).values, key=key, mask=mask)


def test_what_is_not_covered_runs_as_stacked_clients_do_and_says_so() -> None:
    """Steps with one warning; both have the bits of `batched`, and those of `loop` one client at a time."""
    task, federation = (make() for make in tiny.TASKS["rows"])
    task = replace(task, build=lambda: Sorted((6,), tiny.CLASSES, hidden=5))
    method, settings = tiny.method("fedavg", task, "rows"), Settings(rounds=1)
    state = begin(method, federation, 0, Batched())
    plain = run_round(method, state, federation, settings, Batched())[0]
    with pytest.warns(UserWarning, match="steps run without the kernel: aten.sort"):
        kernel = run_round(method, state, federation, settings, KERNEL)[0]
    assert_close(kernel, plain, 0.0)
    scores, others = (evaluate(method, plain, federation, settings, executor)[0] for executor in (Batched(), KERNEL))
    assert_close(scores, others, 0.0)
    one, other = (run_round(method, state, federation, settings, Loop(kernel=kernel))[0] for kernel in (False, True))
    assert_close(one, other, 0.0)


class Branching(FedAvg):
    """A method that reads a value, which stacked clients cannot have."""

    def client_update(self, shared: Tree, own: Tree, client: ClientState, data: ClientData) -> Update:
        update = super().client_update(shared, own, client, data)
        assert update.loss is not None
        return update._replace(loss=update.loss + 1 if update.loss > 0 else update.loss)


def test_one_client_at_a_time_may_read_values() -> None:
    """What stacked clients cannot do is no error of a method whose clients are computed one by one."""
    task, federation = (make() for make in tiny.TASKS["rows"])
    method = tiny.method("fedavg", task, "rows")
    method = Branching(**{field.name: getattr(method, field.name) for field in fields(method)})
    settings, state = Settings(rounds=1), begin(method, federation, 0, Loop())
    one, other = (run_round(method, state, federation, settings, Loop(kernel=kernel)) for kernel in (False, True))
    assert_close(one[0], other[0], 0.0)


def test_what_a_client_gives_twice_takes_memory_once() -> None:
    """As in the plain loop: a model that is uploaded, kept and evaluated is one tensor, not three."""
    _, federation = (make() for make in tiny.TASKS["rows"])
    cohort = evaluation_cohort(federation, 0, 0)
    wide = torch.ones(len(cohort), trees.LARGE)
    for executor in (Loop(), Loop(kernel=True)):
        upload, state, same = executor.map(lambda row, data: (*[row * data.size] * 2, row), (wide,), cohort)
        assert upload.data_ptr() == state.data_ptr()
        assert same is wide
        assert torch.equal(state[:, 0], federation.sizes)


def test_blocks_of_padding_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small clients beside a large one; padding has the output of the client's first row, and not that of row 0."""
    monkeypatch.setattr(kernel_forward, "BLOCK", 4)
    table, rows = torch.randn(9, 3), torch.full((3, 10), -1)
    rows[0], rows[1, 5:7] = torch.arange(9).roll(-1).repeat(2)[:10], torch.tensor([3, 8])
    with use_mode(ExecutionMode(kernel=True)):
        outputs = map_stacked(lambda r: kernel_forward.run_forward(lambda i: 2 * table[i.clamp(min=0)], r), rows, 3)
    expected = 2 * table[rows.clamp(min=0)]
    expected[1], expected[2] = 2 * table[3], 0
    expected[1, 6] = 2 * table[8]
    assert torch.equal(outputs, expected)


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The commands of a quick compiler; what it built is stored in `cache` of the temporary folder."""
    commands: list[str] = []

    def build(command: list[str], **_: Any) -> Any:
        if "-o" in command:
            commands.append(" ".join(command))
            Path(command[command.index("-o") + 1]).write_bytes(b"library")
        return type("Done", (), {"stdout": "a compiler 1.0"})

    monkeypatch.setattr(native.subprocess, "run", build)
    monkeypatch.setattr(stored, "folder", lambda: tmp_path / "cache")
    monkeypatch.delenv("FEDWEAVE_KERNEL", raising=False)
    return commands


def test_the_kernel_is_built_once_and_in_another_folder_where_the_first_cannot_be_written(
    tmp_path: Path, built: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").touch()
    assert native._build("g++", "float", tmp_path) == tmp_path / "kernel.so"  # none can be written
    monkeypatch.setenv("FEDWEAVE_KERNEL", str(tmp_path / "project"))
    built.clear()
    first, second = (native._build("g++", "float", tmp_path) for _ in range(2))
    assert first == second
    assert first.parent == tmp_path / "project"
    assert len(built) == 1
    assert native._build("g++", "double", tmp_path) != first


@pytest.mark.parametrize("damage", [b"", b"libra", b"another"])
def test_a_damaged_library_is_built_again(tmp_path: Path, built: list[str], damage: bytes) -> None:
    """The system may end a process that loads a part of a library."""
    library = native._build("g++", "float", tmp_path)
    library.write_bytes(damage)
    assert native._build("g++", "float", tmp_path) == library
    assert library.read_bytes() == b"library"
    assert len(built) == 2


def test_a_compiler_that_fails_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An explicit `kernel` never runs as something else without a word."""
    from fedweave.engine import executors
    from fedweave.engine.executors import Batched, choose_executor
    from fedweave.models import build

    compiler = tmp_path / "g++"
    compiler.write_text("#!/bin/sh\necho 'no space left' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    monkeypatch.setattr(stored, "folder", lambda: tmp_path / "cache")
    native.load.cache_clear()
    executors._warn_of_compiler.cache_clear()
    try:
        with pytest.warns(UserWarning, match="is not built with .*: no space left"):
            assert choose_executor("kernel", build("mlp", (6,), 2), "cpu") == Batched()
        monkeypatch.setenv("CXX", "")
        monkeypatch.setenv("PATH", str(tmp_path / "empty"))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for _ in range(2):  # two methods, and one warning
                assert choose_executor("kernel", build("mlp", (6,), 2), "cpu") == Batched()
        (line,) = caught
        assert str(line.message).startswith("the kernel needs a C++ compiler")
    finally:
        executors._warn_of_compiler.cache_clear()
        native.load.cache_clear()
