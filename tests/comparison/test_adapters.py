"""`adapter=` of `compare` and `fit`: the same as in the block of the model, stored, loaded and exported with it."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
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
    exported = exported_model.load(result.export(tmp_path / "export", "p1"))
    np.testing.assert_allclose(exported.predict_proba(x).to_numpy(), answers, atol=1e-6)


def test_wrong_adapters() -> None:
    """One line each, before any work; the argument is named as it was given."""
    for adapter, line in (
        ("lorra", "adapter: 'lorra' is unknown; did you mean 'lora'? choices: bias, head, lora, norm"),
        ({"name": "lora", "targets": ["fc"]}, "adapter.targets: 'fc' names no layer with a weight; choices: 0"),
        ({"name": "lora", "rank": 11, "targets": ["0"]}, "adapter.rank: 11, but 0.weight is a matrix of 16 x 10; give"),
    ):
        with warnings.catch_warnings(), pytest.raises(fw.BadInput) as caught:
            fw.fit("fedavg", people(), model=network, adapter=adapter, **OPTIONS)
        assert str(caught.value).startswith(line)
