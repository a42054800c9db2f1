"""`adapter=` of `compare` and `fit`: the same as in the block of the model, stored, loaded and exported with it."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedweave as fw
from fedweave import exported_model

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
LORA = {"name": "lora", "rank": 2}
OPTIONS: dict[str, Any] = {"rounds": 3, "lr": 0.2, "progress": False}


def rows(count: int = 160) -> tuple[np.ndarray, np.ndarray]:
    """Vectors of two blobs in ten dimensions."""
    draws = np.random.default_rng(0)
    y = draws.integers(2, size=count)
    return (draws.normal(size=(count, 10)) + 1.5 * y[:, None]).astype(np.float32), y


def people() -> fw.Federation:
    """Four clients."""
    x, y = rows()
    return fw.Federation.from_arrays(x, y, client=[f"p{i % 4}" for i in range(len(x))])


def network(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Two layers, with statistics between them."""
    return nn.Sequential(nn.Linear(shape[0], 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, outputs))


def test_the_argument_and_the_block_are_one(tmp_path: Path) -> None:
    """They give the same scores, and a variant of a setting keeps the others."""
    argument = fw.fit("fedaghn", people(), model={"name": "mlp", "hidden": 12}, adapter=LORA, **OPTIONS)
    block = fw.fit("fedaghn", people(), model={"name": "mlp", "hidden": 12, "adapter": LORA}, **OPTIONS)
    dotted = {"name": "mlp", "hidden": 12, "adapter.name": "lora", "adapter.rank": 2}
    for other in (block, fw.fit("fedaghn", people(), model=dotted, **OPTIONS)):
        assert other.history.equals(argument.history)
    assert argument.run.info["parameters"] == 2 * (10 + 12) + 2 * 12 + 2


@pytest.mark.parametrize("model", ["mlp", network])
@pytest.mark.parametrize("adapter", ["lora", {"name": "lora", "rank": 3, "trains": "B"}, "bias", "head"])
def test_stored_models_predict_with_their_body(model: Any, adapter: Any, tmp_path: Path) -> None:
    """Files of a run have the adapters alone; a loaded result and an export answer as the result does."""
    result = fw.fit("fedavg", people(), model=model, adapter=adapter, out=tmp_path / "out", **OPTIONS)
    stored = torch.load(next((tmp_path / "out").rglob("models-0.pt")), weights_only=False)["models"]
    assert sum(value[0].numel() for value in stored.values()) == result.run.info["parameters"]
    x, _ = rows(5)
    answers = result.predict_proba(x, client="p1").to_numpy()
    loaded = fw.load(tmp_path / "out")["fedavg"]
    own = {} if isinstance(model, str) else {"model": model}
    np.testing.assert_array_equal(loaded.predict_proba(x, client="p1", **own).to_numpy(), answers)
    for merge in (True, False):
        folder = result.export(tmp_path / f"export-{merge}", "p1", merge=merge)
        np.testing.assert_allclose(exported_model.load(folder).predict_proba(x).to_numpy(), answers, atol=1e-6)


@pytest.mark.parametrize("adapter", ["norm", "bias", "head", "lora"])
def test_a_merged_export_has_every_weight(adapter: str, tmp_path: Path) -> None:
    """It fits the user's own module, frozen weights too."""
    result = fw.fit("fedavg", people(), model=network, adapter=adapter, **{**OPTIONS, "rounds": 1})
    counts = []
    for merge in (True, False):
        folder = result.export(tmp_path / str(merge), "p1", merge=merge)
        weights = load_file(folder / "weights.safetensors")
        counts.append(len(weights))
        if merge:
            network((10,), 2).load_state_dict(weights)
    assert counts[0] > counts[1]


@pytest.mark.parametrize("method", ["fedavg", "fedem", "ditto", "fedcp"])
def test_an_export_is_merged_or_kept(method: str, tmp_path: Path) -> None:
    """Merged, the weights load into the user's own module; kept, the file has adapters and head alone."""
    result = fw.fit(method, people(), model=network, adapter=LORA, **OPTIONS)
    x, _ = rows(30)
    answers = result.predict_proba(x, client="p2").to_numpy()
    for merge in (True, False):
        folder = result.export(tmp_path / str(merge), "p2", merge=merge)
        about = json.loads((folder / "export.json").read_text())
        np.testing.assert_allclose(exported_model.load(folder).predict_proba(x).to_numpy(), answers, atol=1e-5)
        assert about["adapter"] == ("merged" if merge else "kept")
        weights = load_file(folder / "weights.safetensors")
        assert any(name.endswith("lora.A") for name in weights) != merge
        assert any(name.endswith("0.weight") for name in weights) == merge
        if merge and method == "fedavg":
            own = network((10,), 2)
            own.load_state_dict(weights, strict=False)
            subtracted, divisor = (torch.tensor(about["scaling"][key]).ravel() for key in ("subtracted", "divisor"))
            inputs = ((torch.from_numpy(x) - subtracted) / divisor).float()
            outputs = own.eval()(inputs).softmax(-1).detach().numpy()
            np.testing.assert_allclose(outputs, answers, atol=1e-5)


def test_wrong_adapters() -> None:
    """One line each, before any work; the argument is named as it was given."""
    for adapter, line in (
        ("lorra", "adapter: 'lorra' is unknown; did you mean 'lora'? choices: bias, head, lora, norm"),
        ({"name": "lora", "targets": ["fc"]}, "adapter.targets: 'fc' names no layer with a weight; choices: 0"),
        ({**LORA, "ranks": [1, 3]}, "adapter.ranks: 3 is above rank: 2, which is the largest; raise"),
        ({"name": "lora", "rank": 11, "targets": ["0"]}, "adapter.rank: 11, but 0.weight is a matrix of 16 x 10; give"),
    ):
        with pytest.raises(fw.BadInput) as caught:
            fw.fit("fedavg", people(), model=network, adapter=adapter, **OPTIONS)
        assert str(caught.value).startswith(line)
    for block, line in (
        ({"rank": 2}, r"^model\.adapter: \{'rank': 2\} has no name; for example"),
        (
            {**LORA, "rnak": 2},
            r"^model\.adapter\.rnak: not a setting of model\.adapter: 'rnak' is unknown; did you mean 'rank'",
        ),
        ({**LORA, "targets": "fc1"}, r"^model\.adapter\.targets: 'fc1' is not a list"),
        ({**LORA, "trains": "A"}, r"^model\.adapter\.trains: 'A' is unknown"),
        ({**LORA, "alpha": 0}, r"^model\.adapter\.alpha: 0 is out of range"),
    ):
        with pytest.raises(fw.BadInput, match=line):
            fw.fit("fedavg", people(), model={"name": "mlp", "adapter": block}, **OPTIONS)
    with pytest.raises(fw.BadInput, match=r"^adapter: 'head', but the model has one, too; give one of them"):
        fw.fit("fedavg", people(), model={"name": "mlp", "adapter": LORA}, adapter="head", **OPTIONS)
    with pytest.raises(fw.BadInput, match=r"^model\.adapter: no weight below the head is larger"):
        fw.fit("fedavg", people(), model="linear", adapter="lora", **OPTIONS)
    with pytest.raises(fw.BadInput, match=r"^adapter: 'lorra' is unknown"):
        fw.recommend(people(), adapter="lorra")


def test_ranks_by_client() -> None:
    """A method that mixes in its own way is refused; the others send the rows of each client's rank."""
    adapter = {**LORA, "ranks": [1, 2]}
    with pytest.raises(fw.BadInput, match=r"fedaghn: model.adapter has ranks, which needs a plain mean or mixture"):
        fw.fit("fedaghn", people(), model=network, adapter=adapter, **OPTIONS)
    compared = fw.compare(people(), ["local", "fedavg"], model=network, adapter=adapter, seeds=1, **OPTIONS)
    assert any("entral" in str(row) for row in compared.controls().to_numpy().tolist())
    numbers = 16 * 2 + 2 + 1.5 * (10 + 16)
    assert compared["fedavg"].run.totals["bytes_up"] == 3 * 4 * 4 * numbers
