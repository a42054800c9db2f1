"""Rows with several inputs: a module gets them as they were given, in training, predictions and exported models."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedweave as fw
from fedweave import exported_model
from fedweave.errors import BadInput
from fedweave.prediction.packing import build_example
from fedweave.prediction.predictor import read_inputs

DRAWS = np.random.default_rng(0)
ROWS = 48
IMAGE = DRAWS.integers(0, 256, (ROWS, 1, 4, 4)).astype(np.uint8)
TABLE = DRAWS.normal(5.0, 3.0, (ROWS, 3))
LABEL = (IMAGE.mean((1, 2, 3)) > 127).astype(int) + (TABLE[:, 0] > 5)
CLIENT = ["Ann", "Bob", "Cy"] * 16
OPTIONS: dict[str, Any] = {"rounds": 2, "progress": False, "device": "cpu", "batch_size": 4}


class Both(nn.Module):
    """An image and a vector; it has a parameter of its own."""

    def __init__(self, shapes: Any, outputs: int) -> None:
        super().__init__()
        pixels, width = (shapes["image"], shapes["table"]) if isinstance(shapes, dict) else shapes
        self.weight = nn.Parameter(torch.ones(()))
        self.pixels, self.numbers = nn.Linear(math.prod(pixels), 4), nn.Linear(width[0], 4)
        self.top = nn.Linear(8, outputs)

    def forward(self, image: Tensor, table: Tensor) -> Tensor:
        assert image.shape[1:] == (1, 4, 4)
        h = torch.cat([self.pixels(image.flatten(1)), self.weight * self.numbers(table)], dim=1)
        return self.top(torch.relu(h))


def federation(x: Any = None) -> fw.Federation:
    return fw.Federation.from_arrays({"table": TABLE, "image": IMAGE} if x is None else x, LABEL, client=CLIENT)


def test_a_module_gets_its_inputs_by_name_and_on_their_scale(tmp_path: Path) -> None:
    """Bytes are divided by 255, and numbers scaled by training rows; the exported model computes the same."""
    data = federation()
    assert "48 rows of 1 x 4 x 4 and 3 values" in repr(data)
    results = [fw.fit("fedavg", data, model=Both, executor=name, **OPTIONS) for name in ("loop", "batched")]
    result = results[0]
    train = np.concatenate(data.partition.train)
    scaled = (TABLE - TABLE[train].mean(0)) / TABLE[train].std(0)
    module = Both({"image": (1, 4, 4), "table": (3,)}, 3)
    module.load_state_dict({name.removeprefix("model."): value for name, value in result.models()["Ann"].items()})
    with torch.no_grad():
        outputs = module(image=torch.from_numpy(IMAGE) / 255, table=torch.from_numpy(scaled).float())
    expected = torch.softmax(outputs, 1).numpy()
    for one in results:
        table = one.predict_proba({"image": IMAGE.astype(int), "table": TABLE}, "Ann")
        np.testing.assert_allclose(table, expected, atol=1e-5)
    exported = exported_model.load(result.export(tmp_path / "ann", "Ann"))
    assert exported.about["program"]
    new = {"table": TABLE.tolist(), "image": IMAGE}
    np.testing.assert_allclose(exported.predict_proba(new), expected, atol=1e-5)
    served = exported_model.PyfuncModel(exported).predict(new)
    np.testing.assert_allclose(served[exported.classes], expected, atol=1e-5)
    assert "'image': [M, 1, 4, 4], 'table': [M, 3]" in (tmp_path / "ann" / "README.md").read_text(encoding="utf-8")


def test_a_tuple_goes_in_its_order_and_newcomers_join(tmp_path: Path) -> None:
    by_name, ordered = (
        fw.fit("fedavg_ft", federation(x), model=Both, out=tmp_path / str(i), **OPTIONS)
        for i, x in enumerate([None, (IMAGE, TABLE)])
    )
    assert ordered.scores.equals(by_name.scores)
    expected = by_name.predict_proba({"image": IMAGE, "table": TABLE}, "Bob")
    assert ordered.predict_proba((IMAGE, TABLE), "Bob").equals(expected)
    rows = {name: slice(i, None, 3) for i, name in enumerate(CLIENT[:3])}
    by_client = {name: {"table": TABLE[own], "image": IMAGE[own]} for name, own in rows.items()}
    joined = fw.Federation.from_arrays(by_client, {name: LABEL[own] for name, own in rows.items()})
    assert len(joined.dataset.x) == ROWS
    new = {"table": TABLE[:20], "image": IMAGE[:20]}
    result = by_name.join(new, client=["Di"] * 20, label=LABEL[:20], rounds=1)
    assert np.isfinite(result.scores["Di"])


def test_a_model_with_a_name_reads_all_values(tmp_path: Path) -> None:
    """Its example for MLflow has an array for each input."""
    result = fw.fit("local", federation(), model="linear", out=tmp_path, **OPTIONS)
    example: Any = build_example(read_inputs(result.run)[0], None, result.run)
    assert {name: part.shape for name, part in example.items()} == {"image": (2, 1, 4, 4), "table": (2, 3)}
    assert result.predict(example, "Cy").shape == (2,)


@pytest.mark.parametrize(
    ("x", "options", "line"),
    [
        ({"image": IMAGE}, {}, "x: has 1 inputs; give the array alone, or two inputs or more"),
        ({"image": IMAGE, "table": TABLE[:9]}, {}, "x: its inputs have different numbers of rows: 'image' has 48"),
        ({"image": IMAGE, "table": TABLE[:, 0]}, {}, r"x\['table'\]: shape \[48\]; give vectors \[M, F\]"),
        ({"image": IMAGE, "table": TABLE}, {"normalize": "unit"}, "normalize: 'unit' is of images alone"),
        ({"image": IMAGE, 1: TABLE}, {}, "x: 1 is no name of an input"),
    ],
)
def test_wrong_inputs_are_named(x: Any, options: dict[str, Any], line: str) -> None:
    with pytest.raises(BadInput, match=f"^{line}"):
        fw.Federation.from_arrays(x, LABEL, client=CLIENT, **options)


def test_small_clients_are_left_out() -> None:
    owners = ["Di", *CLIENT[1:]]
    data = fw.Federation.from_arrays({"image": IMAGE, "table": TABLE}, LABEL, client=owners, min_rows=5)
    assert data.names == ("Ann", "Bob", "Cy")


def test_inputs_of_another_shape_or_name_are_refused() -> None:
    with pytest.raises(BadInput, match="it is given batches image: "):
        fw.fit("local", federation(), model=lambda: nn.Sequential(nn.Linear(3, 3)), **OPTIONS)
    result = fw.fit("local", federation(), model="linear", **OPTIONS)
    for rows, line in (
        ({"image": IMAGE}, r"x: give all inputs of the training: {'image': \[M, 1, 4, 4\], 'table': \[M, 3\]}"),
        ({"image": IMAGE, "table": TABLE[:, :2]}, r"x\['table'\]: float64 \[48, 2\]; give numbers \[M, 3\]"),
        ({"image": IMAGE / 255, "table": TABLE}, "x: is an array of fractions"),
        ({"image": IMAGE, "table": TABLE[:5]}, "x: its inputs have 48, 5 rows"),
    ):
        with pytest.raises(BadInput, match=line):
            result.predict(rows, "Ann")
