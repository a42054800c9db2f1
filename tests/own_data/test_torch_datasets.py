"""Data sets of PyTorch as the rows of clients."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import fedweave as fw
from fedweave.errors import BadInput

X, Y = torch.randn(40, 3, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
ROWS = TensorDataset(X, Y)


class Images(Dataset[Any]):
    """Images of PIL with a name for a label, in mappings."""

    def __init__(self, mode: str, noise: bool = False) -> None:
        self.mode, self.noise = mode, noise

    def __len__(self) -> int:
        return 8

    def __getitem__(self, row: int) -> dict[str, Any]:
        pixels = np.random.default_rng(None if self.noise else row).integers(0, 256, (5, 4, 3), dtype=np.uint8)
        return {"image": Image.fromarray(pixels).convert(self.mode), "name": "ab"[row % 2]}


class Buffer(Dataset[Any]):
    """Rows that are one array, which each reading fills anew."""

    def __init__(self) -> None:
        self.row = np.zeros(2)

    def __len__(self) -> int:
        return 20

    def __getitem__(self, row: int) -> tuple[np.ndarray, int]:
        self.row[:] = row
        return self.row, row % 2


class Stream(IterableDataset[Any]):
    """Rows without numbers."""

    def __iter__(self) -> Iterator[Any]:
        return iter(ROWS)


def test_rows_are_those_of_arrays_with_the_given_parts() -> None:
    """Clients keep their names, and data sets of parts are the split. Without them the default splits."""
    of_part = {"train": range(20), "Validation": range(20, 30), "test": range(30, 40)}
    parts = {part: Subset(ROWS, rows) for part, rows in of_part.items()}
    federation = fw.Federation.from_torch({"Ann": parts, 2: parts})
    split = [*["train"] * 20, *["val"] * 10, *["test"] * 10]
    x, y = np.concatenate([X, X]), np.concatenate([Y, Y])
    arrays = {"x": x, "y": y, "client": ["Ann"] * 40 + ["2"] * 40, "split": split * 2}
    expected = fw.Federation.from_arrays(**arrays)
    for name, owner in (("Ann", 0), ("2", 1)):
        for part in ("train", "val", "test"):
            own = [getattr(one.partition, part)[one.names.index(name)] for one in (federation, expected)]
            values = [one.dataset.x[rows] for one, rows in zip((federation, expected), own, strict=True)]
            np.testing.assert_array_equal(*values)
            assert len(own[0]) == len(of_part["Validation" if part == "val" else part]), owner
    without = {name: {part: parts[part] for part in ("train", "test")} for name in ("Ann", "Bob")}
    assert [len(rows) for rows in fw.Federation.from_torch(without).partition.val] == [4, 4]
    plain = fw.Federation.from_torch([ROWS, ROWS], shares={"train": 0.5, "val": 0.25, "test": 0.25})
    assert plain.names == ("client 0", "client 1")
    assert [len(rows) for rows in plain.partition.train] == [20, 20]


@pytest.mark.parametrize(("mode", "channels"), [("L", 1), ("RGB", 3)])
def test_images_of_pil_have_their_channels_first(mode: str, channels: int) -> None:
    federation = fw.Federation.from_torch([Images(mode), Images(mode)], x="image", y="name")
    assert federation.dataset.x.shape == (16, channels, 5, 4)
    assert federation.dataset.x.dtype == np.uint8
    first = np.asarray(Images(mode)[0]["image"])
    np.testing.assert_array_equal(federation.dataset.x[0], first[None] if channels == 1 else first.transpose(2, 0, 1))
    assert federation.classes == ("a", "b")


def test_images_of_more_bits_are_numbers_and_what_is_transparent_is_white() -> None:
    """A conversion to bytes would cut off their values."""
    deep = [(Image.fromarray(np.full((4, 5), 1000 * i, dtype=np.uint16)), i % 2) for i in range(10)]
    federation = fw.Federation.from_torch([deep, deep], normalize="none")
    np.testing.assert_array_equal(federation.dataset.x[:10, 0, 0, 0], 1000 * np.arange(10))
    clear = [(Image.new("RGBA", (5, 4), (i, 0, 0, 0)), i % 2) for i in range(10)]
    assert (fw.Federation.from_torch([clear, clear]).dataset.x == 255).all()


def test_texts_and_missing_numbers_are_read_as_from_arrays() -> None:
    words = [(f"{'good' if i % 2 else 'bad'} day {i}", i % 2) for i in range(20)]
    assert fw.Federation.from_torch([words, words]).dataset.x.shape[0] == 40
    with pytest.raises(BadInput, match=r"x of own-data: nan at \[0, 1\]"):
        fw.Federation.from_torch([[(np.array([1.0, np.nan]), i % 2) for i in range(20)]])


def test_rows_of_one_buffer_are_copied() -> None:
    federation = fw.Federation.from_torch([Buffer()], normalize="none")
    np.testing.assert_array_equal(federation.dataset.x.reshape(20, 2)[:, 0], np.arange(20))


def test_a_client_without_rows_is_left_out_with_a_note() -> None:
    federation = fw.Federation.from_torch({"Ann": ROWS, "Bob": Subset(ROWS, [])})
    assert federation.names == ("Ann",)
    assert federation.notes == ("1 client without any rows left out",)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "one data set": (lambda: ROWS, "TensorDataset.* is not a list or a mapping of one data set of each client"),
    "none": (list, "has no data set; give one of each client"),
    "a loader": (lambda: {"Ann": DataLoader(ROWS)}, "'Ann' is a DataLoader; give its data set, as a Subset where"),
    "a stream": (lambda: [Stream()], "'client 0' is Stream; give a data set with a length"),
    "random transforms": (lambda: [Images("L", noise=True)], "'client 0' draws its rows anew at each reading"),
    "other rows": (lambda: [ROWS], r"'client 0': row 0 cannot be read \(TypeError: .*x='image' and y='name' say where"),
    "a part of one": (lambda: {"A": {"train": ROWS}, "B": ROWS}, "'A' has the parts train, and 'B' one data set"),
    "two of a name": (lambda: {1: ROWS, "1": ROWS}, "two clients have the same name, such as 1 and '1'"),
    "a part twice": (lambda: [{"train": ROWS, "val": ROWS, "Validation": ROWS}], "train, val, Validation two are the"),
    "no test": (lambda: [{"train": ROWS, "val": ROWS}], "has the parts train, val, and no test; give it, or one data"),
    "arrays": (lambda: [(X, Y)], r"'client 0' is 2 arrays; give TensorDataset\(x, y\), or arrays with from_arrays"),
    "an unknown part": (lambda: [{"training rows": ROWS}], "'training rows' is no part; choices: train, val, test"),
}


@pytest.mark.parametrize("case", BAD)
def test_other_data_sets_are_refused_in_one_line(case: str) -> None:
    make, words = BAD[case]
    with pytest.raises(BadInput, match=words) as caught:
        fw.Federation.from_torch(make(), x="image", y="name")
    assert "\n" not in str(caught.value)
