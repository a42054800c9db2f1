"""On a GPU: one client after the other, all at once, in chunks, compiled, recorded, and in a memory that is too small,
as on the CPU.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import tiny
import torch
from torch import Tensor

from benchmarks.workloads import Workload, images, sensors, subgraphs
from fedweave.federation.engine import evaluate, run, run_round
from fedweave.federation.executors import Batched, Executor, Loop, set_precision
from fedweave.federation.records import Settings
from fedweave.federation.start import begin
from fedweave.tensors import recordings
from fedweave.tensors.trees import tree_leaves

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

DEVICE = "cuda"
METHODS = {"rows": "fedaghn", "images": "fedavg", "nodes": "fedsheafhn", "series": "pfedme"}
SMALL = {
    "mlp": lambda: images("mlp", 6, shape=(32,), samples=40),
    "lenet16": lambda: images("lenet16", 6, samples=70),
    "resnet18": lambda: images("resnet18", 4, samples=64),
    "gcn": lambda: subgraphs(clients=4, nodes=160, features=100),
    "gru": lambda: sensors(clients=4, length=2000, steps=3),
}


@pytest.fixture(autouse=True)
def full_precision() -> Iterator[None]:
    """As `prepare` sets a GPU up; cached memory goes back afterwards."""
    cudnn, products = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, cudnn.deterministic, products.allow_tf32
    set_precision(DEVICE)
    yield
    cudnn.allow_tf32, cudnn.deterministic, products.allow_tf32 = before
    torch.cuda.empty_cache()


def train_round(work: Workload, executor: Executor, device: str = DEVICE) -> list[Tensor]:
    """State and scores after a round of FedAvg, on the CPU."""
    federation, method, settings = work.federation.to(device), work.method(), Settings(rounds=1)
    state = run_round(method, begin(method, federation, 0, executor), federation, settings, executor)[0]
    scores = evaluate(method, state, federation, settings, executor)[0]
    return [leaf.cpu() for leaf in tree_leaves((state, scores)) if isinstance(leaf, Tensor)]


def close(actual: list[Tensor], expected: list[Tensor], tolerance: float) -> None:
    """Equal up to rounding, leaf by leaf."""
    for a, b in zip(expected, actual, strict=True):
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("kind", METHODS)
def test_executors_agree(kind: str) -> None:
    """Ragged clients, one of them away, in double precision: loop, batched and chunks of two give the same."""
    task, federation = (make() for make in tiny.TASKS[kind])
    method, there = tiny.method(METHODS[kind], task, kind), federation.to(DEVICE)
    results = []
    for executor in (Loop(), Batched(), Batched(2)):
        *_, report = run(method, there, Settings(rounds=2, seed=4, participation=0.8), executor)
        results.append([leaf.cpu() for leaf in tree_leaves((report.state, report.scores)) if isinstance(leaf, Tensor)])
    close(results[1], results[0], 1e-9)
    close(results[2], results[0], 1e-9)


@pytest.mark.parametrize("name", SMALL)
def test_a_gpu_computes_what_a_cpu_does(name: str) -> None:
    """Float32, the papers' models, ResNet-18 among them: the difference is rounding, with TF32 it would be a hundred
    times that.
    """
    work = SMALL[name]()
    close(train_round(work, Batched()), train_round(work, Loop(), "cpu"), 1e-3)


@pytest.mark.parametrize("name", ["mlp", "lenet16", "resnet18", "gru"])
def test_the_same_bits_twice(name: str) -> None:
    """A repeated run changes nothing."""
    work = SMALL[name]()
    assert all(
        torch.equal(a, b) for a, b in zip(train_round(work, Batched()), train_round(work, Batched()), strict=True)
    )


@pytest.mark.parametrize("name", ["mlp", "lenet16", "resnet18", "gru"])
def test_recorded_steps(name: str) -> None:
    """CUDA graphs replay the kernels of plain steps: the same bits, also in a second run on the same recordings."""
    work = SMALL[name]()
    expected = train_round(work, Batched())
    recordings.clear()
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(expected, train_round(work, Batched(recorded=True)), strict=True))
    assert recordings._RECORDINGS
    assert None not in recordings._RECORDINGS.values()


def test_recorded_again_for_other_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graphs of large features are dropped when a later run has other ones; its steps are recorded anew."""
    work = SMALL["lenet16"]()
    expected = train_round(work, Batched())
    monkeypatch.setattr(recordings, "LARGE", 1)
    recordings.clear()
    blocks = []
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(expected, train_round(work, Batched(recorded=True)), strict=True))
        blocks.append(work.federation.to(DEVICE))  # takes the place of the run's features
    assert recordings._RECORDINGS
    assert None not in recordings._RECORDINGS.values()


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("name", ["mlp", "gru"])
def test_compiled_steps(name: str, recorded: bool) -> None:
    """Fused programs change rounding alone, recorded or not."""
    work = SMALL[name]()
    close(train_round(work, Batched(compiled=True, recorded=recorded)), train_round(work, Batched()), 1e-4)


@pytest.mark.parametrize("how", ["tf32", "bfloat16"])
def test_rounded_products(how: str) -> None:
    """Less than full precision is in effect when asked for, and changes rounding alone."""
    work = SMALL["lenet16"]()
    expected = train_round(work, Batched())
    set_precision(DEVICE, how == "tf32")
    half = replace(work, task=replace(work.task, products=torch.bfloat16 if how == "bfloat16" else None))
    actual = train_round(half, Batched())
    assert any(not torch.equal(a, b) for a, b in zip(expected[:-4], actual[:-4], strict=True))
    close(actual[:-4], expected[:-4], 2e-2)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_gpu_that_is_too_small_takes_fewer_clients(recorded: bool) -> None:
    """ResNet-18, eight clients at once, in a memory between what chunks of two and of eight need: said, gone on, same
    result.
    """
    work = images("resnet18", 8, samples=64)
    results, peaks = {}, {}
    for chunk in (8, 2):
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        results[chunk] = train_round(work, Batched(chunk))
        peaks[chunk] = torch.cuda.max_memory_reserved()
    assert peaks[8] > 1.2 * peaks[2]
    executor, whole = Batched(recorded=recorded), torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((peaks[2] + peaks[8]) / 2 / whole)
    try:
        with pytest.warns(UserWarning, match="8 clients at once do not fit"):
            actual = train_round(work, executor)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert executor.fitted[0] < 8
    close(actual, results[2], 1e-3)
