"""Arrays of each client: the federation is that of the joined rows, and inconsistent input is refused in one line."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

import fedweave as fw
from fedweave.errors import BadInput

COUNTS = {"Ann": 30, "Bob": 20, "Cy": 25}
RNG = np.random.default_rng(0)
X = {name: RNG.normal(size=(count, 4)) for name, count in COUNTS.items()}
Y = {name: np.arange(count) % 3 for name, count in COUNTS.items()}
WHO = [name for name, count in COUNTS.items() for _ in range(count)]


def join(rows_of: dict[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([*rows_of.values()])


def assert_same_federation(a: fw.Federation, b: fw.Federation) -> None:
    assert a.names == b.names
    assert a.partition_block == b.partition_block  # a hash of rows, classes and parts
    np.testing.assert_array_equal(a.dataset.x, b.dataset.x)


def test_rows_of_each_client_are_those_of_all_joined() -> None:
    """`y` has the order of the clients. `x` may have another order."""
    backwards = {name: X[name] for name in [*X][::-1]}
    joined = fw.Federation.from_arrays(join(X), join(Y), client=WHO)
    assert_same_federation(fw.Federation.from_arrays(backwards, Y), joined)
    assert_same_federation(fw.Federation.from_arrays({n: x.tolist() for n, x in X.items()}, Y), joined)


def test_options_of_rows_may_be_given_per_client() -> None:
    times = {name: RNG.permutation(count) for name, count in COUNTS.items()}
    sessions = {name: [f"{name} {i // 5}" for i in range(count)] for name, count in COUNTS.items()}
    parts = {name: RNG.permutation(["train"] * (n - 8) + ["val"] * 4 + ["test"] * 4) for name, n in COUNTS.items()}
    for option, rows_of in {"time": times, "recording": sessions, "split": parts}.items():
        single = fw.Federation.from_arrays(X, Y, **{option: rows_of})
        assert_same_federation(
            single, fw.Federation.from_arrays(join(X), join(Y), client=WHO, **{option: join(rows_of)})
        )


def test_a_split_by_parts_is_not_read_as_one_by_clients() -> None:
    part = np.arange(75) % 5
    rows = {"train": np.flatnonzero(part < 3), "val": np.flatnonzero(part == 3), "test": np.flatnonzero(part == 4)}
    joined = fw.Federation.from_arrays(join(X), join(Y), client=WHO, split=rows)
    assert_same_federation(fw.Federation.from_arrays(X, Y, split=rows), joined)


def test_series_may_be_given_per_client() -> None:
    series = {name: np.sin(np.arange(60) / 5 + i) for i, name in enumerate(COUNTS)}
    days = {name: np.arange("2024-01-01", "2024-03-01", dtype="datetime64[D]") for name in COUNTS}
    joined = fw.Federation.from_arrays(
        None, join(series), client=np.repeat([*COUNTS], 60), time=join(days), window=4, horizon=2
    )
    assert_same_federation(fw.Federation.from_arrays(None, series, time=days, window=4, horizon=2), joined)
    texts = {**days, "Bob": days["Bob"].astype(str)}
    assert_same_federation(fw.Federation.from_arrays(None, series, time=texts, window=4, horizon=2), joined)


def test_texts_may_be_given_per_client() -> None:
    texts = {name: [f"word{i % 3} {name}" for i in range(count)] for name, count in COUNTS.items()}
    joined = fw.Federation.from_arrays([text for rows in texts.values() for text in rows], join(Y), client=WHO)
    assert_same_federation(fw.Federation.from_arrays(texts, Y), joined)


def test_classes_may_be_numbers_of_one_client_and_names_of_another() -> None:
    """But not the number 1 and the text 1, which would have one name."""
    x, names = {"a": X["Ann"], "b": X["Ann"]}, ["one", "two", "three"] * 10
    federation = fw.Federation.from_arrays(x, {"a": Y["Ann"], "b": names})
    assert federation.classes == ("0", "1", "2", "one", "three", "two")
    with pytest.raises(fw.BadInput, match="two labels of several types have the same name, such as 1 and '1'"):
        fw.Federation.from_arrays(x, {"a": Y["Ann"], "b": ["one", "two", "1"] * 10})


@pytest.mark.parametrize(
    ("x", "y", "client", "message"),
    [
        (X, Y, WHO, "client: x or y is {client: rows}, which names the clients; leave client out"),
        (join(X), join(Y), None, "client: is missing; give the client of each row, or x and y as {client: rows}"),
        (X, join(Y), None, "client: is missing; give the client of each row, or x and y as {client: rows}"),
        (X, {**Y, "Di": [0, 1]}, None, "x: has no client 'Di', but y has; give both the same clients"),
        ({**X, "Di": [[0.0] * 4]}, Y, None, "y: has no client 'Di', but x has; give both the same clients"),
        (X, {**Y, "Cy": Y["Cy"][1:]}, None, "x: client 'Cy' has 25 rows, but y has 24; give one for each"),
        ({}, {}, None, "y: {} has no client; give {client: rows}"),
        (X, {**Y, "Cy": []}, None, "y: client 'Cy' has no rows; leave it out"),
        (X, {**Y, "Cy": 3}, None, "y: client 'Cy' has 3; give its rows, as a list or an array"),
        (
            {**X, "Bob": X["Bob"][:, 1:]},
            Y,
            None,
            "x: client 'Ann' has float64 [4] and client 'Bob' has float64 [3] in a row",
        ),
        ({**X, "Bob": [[1.0], [2.0, 3.0]] * 10}, Y, None, "x: the rows have different lengths; look at client 'Bob'"),
    ],
)
def test_bad_input_is_refused(x: object, y: object, client: object, message: str) -> None:
    with pytest.raises(BadInput) as caught:
        fw.Federation.from_arrays(x, y, client=client)
    assert str(caught.value).startswith(message)


def test_images_with_channels_last_are_refused() -> None:
    """A network would read their rows as channels, and train."""
    images = RNG.integers(0, 255, (30, 16, 12, 3), dtype=np.uint8)
    with pytest.raises(
        BadInput, match=r"x: shape \[30, 16, 12, 3\] has the channels of images last; .*transpose\(0, 3, 1, 2\)"
    ):
        fw.Federation.from_arrays({"a": images}, {"a": Y["Ann"]})
    with pytest.raises(BadInput, match="has the channels of images last"):
        fw.Federation.from_arrays({"a": np.zeros((30, 16, 16, 12))}, {"a": Y["Ann"]})
    assert fw.Federation.from_arrays({"a": images.transpose(0, 3, 1, 2)}, {"a": Y["Ann"]}).shape == (3, 16, 12)


def test_data_sets_of_pytorch_are_refused_and_the_line_says_how_to_give_their_rows() -> None:
    x, y = torch.randn(75, 4), torch.arange(75) % 3
    dataset = TensorDataset(x, y)
    arrays = next(iter(DataLoader(dataset, len(dataset))))
    assert_same_federation(fw.Federation.from_arrays(*arrays, client=WHO), fw.Federation.from_arrays(x, y, client=WHO))
    for given in (dataset, DataLoader(dataset), Subset(dataset, range(75))):
        message = f"^x: is a {type(given).__name__} of PyTorch; give its rows as arrays, for a data set by x, y = next"
        with pytest.raises(BadInput, match=message):
            fw.Federation.from_arrays(given, y, client=WHO)
        with pytest.raises(BadInput, match=message):
            fw.Federation.from_arrays({"Ann": given, "Bob": given}, {"Ann": y, "Bob": y})
