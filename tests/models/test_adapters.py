"""Adapters: what they train of any model, equal under both executors, and what they refuse."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import CLASSES, rows_federation
from torch import nn

from fedweave import settings
from fedweave.client.solvers import SGD
from fedweave.client.task import RowClassification
from fedweave.engine.clients import Clients
from fedweave.engine.engine import run
from fedweave.engine.executors import Batched, Executor, Loop, Processes, choose_executor
from fedweave.engine.protocol import Start
from fedweave.engine.records import Report, Settings
from fedweave.engine.schedule import Training
from fedweave.errors import BadInput
from fedweave.families.ensembles import initial_models
from fedweave.methods import METHODS
from fedweave.models import build
from fedweave.models.adapters import ADAPTERS, merge
from fedweave.models.base import find_norms, parameter_count
from fedweave.models.own_module import wrap
from fedweave.study.config import load_yaml
from tests.models.test_own_module import MODELS, federation

pytestmark = pytest.mark.usefixtures("seeded")
LORA = {"name": "lora", "rank": 2}


class Words(nn.Module):
    """An embedding, and a head on the mean of a row's vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.fc = nn.Embedding(9, 6, padding_idx=0), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.embed(x.abs().long().clamp(max=8)).mean(1))


class Tied(nn.Module):
    """The rows of a table are read twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.fc = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)
        self.second.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.second(self.first(x).relu()))


# The only weight of "scaled" below the head has one column, so no adapter of rank 2 fits it.
OWN = {name: made for name, made in MODELS.items() if name != "scaled"} | {
    "words": (lambda shape, outputs: Words(), (6,))
}


def task_of(name: str, adapter: Any = LORA) -> RowClassification:
    """The task of one of OWN with an adapter."""
    make, shape = OWN[name]
    return RowClassification(wrap(make, shape, CLASSES, adapter=adapter), torch.float64)


def data_of(name: str) -> Clients:
    """Clients of different sizes, with rows for one of OWN."""
    return rows_federation() if name == "words" else federation(name)


def last_report(task: RowClassification, clients: Clients, executor: Executor) -> Report:
    """The last report of two rounds of FedAvg."""
    method = METHODS["fedavg"](task=task, solver=SGD(lr=0.1), training=Training(batch_size=4, epochs=1))
    *_, report = run(method, clients, Settings(rounds=2, seed=1), executor)
    return report


@pytest.mark.parametrize("name", OWN)
def test_executors_agree(name: str) -> None:
    """Training side by side gives the adapters of training one after the other, and changes no constant."""
    task = task_of(name)
    before = {key: value.clone() for key, value in task.template.named_buffers()}
    one, other = (last_report(task, data_of(name), executor) for executor in (Loop(), Batched()))
    torch.testing.assert_close(one.models, other.models)
    torch.testing.assert_close(one.scores, other.scores)
    assert all(torch.equal(value, before[key]) for key, value in task.template.named_buffers() if key in task.constants)
    body = {*task.layers} - {task.head[0].rpartition(".")[0]}
    assert body
    assert all("lora" in layer.rpartition(".")[2] for layer in body)


@pytest.mark.parametrize("name", OWN)
def test_a_merged_model_is_the_adapted_one(name: str) -> None:
    """Every kind of layer uses W + (alpha / rank) B A, however it computes that."""
    make, shape = OWN[name]
    model = wrap(make, shape, CLASSES, adapter={**LORA, "alpha": 3.0})().double()
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    x = 3 * torch.randn(4, *(shape if len(shape) == 3 else (6,)), dtype=torch.float64)
    adapted, base = model(x), dict(model.named_buffers())
    changes = {path: 1.5 * (layer.B @ layer.A) for path, layer in model.named_modules() if hasattr(layer, "A")}
    merge(model)
    torch.testing.assert_close(model(x), adapted)
    for path, change in changes.items():
        weight = path.replace("lora", "weight")
        torch.testing.assert_close(model.get_buffer(weight), base[weight] + change.reshape(base[weight].shape))
    assert not any(hasattr(layer, "A") for layer in model.modules())


@pytest.mark.parametrize(
    ("name", "shape", "options"),
    [
        ("mlp", (6,), {"hidden": [12, 12]}),
        ("lenet16", (3, 32, 32), {"batch_norm": True}),
        ("gcn", (7,), {"hidden": 16}),
        ("gru", (6, 2), {"hidden": 16}),
    ],
)
@pytest.mark.parametrize("adapter", ["lora", "bias", "norm", "head"])
def test_models_by_name(name: str, shape: tuple[int, ...], options: dict[str, Any], adapter: str) -> None:
    """The head and what the adapter names is trained; weights keep their names and values as constants."""
    torch.manual_seed(3)
    whole = build(name, shape, CLASSES, **options)
    torch.manual_seed(3)
    if adapter == "norm" and not find_norms(whole):
        with pytest.raises(BadInput, match="no normalisation layer"):
            build(name, shape, CLASSES, **options, adapter={"name": adapter})
        return
    model = build(name, shape, CLASSES, **options, adapter={"name": adapter})
    trained = dict(model.named_parameters())
    tensors = {**dict(model.named_buffers()), **trained}
    for key, value in whole.named_parameters():
        assert torch.equal(value, tensors[key]), key
        is_head = key.startswith(tuple(f"{part}." for part in whole.head))
        in_norm = "norm" in key or "bn" in key
        assert (key in trained) == (is_head or (adapter == "bias" and "bias" in key) or (adapter == "norm" and in_norm))
    extra = {key for key in trained if key not in dict(whole.named_parameters())}
    assert all(key.endswith((".A", ".B")) for key in extra)
    assert bool(extra) == (adapter == "lora")


def test_statistics_of_a_frozen_body_stand_still() -> None:
    """Batch normalisation runs as in evaluation, unless it is what is trained."""
    for adapter, moves in (
        (LORA, False),
        ({"name": "bias"}, False),
        ({"name": "head"}, False),
        ({"name": "norm"}, True),
    ):
        task = task_of("dense", adapter)
        assert task.buffers == (("1.running_mean", "1.running_var") if moves else ())
        report = last_report(task, federation("dense"), Loop())
        assert ("1.running_mean" in report.models["post"]) == moves


def test_a_fixed_a_is_one_for_all() -> None:
    """FFA-LoRA: B is trained over one random A."""
    task = task_of("functional", {**LORA, "trains": "B"})
    assert {*task.params} == {"first.lora.B", "second.weight", "second.bias"}
    assert "first.lora.A" in task.constants
    assert task.template.get_buffer("first.lora.A").abs().sum() > 0


def test_targets_are_layers_parts_and_patterns() -> None:
    """In a transformer: a layer by the end of its name, a part by its name, several by a pattern."""
    expected = {
        "linear1": ["mix.linear1.lora"],
        "mix.linear1": ["mix.linear1.lora"],
        "linear?": ["mix.linear1.lora", "mix.linear2.lora"],
        "self_attn": ["mix.self_attn.in_proj_lora", "mix.self_attn.out_proj.lora"],
        "out_proj": ["mix.self_attn.out_proj.lora"],
        "in_proj_weight": ["mix.self_attn.in_proj_lora"],
    }
    for target, names in expected.items():
        layers = task_of("encoder", {**LORA, "targets": [target]}).layers
        assert sorted(layers) == sorted([*names, "fc"])


@pytest.mark.parametrize(
    ("name", "adapter", "message"),
    [
        (
            "encoder",
            {"targets": ["linear3"]},
            "adapter.targets: 'linear3' names no layer with a weight; did you mean 'mix.lin",
        ),
        ("encoder", {"targets": []}, "adapter.targets: [] names no layer; name some, leave it out, or"),
        ("encoder", {"targets": ["fc"]}, "adapter.targets: 'fc' is the head, which is trained whole; leave it out"),
        ("encoder", {"targets": ["embed"]}, "adapter.rank: 2, but embed.weight is a matrix of 4 x 1; give at most 1"),
        (
            "functional",
            {"rank": 9},
            "adapter.rank: 9: no weight below the head is larger than its adapter; lower the rank to 3",
        ),
        ("functional", {"name": "norm"}, "adapter: the model has no normalisation layer with scale and shift below"),
    ],
)
def test_what_does_not_fit_the_model(name: str, adapter: dict[str, Any], message: str) -> None:
    """One line, before any work."""
    block = {**LORA, **adapter} if adapter.get("name") is None else adapter
    with pytest.raises(BadInput) as caught:
        task_of(name, block)
    assert str(caught.value).startswith(message)


def test_shared_weights() -> None:
    """A weight of two layers is refused as a target and as a part that is trained; frozen, it does no harm."""
    with pytest.raises(BadInput, match=r"first\.weight is also second.weight, so that an adapter would change"):
        wrap(Tied, (6,), CLASSES, adapter={**LORA, "targets": ["first"]})
    with pytest.raises(BadInput, match="no weight below the head"):
        wrap(Tied, (6,), CLASSES, adapter=LORA)
    assert RowClassification(wrap(Tied, (6,), CLASSES, adapter={"name": "bias"})).params == (
        "first.bias",
        "second.bias",
        "fc.weight",
        "fc.bias",
    )
    head_is_tied = Tied()
    head_is_tied.fc = nn.Linear(6, 6)
    head_is_tied.fc.weight = head_is_tied.first.weight
    with pytest.raises(BadInput, match=r"fc\.weight, which would be trained, is also first.weight"):
        wrap(head_is_tied, (6,), 6, adapter={"name": "head"})


def test_the_executor_is_that_of_the_whole_model() -> None:
    """Frozen convolutions are as slow side by side as trained ones."""
    adapted = build("lenet16", (3, 32, 32), CLASSES, adapter=LORA)
    assert type(choose_executor("auto", adapted, "cpu")) in (Loop, Processes)


def test_components_of_a_given_module_differ_in_what_they_compute() -> None:
    """Two draws of A alone would be equal models, as B begins at 0; then heads are drawn anew."""
    task = RowClassification(wrap(MODELS["functional"][0](), (6,), CLASSES, adapter=LORA))
    start = Start(task.init(1), {}, 2, 7, None, torch.arange(2))
    x = torch.randn(4, 6)
    outputs = [task.call(model, x) for model in initial_models(task, start, 2)]
    assert not torch.allclose(*outputs)


def test_the_page_has_the_settings_of_lora() -> None:
    """Its table has each setting with its default and its meaning."""
    page = (Path(__file__).resolve().parents[2] / "docs/adapters.md").read_text(encoding="utf-8")
    for setting in settings.describe(ADAPTERS["lora"]):
        default = "null" if setting.default is None else f"`{setting.default}`"
        assert f"| `{setting.name}` | {default} | {setting.meaning} |" in page
    assert all(f"| `{name}` |" in page for name in ADAPTERS)


def test_the_page_has_the_bytes_of_its_models() -> None:
    """Four for each trained number, in each row of the table."""
    page = (Path(__file__).resolve().parents[2] / "docs/adapters.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (none|`.*`) \| ([\d,.]+) \| ([\d.]+|–) \|$", page, re.MULTILINE)
    assert len(rows) == 7
    for word, convolutional, dense in rows:
        adapter = None if word == "none" else load_yaml(word.strip("`"))
        models = [("resnet18", (3, 32, 32), {}, convolutional), ("mlp", (1, 8, 8), {"hidden": [256, 256]}, dense)]
        for name, shape, options, number in models:
            if number != "–":
                count = parameter_count(build(name, shape, 10, **options, adapter=adapter))
                assert number == f"{4 * count / 1024:,.1f}"
