"""Stacked training: captured closures, clients trained outside of the transform, sparse features."""

import gc
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from naive import build_method
from torch import Tensor, nn
from torch.func import vmap
from torch.utils._pytree import tree_map, tree_structure

from fedweave.client import kernel_steps
from fedweave.client.data import ClientData
from fedweave.client.local_training import Fit, descend
from fedweave.client.solvers import SGD, Adam, GroupedSolver
from fedweave.engine.clients import Cohort
from fedweave.engine.engine import run, run_round
from fedweave.engine.executors import Batched, Loop, choose_executor, describe
from fedweave.engine.records import Settings
from fedweave.engine.schedule import evaluation_cohort
from fedweave.engine.start import begin
from fedweave.engine.subgraphs import stack_clients
from fedweave.graphs.controls import GraphControl
from fedweave.models import SparseMatrix, build
from fedweave.models.gcn import add_column_order, project
from fedweave.processes import forks
from fedweave.tensors import dropout_keys, native, trees
from fedweave.tensors.closures import VOLATILE, capture
from fedweave.tensors.trees import Params, Tree

needs_compiler = pytest.mark.skipif(not native.find_compiler(), reason="no C++ compiler on this machine")


@dataclass(frozen=True)
class Bag:
    """Two tensors and a number that the function must not read."""

    a: Tensor
    parts: dict[str, Tensor]
    turn: int = field(metadata=VOLATILE)


def closure(bag: Bag, scale: float, offset: Tensor) -> Callable[[Tensor], Tensor]:
    def inner(x: Tensor, shift: Tensor = offset) -> Tensor:
        return scale * bag.a * x + bag.parts["b"] + shift

    return partial(lambda f, x: f(x) + offset, inner)


def test_graphs_of_all_clients_are_read_without_a_copy() -> None:
    """A cohort of all clients copies no arrays. A cohort of some clients has only theirs."""
    federation = tiny.nodes_federation()
    all_clients = evaluation_cohort(federation, 0, 0)
    few, own = all_clients.chunk(1, 3).client_tensors(), all_clients.client_tensors()
    for name, array in federation.own.items():
        assert own[f"own/{name}"].data_ptr() == array.data_ptr()
        assert torch.equal(few[f"own/{name}"], array[1:3])


def test_captured_closures_compute_the_same() -> None:
    """Every captured tensor is listed once. Rebuilt with other tensors, the function is the one made from them."""
    a, b, c, x = (torch.randn(3) for _ in range(4))
    captured = capture(closure(Bag(a, {"b": b}, 1), 2.0, c))
    assert sorted(map(id, captured.tensors)) == sorted(map(id, (a, b, c)))
    other = {id(t): torch.randn(3) for t in captured.tensors}
    expected = closure(Bag(other[id(a)], {"b": other[id(b)]}, 9), 2.0, other[id(c)])
    assert torch.equal(captured.rebuild([other[id(t)] for t in captured.tensors])(x), expected(x))


def test_forms_distinguish_functions() -> None:
    """Tensors and volatile fields do not change a form. Numbers, code and structure do."""
    ones = torch.ones(3)

    def form(scale: float, turn: int, names: tuple[str, ...] = ("b",)) -> object:
        return capture(closure(Bag(ones, dict.fromkeys(names, ones), turn), scale, ones)).form

    assert form(2.0, 1) == form(2.0, 5)
    assert hash(form(2.0, 1)) == hash(form(2.0, 5))
    assert form(2.0, 1) != form(3.0, 1)
    assert form(2.0, 1) != form(2.0, 1, ("b", "c"))
    assert capture(lambda x: x + 1).form != capture(lambda x: x + 2).form
    assert len({capture(value).form for value in (1, 1.0, True, "1", None)}) == 5


def test_forms_compare_dataclasses_by_value() -> None:
    """Records without a tensor are equal if their fields are. Those of another type or number are not."""
    first, again, other = (capture(SGD(lr=lr)).form for lr in (0.1, 0.1, 0.2))
    assert first == again
    assert hash(first) == hash(again)
    assert first != other != capture(Adam(lr=0.2)).form


def test_a_rebuild_has_no_reference_to_a_tensor() -> None:
    """The parts that are kept with a program do not keep the data of its first round in memory."""
    values = [torch.ones(3) for _ in range(3)]
    captured = capture(partial(closure(Bag(values[0], {"b": values[1]}, 1), 2.0, values[2]), values[0]))
    references, rebuild = [weakref.ref(value) for value in values], captured.rebuild
    del captured
    values.clear()
    gc.collect()
    assert [reference() for reference in references] == [None] * 3
    assert rebuild([torch.ones(3)] * 3)().tolist() == [5.0] * 3  # 2 · 1 · 1 + 1 + 1 + 1


@needs_compiler
@pytest.mark.filterwarnings("ignore:steps run without the kernel")
@pytest.mark.parametrize(
    ("name", "control"), [("pfedgat", True), ("fedsheafhn", True), ("fedpub", True), ("apfl", False)]
)
def test_no_round_records_again(name: str, control: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses and solvers of one run have the same form in every round, for any object that has them."""
    programs: dict[Any, Any] = {}
    monkeypatch.setattr(kernel_steps, "_PROGRAMS", programs)
    kind = "rows" if tiny.suits(name, "rows") else "nodes"
    task, federation = (make() for make in tiny.TASKS[kind])
    method = replace(tiny.method(name, task, kind), control=GraphControl("shuffled") if control else None)
    counts = [len(programs) for _ in run(method, federation, Settings(rounds=4), Batched(kernel=True))]
    assert counts[0] > 0
    assert counts[1] == counts[-1]


def test_volatile_fields_cannot_be_read() -> None:
    """A rebuilt loss that reads the round fails, instead of reading that of another round."""

    def looks(bag: Bag) -> Callable[[], Tensor]:
        return lambda: bag.a * (2.0 if bag.turn else 1.0)

    captured = capture(looks(Bag(torch.ones(2), {}, 3)))
    with pytest.raises(TypeError, match="volatile"):
        captured.rebuild(captured.tensors)()


SOLVERS = {
    "sgd": SGD(lr=0.1, momentum=0.9, weight_decay=0.01),
    "clipped": SGD(lr=0.5, clip=0.1),
    "adam": Adam(lr=0.05, weight_decay=0.1),
    "grouped": GroupedSolver(solvers={"w": Adam(lr=0.1), "b": SGD(lr=0.2)}),
}


@pytest.mark.parametrize("solver", SOLVERS.values(), ids=SOLVERS)
def test_stacked_descent_is_descent_of_each(solver: SGD | Adam | GroupedSolver) -> None:
    """Some steps are padding for a client. Each client gets the result of its training alone, with loss and state."""
    n, rows = 4, torch.tensor([[[[0, 1], [2, -1]]], [[[3, 4], [-1, -1]]], [[[5, 6], [7, 8]]], [[[1, 2], [9, -1]]]])
    x, target = torch.randn(n, 10, 3, dtype=torch.float64), torch.randn(n, 10, dtype=torch.float64)
    start = {
        "w": torch.randn(n, 3, dtype=torch.float64),
        "b": torch.randn(n, dtype=torch.float64),
        "fixed": torch.ones(n, dtype=torch.float64),
    }

    def trained(
        model: dict[str, Tensor], x: Tensor, target: Tensor, plan: Tensor, key: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        def loss(model: dict[str, Tensor], rows: Tensor, key: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            squared = (x[rows.clamp(min=0)] @ model["w"] + model["b"] * model["fixed"] - target[rows.clamp(min=0)]) ** 2
            return torch.where(rows >= 0, squared, 0.0).sum() + dropout_keys.uniform(key, ()).to(squared) * model[
                "b"
            ], {}

        trimmed = plan if masked else [[r[r >= 0] for r in epoch if (r >= 0).any()] for epoch in plan]
        fit = descend(loss, model, trimmed, solver, key, ("w", "b"), masked=masked)
        return fit.model, fit.loss

    masked, key = True, dropout_keys.fold(dropout_keys.key(3), torch.arange(n))
    together = vmap(trained)(start, x, target, rows, key)
    masked = False
    for i in range(n):
        model, mean = trained({k: v[i] for k, v in start.items()}, x[i], target[i], rows[i], key[i])
        torch.testing.assert_close(together[1][i], mean)
        for name, value in model.items():
            torch.testing.assert_close(together[0][name][i], value, rtol=1e-10, atol=1e-12)


@dataclass(frozen=True)
class Halving(SGD):
    """Each step is half as long as the one before. Only its first length is an integer."""

    def init(self, params: Params) -> Tree:
        return {"length": torch.ones((), dtype=torch.int64)}

    def step(self, params: Params, grads: Params, state: Tree) -> tuple[Params, Tree]:
        params = {name: value - self.lr * state["length"] * grads[name] for name, value in params.items()}
        return params, {"length": state["length"] / 2}

    step_ = step

    def can_stack(self, state: Tree) -> bool:
        return False


@needs_compiler
def test_a_step_that_changes_types_is_not_repeated_by_the_kernel() -> None:
    """A program does not check the types of its inputs, so it would misread the second length."""
    federation = tiny.rows_federation()
    method = replace(tiny.method("fedavg_ft", tiny.rows_task(), "rows"), solver=Halving(lr=0.1))
    state = begin(method, federation, 0, Batched())
    plain = run_round(method, state, federation, Settings(rounds=1), Batched())[0]
    with pytest.warns(UserWarning, match=r"without the kernel: torch.int64 .* becomes torch.float32"):
        fast = run_round(method, state, federation, Settings(rounds=1), Batched(kernel=True))[0]
    assert all(map(torch.equal, trees.tree_leaves(plain.server), trees.tree_leaves(fast.server)))


def test_trees_are_mapped_like_those_of_pytree() -> None:
    """Dictionaries, named and plain tuples and lists, nested and empty. Trees of different structure are refused."""
    a = {
        "x": torch.ones(2),
        "y": (torch.zeros(1), [torch.ones(3), {}]),
        "z": Fit({"w": torch.ones(1)}, (), torch.ones(())),
    }
    b = trees.tree_map(lambda t: 3 * t, a)
    actual, expected = trees.tree_map(torch.sub, a, b), tree_map(torch.sub, a, b)
    assert tree_structure(actual) == tree_structure(expected) == tree_structure(a)
    assert all(map(torch.equal, trees.tree_leaves(actual), trees.tree_leaves(expected)))
    for other in ({**a, "more": torch.ones(1)}, {**a, "y": (torch.zeros(1),)}):
        with pytest.raises(ValueError):  # noqa: PT011 (two messages: names, or lengths)
            trees.tree_map(torch.sub, a, other)


def test_stacking_copies_only_what_changed() -> None:
    """Leaves that clients return as rows of one tensor give that tensor. Leaves given twice give one. All others are
    copied.
    """
    whole = {"a": torch.randn(4, 3), "b": torch.randn(4, 2)}
    rows = [trees.at(whole, i) for i in range(4)]
    fresh = [{"a": row["a"], "b": 2 * row["b"]} for row in rows]
    copied = trees.stack([{**row, "again": row["b"]} for row in fresh])
    assert copied["a"] is whole["a"]
    assert copied["b"] is copied["again"]
    torch.testing.assert_close(copied["b"], 2 * whole["b"], rtol=0, atol=0)
    for other in (
        rows[::-1],
        rows[:3],
        [*rows[:3], fresh[3]],
        [{"a": row["b"], "b": row["b"].flip(0)} for row in rows],
    ):
        actual = trees.stack(other)
        for name in ("a", "b"):
            assert (actual[name] is whole[name]) == (other[-1] is fresh[3] and name == "a")
            assert torch.equal(actual[name], torch.stack([row[name] for row in other]))


def test_a_transposed_square_is_copied() -> None:
    """It begins at the row's address and has its shape."""
    whole = torch.randn(3, 2, 2)
    assert torch.equal(trees.stack([row.T for row in whole]), whole.mT)


def test_large_results_are_released_one_by_one() -> None:
    """When the loop continues with the next client, the result of the last one is only in the stack."""
    all_clients, references = evaluation_cohort(tiny.rows_federation(), 0, 0), []

    def one(number: Tensor, data: ClientData) -> trees.Tree:
        assert all(reference() is None for reference in references)
        fresh = number + torch.zeros(trees.LARGE // 4)
        references.append(weakref.ref(fresh))
        return {"first": fresh, "again": fresh, "number": number}

    numbers = torch.arange(float(tiny.CLIENTS))
    actual = Loop().map(one, (numbers,), all_clients)
    assert actual["first"] is actual["again"]
    assert actual["number"] is numbers
    assert torch.equal(actual["first"], numbers[:, None].expand(-1, trees.LARGE // 4))


def test_large_results_that_differ_in_form_are_stacked_like_small_ones() -> None:
    """Some are given twice by some clients only, of another type, or unchanged. Those of another shape are refused."""
    size = trees.LARGE // 4
    whole = torch.randn(4, size)
    fresh = [2 * row for row in whole]
    results = [
        {"a": f, "b": f if i % 2 else 3 * f, "c": f.double() if i > 1 else 4 * f, "d": whole[i]}
        for i, f in enumerate(fresh)
    ]
    results[0]["d"] = fresh[0]
    actual = trees.stack(trees.collect_for_stack(iter(results), 4))
    for name, rows in actual.items():
        expected = torch.stack([result[name] for result in results])
        assert rows.dtype == expected.dtype
        assert torch.equal(rows, expected)
    with pytest.raises(RuntimeError, match="equal size"):
        trees.stack(trees.collect_for_stack(iter([{"a": fresh[0]}, {"a": fresh[1][None]}]), 2))


def test_auto_selects_by_kind_size_and_length() -> None:
    """On a CPU, convolutions and large dense models run one client per core, and very large models in sequence. Small
    models are stacked, and the kernel runs long trainings of them and of small convolutions without batch norm.

    On a GPU all are stacked. They are recorded unless they are large or `batched` requests plain steps.
    """
    small, large = build("mlp", (8,), 2), build("mlp", (4000,), 2)

    def pick(model: Any, device: str = "cpu", **options: Any) -> str:
        return describe(choose_executor("auto", model, device, **options))

    per_core = "processes" if forks.can_train_in_forks() else "loop"
    assert pick(build("lenet16", (3, 32, 32), 10)) == pick(large) == per_core
    assert pick(build("resnet18", (3, 32, 32), 10)) == "loop"
    lenet = build("lenet16", (3, 32, 32), 10)
    assert pick(lenet, device="cuda") == "batched, CUDA graphs"
    assert describe(choose_executor("batched", lenet, "cuda")) == "batched"
    assert pick(build("resnet18", (3, 32, 32), 10), device="cuda") == "batched"
    assert pick(build("gcn", (1433,), 7)) == pick(small) == "batched"
    assert pick(small, chunk=3) == "batched, 3 clients at once"
    long = "kernel" if native.find_compiler() else "batched"
    assert pick(small, steps=1000) == pick(build("gru", (12, 2), 12), steps=1000) == long
    assert pick(small, steps=999) == "batched"
    own = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout(), nn.LSTM(4, 4), nn.MultiheadAttention(4, 2))
    assert pick(own, steps=1000) == long
    assert pick(nn.Sequential(own, nn.Bilinear(2, 2, 2)), steps=1000) == "batched"
    assert describe(choose_executor("kernel", small, "cuda")) == pick(small, device="cuda")
    images = f"kernel, {per_core}".removesuffix(", loop") if native.find_compiler() else per_core
    assert pick(lenet, steps=1000) == pick(build("cnn1d", (3, 1, 20), 10), steps=1000) == images
    assert pick(lenet, steps=999) == pick(build("aghn_cnn", (3, 32, 32), 10), steps=10**6) == per_core
    assert pick(build("gcn", (30,), 7), steps=10**6) == "batched"
    assert pick(build_method("fedsage", "nodes").network) == "batched"
    assert pick(build_method("fedsage", "nodes", wide=20_000).network) == per_core


def test_sparse_features_give_the_results_of_dense_ones() -> None:
    """Products by cells and their gradients equal dense ones, for one client and in blocks of clients of different
    sizes.
    """
    g = np.random.default_rng(0)
    xs = [g.normal(size=(v, 40)) * (g.random((v, 40)) < 0.04) for v in (9, 6, 11)]
    edges = [np.stack([np.arange(v), np.roll(np.arange(v), 1)]) for v in (9, 6, 11)]
    edges = [np.concatenate([e, e[::-1]], 1) for e in edges]
    own, extents = stack_clients(xs, [np.zeros(len(x), dtype=np.int64) for x in xs], edges, torch.float64)
    assert (own["cells"][:, :2].amax((0, 2)) == torch.tensor([39, 10])).all(), "padding is in the last cell"
    weight = torch.randn(3, 40, 5, dtype=torch.float64, requires_grad=True)
    through = torch.randn(3, 11, 5, dtype=torch.float64)
    sparse = vmap(lambda places, values, w: project(SparseMatrix(places, values, 11), w))(
        own["cells"], own["values"], weight
    )
    torch.testing.assert_close(sparse, own["x"] @ weight)
    actual, expected = (torch.autograd.grad((out * through).sum(), weight)[0] for out in (sparse, own["x"] @ weight))
    torch.testing.assert_close(actual, expected)
    for i, x in enumerate(xs):
        cells = SparseMatrix(
            own["cells"][i][:, : extents["cells"][i]], own["values"][i][: extents["values"][i]], len(x)
        )
        torch.testing.assert_close(project(cells, weight[i]), torch.from_numpy(x) @ weight[i])
        assert torch.equal(cells.places[0][cells.places[2]], cells.places[0].sort().values)


def test_dense_features_have_no_cells() -> None:
    """Above a twentieth of non-zero entries, products by cells are slower."""
    own, _ = stack_clients([np.ones((4, 3))], [np.zeros(4, dtype=np.int64)], [np.array([[0, 1], [1, 0]])])
    assert "cells" not in own


def test_ordered_sorts_by_column() -> None:
    """The third row is a permutation that puts columns in ascending order, with ascending rows within each."""
    places = add_column_order(torch.tensor([[2, 0, 1, 0], [0, 1, 1, 3]]))
    assert places[0][places[2]].tolist() == [0, 0, 1, 2]
    assert places[1][places[2]].tolist() == [1, 3, 1, 0]


def test_a_loop_has_no_padding() -> None:
    """The view of one client has only its own cells, nodes and edges."""
    federation = tiny.nodes_federation()
    cohort = Cohort(
        federation, torch.arange(5), torch.empty(5, 0, 0, 0, dtype=torch.int64), torch.zeros(5, dtype=torch.int64), 0
    )
    assert isinstance(Loop(), Loop)
    for i in range(5):
        arrays = cohort.client_data(i).arrays
        assert arrays["edges"].shape[1] == len(arrays["weight"]) == int(federation.extents["edges"][i])
        assert arrays["nodes"].all()
