"""`train.store`: runs with the tables of all clients in files give the results of runs in memory, also after a kill."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import tiny
from hosts import planned, rows_of, same
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

import fedweave as fw
from fedweave.client.solvers import SGD
from fedweave.engine.engine import run, run_round
from fedweave.engine.executors import Loop
from fedweave.engine.records import Report
from fedweave.engine.schedule import Training
from fedweave.files.atomic import load_tensors
from fedweave.graphs.quality import MEANING, SOURCES
from fedweave.methods import METHODS
from fedweave.models import parameter_count
from fedweave.runs import checkpoints, repetition
from fedweave.runs.build import PreparedRun
from fedweave.tensors import trees
from fedweave.tensors.storage import temporary_storage
from fedweave.tensors.tables import Table
from fedweave.tensors.trees import tree_leaves
from fedweave.testing.contract import CLOSE, SOME, assert_close

KINDS = ("rows", "nodes", "images", "series")
QUICK = {"fedamp", "fedaghn", "ditto"}
# Tables that grow, for every method. Those of a fixed size differ from them by less code.
CASES = [
    *((name, False) for name in sorted(QUICK)),
    *(pytest.param(name, True, marks=[] if name in QUICK else [pytest.mark.acceptance]) for name in METHODS),
]


@pytest.mark.parametrize(("name", "late"), CASES)
def test_every_method_has_the_results_of_tables_in_memory(name: str, late: bool) -> None:
    """State and scores are equal, with partial participation, and when two clients join late."""
    kind = next(kind for kind in KINDS if tiny.suits(name, kind))
    method, federation = tiny.pair(name, kind)
    settings = replace(SOME, newcomers=2, join_round=1) if late else SOME
    *_, expected = run(method, federation, settings, Loop())
    with temporary_storage() as files:
        *_, last = run(method, federation, replace(settings, storage=files), Loop())
        assert_close((last.state, last.scores), (expected.state, expected.scores), CLOSE)


LARGE_RESULTS = [
    pytest.param(name, marks=[] if name in {*QUICK, "fedsage", "fedper"} else [pytest.mark.acceptance])
    for name in METHODS
]


@pytest.mark.parametrize("participation", [1.0, 0.6])
@pytest.mark.parametrize("name", LARGE_RESULTS)
def test_large_results_of_clients_go_to_files(name: str, participation: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here all are large. Optimisers are kept, so that every kind of result is there."""
    monkeypatch.setattr("fedweave.tensors.storage.LARGE", 1)
    kind = next(kind for kind in KINDS if tiny.suits(name, kind))
    task, federation = (make() for make in tiny.TASKS[kind])
    training = Training(batch_size=4, epochs=2, keep_optimizer=True)
    method = tiny.method(name, task, kind, solver=SGD(lr=0.05, momentum=0.9), training=training)
    settings = replace(SOME, rounds=3, participation=participation)
    *_, expected = run(method, federation, settings, Loop())
    with temporary_storage() as files:
        *_, last = run(method, federation, replace(settings, storage=files), Loop())
        assert_close((last.state, last.scores, last.models), (expected.state, expected.scores, expected.models), CLOSE)
        private = tree_leaves((last.state.clients, last.state.optimizers, last.models["pre"]))
        assert all(isinstance(leaf, Table) for leaf in private if leaf.ndim > 1)


@pytest.mark.parametrize("name", ["ditto", "fedper"])
def test_models_of_a_report_keep_their_values(name: str) -> None:
    """Those of an earlier round may be the reported ones. Their small tensors are copies, not rows of a file."""
    method, federation = tiny.pair(name)
    with temporary_storage() as files:
        settings = replace(SOME, rounds=5, participation=1.0, storage=files)
        models = [report.models for report in run(method, federation, settings, Loop())]
    expected = [report.models for report in run(method, federation, replace(settings, storage=None), Loop())]
    assert_close(models, expected, CLOSE)


class LargestTensor(TorchDispatchMode):
    """Bytes of the largest tensor that an operation made in memory; views and tables in files are none."""

    nbytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        old = {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if type(t) is Tensor}
        for made in tree_leaves(result):
            if type(made) is Tensor and made.untyped_storage().data_ptr() not in old:
                self.nbytes = max(self.nbytes, made.nbytes)
        return result


def test_no_round_has_the_generators_of_all_clients_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """FedSage+ keeps a generator for every client, here of up to 45 kB. In memory there are two of them at most."""
    monkeypatch.setattr("fedweave.tensors.storage.LARGE", 1)
    monkeypatch.setattr("fedweave.tensors.tables.BLOCK", 1)
    task, federation = (make() for make in tiny.TASKS["nodes"])
    method = tiny.method("fedsage", task, "nodes", wide=256, bank_size=4, generator_rounds=1)
    layer = max(p.numel() for p in method.network.parameters()) * task.dtype.itemsize
    with LargestTensor() as in_memory:
        [*run(method, federation, replace(SOME, rounds=2, participation=1.0), Loop())]
    with temporary_storage() as files, LargestTensor() as in_files:
        [*run(method, federation, replace(SOME, rounds=2, participation=1.0, storage=files), Loop())]
    assert in_memory.nbytes >= federation.clients * layer
    assert in_files.nbytes <= 2 * layer


@pytest.mark.parametrize("name", ["fedamp", "fedfomo", "pfedla", "direct_matrix"])
def test_a_round_reads_no_complete_table(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads, mixtures and their derivatives read only the rows that they need."""
    method, federation = tiny.method(name, tiny.rows_task(), "rows"), tiny.rows_federation()
    with temporary_storage() as files:
        first, *_ = run(method, federation, replace(SOME, storage=files), Loop())
        assert any(isinstance(leaf, Table) for leaf in tree_leaves(first.state.server))
        with monkeypatch.context() as patch:
            patch.setattr(Table, "to_tensor", lambda table: pytest.fail(f"{table.shape} is read as a whole"))
            run_round(method, first.state, federation, SOME, Loop())


def prepared(name: str, **train: Any) -> PreparedRun:
    """A run of six clients, half of which take part in a round, with a checkpoint every second round."""
    plan = planned(METHODS[name](), rows_of(6), rounds=7, participation=3, checkpoint=2, **train)
    return repetition.prepare(plan.study.run(next(iter(plan.study.runs))), *plan.inputs)


def run_and_kill(bench: PreparedRun, folder: Path, round: int) -> None:
    """Run `bench` in another process. Kill it after `round` has written its rows and before its checkpoint."""
    child = os.fork()
    if child:
        assert os.waitpid(child, 0)[1] == signal.SIGKILL
        return

    def end(report: Report) -> None:
        if report.round == round:
            os.kill(os.getpid(), signal.SIGKILL)

    try:
        repetition.run_repetition(bench, 3, folder, end)
    finally:
        os._exit(1)


@pytest.mark.parametrize("name", ["fedamp", "fedaghn"])
def test_a_killed_run_continues_with_the_same_bits(name: str, tmp_path: Path) -> None:
    """The rows of the last checkpoint are unchanged, even if a newer checkpoint is damaged. The finished run has no
    files of rows.
    """
    bench = prepared(name, store="mapped")
    whole = repetition.run_repetition(bench, 3, tmp_path / "whole")
    assert not [*(tmp_path / "whole").glob("*-rows")], "a finished repetition has no rows"
    folder = tmp_path / "killed"
    run_and_kill(bench, folder, 1)
    for round in (2, 5, 6):
        run_and_kill(bench, folder, round)
    files = checkpoints.list_checkpoints(folder, bench.run, 3)
    assert [int(path.stem[-9:]) for path in files] == [4, 2]
    files[0].write_bytes(files[0].read_bytes()[:100])
    run_and_kill(bench, folder, 4)
    assert [*folder.glob("*-rows/*.rows")]
    assert same(repetition.run_repetition(bench, 3, folder), whole)
    assert not [*folder.glob("*-rows")]


def test_a_checkpoint_continues_in_the_other_kind_of_store(tmp_path: Path) -> None:
    """The place of the tables is not part of a run's specification."""
    files, memory = prepared("fedper", store="mapped"), prepared("fedper", store="memory")
    assert files.run.fingerprint() == memory.run.fingerprint() == prepared("fedper").run.fingerprint()
    whole = repetition.run_repetition(memory, 3)
    for first, second in ((files, memory), (memory, files)):
        folder = tmp_path / first.run.train.store
        run_and_kill(first, folder, 5)
        assert same(repetition.run_repetition(second, 3, folder), whole)


def test_checkpoints_have_no_rows(tmp_path: Path) -> None:
    """They name the files. A removed run leaves no files."""
    bench = prepared("fedamp", store="mapped")
    run_and_kill(bench, tmp_path, 5)
    _, server, clients, _ = load_tensors(checkpoints.list_checkpoints(tmp_path, bench.run, 3)[0])["state"]
    stored = sum(leaf.numel() for leaf in tree_leaves((server["models"], clients)) if hasattr(leaf, "shape"))
    assert stored < 3 * parameter_count(bench.method.task.template), (
        "the default rows of two tables, and no rows of clients"
    )
    with checkpoints.open_storage(tmp_path, bench, 3) as tables:
        state, _ = checkpoints.restore(tmp_path, bench, 3, tables)
    assert state is not None
    assert all(isinstance(leaf, Table) for leaf in tree_leaves((state.server["models"], state.clients)))
    checkpoints.remove(tmp_path, bench.run)
    assert [*tmp_path.iterdir()] == []


def test_the_default_is_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are the default from two gigabytes of models on."""
    assert not prepared("fedamp").has_mapped_tables
    assert prepared("fedamp", store="mapped").has_mapped_tables
    monkeypatch.setattr("fedweave.runs.build.LARGE_TABLE", 1000)
    assert prepared("fedamp").has_mapped_tables
    assert not prepared("fedamp", store="memory").has_mapped_tables
    generators = tiny.method("fedsage", tiny.TASKS["nodes"][0](), "nodes", wide=256)
    monkeypatch.setattr("fedweave.runs.build.LARGE_TABLE", 4 * 6 * parameter_count(generators.network) - 1)
    assert not prepared("fedamp").has_mapped_tables
    assert replace(prepared("fedamp"), method=generators).has_mapped_tables
    monkeypatch.setattr("fedweave.runs.build.LARGE_TABLE", 1000)
    monkeypatch.setattr("os.sysconf", lambda name: 100)
    with pytest.raises(fw.BadInput, match=r"evaluate\.clients: 6 clients .* evaluate a sample of up to"):
        prepared("fedamp", store="mapped")
    assert not prepared("fedamp", store="memory").has_mapped_tables
    with pytest.raises(fw.BadInput, match=r"store: 'disk' is unknown"):
        prepared("fedamp", store="disk")


@pytest.mark.parametrize("name", ["fedamp", "fedaghn"])
@pytest.mark.parametrize("stored", [False, True])
def test_very_many_clients_are_mixed_in_parts(name: str, stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One client at a time, without a graph of all clients: models and scores are the same. No graph is recorded."""
    method, federation = tiny.pair(name)
    *_, expected = run(method, federation, SOME, Loop())
    monkeypatch.setattr("fedweave.graphs.weights.LARGEST_GRAPH", 0)
    monkeypatch.setattr("fedweave.graphs.weights.PART", 1)
    monkeypatch.setattr("fedweave.families.weaving.CELLS", 1)
    monkeypatch.setattr("fedweave.tensors.tables.BLOCK", 1)
    with temporary_storage() as files:
        *_, last = run(method, federation, replace(SOME, storage=files if stored else None), Loop())
        server = {**last.state.server, "fixed": trees.omit(last.state.server["fixed"], ["cosines"])}
        expected_server = {**expected.state.server, "fixed": trees.omit(expected.state.server["fixed"], ["cosines"])}
        assert_close(
            (server, last.state.clients, last.scores), (expected_server, expected.state.clients, expected.scores), CLOSE
        )
    assert MEANING[SOURCES] in expected.diagnostics
    assert MEANING[SOURCES] not in last.diagnostics
