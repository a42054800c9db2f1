"""A GPU gives the results of the CPU: clients in sequence, all at once, in chunks, recorded, and with too
little memory.
"""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import tiny
import torch
from torch import Tensor

from benchmarks.workloads import Workload, images, sensors, subgraphs
from fedweave.engine.engine import run, run_round
from fedweave.engine.evaluation import evaluate
from fedweave.engine.executors import Batched, Executor, Loop, set_precision
from fedweave.engine.records import Settings
from fedweave.engine.start import begin
from fedweave.families.networks import SheafDiffusion
from fedweave.graphs import weights
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
    """The precision that `prepare` sets on a GPU. Cached memory is released afterwards."""
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
    """Each leaf is equal up to rounding."""
    for a, b in zip(expected, actual, strict=True):
        torch.testing.assert_close(b, a, rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("kind", METHODS)
def test_executors_agree(kind: str) -> None:
    """Clients of different sizes, one of them absent, in double precision: loop, batched and chunks of two agree."""
    task, federation = (make() for make in tiny.TASKS[kind])
    method, on_gpu = tiny.method(METHODS[kind], task, kind), federation.to(DEVICE)
    results = []
    for executor in (Loop(), Batched(), Batched(2)):
        *_, report = run(method, on_gpu, Settings(rounds=2, seed=4, participation=0.8), executor)
        results.append([leaf.cpu() for leaf in tree_leaves((report.state, report.scores)) if isinstance(leaf, Tensor)])
    close(results[1], results[0], 1e-9)
    close(results[2], results[0], 1e-9)


@pytest.mark.parametrize("name", SMALL)
def test_a_gpu_has_the_results_of_a_cpu(name: str) -> None:
    """Float32 with the papers' models, including ResNet-18. The difference is rounding. With TF32 it would be a hundred
    times larger.
    """
    work = SMALL[name]()
    close(train_round(work, Batched()), train_round(work, Loop(), "cpu"), 1e-3)


@pytest.mark.parametrize("name", ["mlp", "lenet16", "resnet18", "gru"])
def test_a_repeated_run_has_the_same_bits(name: str) -> None:
    work = SMALL[name]()
    assert all(
        torch.equal(a, b) for a, b in zip(train_round(work, Batched()), train_round(work, Batched()), strict=True)
    )


@pytest.mark.parametrize("name", ["mlp", "lenet16", "resnet18", "gru"])
def test_recorded_steps_have_the_bits_of_plain_steps(name: str) -> None:
    """CUDA graphs replay the kernels of plain steps. A second run with the same recordings has the same bits too."""
    work = SMALL[name]()
    expected = train_round(work, Batched())
    recordings.clear()
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(expected, train_round(work, Batched(recorded=True)), strict=True))
    assert recordings._RECORDINGS
    assert None not in recordings._RECORDINGS.values()


def test_steps_are_recorded_again_for_other_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """The graphs of large features are dropped if a later run has others. Its steps are recorded again."""
    work = SMALL["lenet16"]()
    expected = train_round(work, Batched())
    monkeypatch.setattr(recordings, "LARGE", 1)
    recordings.clear()
    blocks = []
    for _ in range(2):
        assert all(torch.equal(a, b) for a, b in zip(expected, train_round(work, Batched(recorded=True)), strict=True))
        blocks.append(work.federation.to(DEVICE))  # replaces the run's features
    assert recordings._RECORDINGS
    assert None not in recordings._RECORDINGS.values()


@pytest.mark.parametrize("how", ["tf32", "bfloat16"])
def test_lower_precision_changes_rounding_only(how: str) -> None:
    """It applies when it is requested."""
    work = SMALL["lenet16"]()
    expected = train_round(work, Batched())
    set_precision(DEVICE, how == "tf32")
    half = replace(work, task=replace(work.task, products=torch.bfloat16 if how == "bfloat16" else None))
    actual = train_round(half, Batched())
    assert any(not torch.equal(a, b) for a, b in zip(expected[:-4], actual[:-4], strict=True))
    close(actual[:-4], expected[:-4], 2e-2)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_gpu_with_too_little_memory_trains_fewer_clients_at_once(recorded: bool) -> None:
    """ResNet-18, eight clients at once, with more memory than chunks of two need and less than eight need. A line
    reports it, and the result is the same.
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


@pytest.mark.parametrize("name", ["pfedhn", "ghn", "shn", "panacea"])
def test_recorded_server_networks_have_the_bits_of_plain_ones(name: str) -> None:
    """Codes of the clients and the gradient of the server's networks are CUDA graphs too."""
    task, federation = (make() for make in tiny.TASKS["rows"])
    method, settings = tiny.method(name, task, "rows"), Settings(rounds=4, seed=4, participation=0.8)
    recordings.clear()
    results = []
    for recorded in (False, True):
        *_, report = run(method, federation.to(DEVICE), settings, Batched(recorded=recorded))
        results.append([leaf for leaf in tree_leaves((report.state, report.scores)) if isinstance(leaf, Tensor)])
    assert all(torch.equal(a.nan_to_num(-1), b.nan_to_num(-1)) for a, b in zip(*results, strict=True))
    assert any(isinstance(recording, recordings.RecordedCall) for recording in recordings._RECORDINGS.values())
    assert None not in recordings._RECORDINGS.values()


def test_a_sheaf_on_a_gpu_has_the_numbers_of_a_cpu_and_the_same_bits_every_time() -> None:
    """Sums over neighbours have a fixed order: PyTorch's own sums by index add in the order in which threads finish."""
    torch.manual_seed(0)
    network, x = SheafDiffusion(26, 26, depth=4), torch.randn(100, 26)
    edges = weights.knn_graph(x, 16)

    def slopes(device: str) -> list[Tensor]:
        module = network.to(device)
        loss = module(x.to(device), edges.to(device)).square().sum()
        return [slope.cpu() for slope in torch.autograd.grad(loss, [*module.parameters()])]

    expected, (first, *others) = slopes("cpu"), [slopes(DEVICE) for _ in range(5)]
    assert all(torch.equal(a, b) for other in others for a, b in zip(first, other, strict=True))
    close(first, expected, 1e-3)
