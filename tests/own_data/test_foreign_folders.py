"""Folders of LEAF, PFLlib and TensorFlow Federated, written here as these projects write them."""

import json
import pickle
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import fedweave as fw
from fedweave.errors import BadInput

SIZES = {"train": 8, "test": 4}
USERS = ("f0001_41", "f0002_07", "f0003_13")


def rows(user: int, part: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    draws = np.random.default_rng([user, SIZES[part]])
    return draws.random((SIZES[part], *shape)).astype(np.float32), np.arange(SIZES[part]) % 2


def write_leaf(folder: Path, skip: str = "", text: bool = False) -> Path:
    """As `data/utils/split_data.py` of LEAF: one file a part, of which there may be several."""
    for part, n in SIZES.items():
        (folder / part).mkdir(parents=True)
        for i, user in enumerate(USERS):
            if part == "test" and user == skip:
                continue
            x, y = rows(i, part, (784,))
            data: Any = x.tolist() if not text else [["1", "Mon", "q", "u", f"word {k}"] for k in range(n)]
            content = {"users": [user], "num_samples": [n], "user_data": {user: {"x": data, "y": y.tolist()}}}
            (folder / part / f"all_data_{i}_keep_0_{part}_8.json").write_text(json.dumps(content))
    return folder


def write_pfllib(folder: Path, data: Any = None, sizes: Any = None) -> Path:
    """As `save_file` of PFLlib: an object `data` for each client, and config.json."""
    for part in SIZES:
        (folder / part).mkdir(parents=True)
        for i in range(11):
            x, y = rows(i, part, sizes[i % 2] if sizes else (1, 8, 8))
            with (folder / part / f"{i}.npz").open("wb") as file:
                np.savez_compressed(file, data=np.array({"x": x, "y": y} if data is None else data, dtype=object))
    config = {
        "num_clients": 11,
        "num_classes": 2,
        "non_iid": True,
        "balance": False,
        "partition": "dir",
        "Size of samples for labels in clients": [],
        "alpha": 0.1,
        "batch_size": 10,
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_flbench(folder: Path, val: bool = True, images: bool = False) -> Path:
    """As `generate_data.py` of FL-bench: all rows, and a pickle with the rows of each client's parts."""
    folder.mkdir(parents=True)
    parts = {"train": 8, "val": 3 * val, "test": 4}
    size, indices = sum(parts.values()), []
    for i in range(3):
        places = iter(np.arange(i * size, (i + 1) * size))
        indices.append({part: np.array([next(places) for _ in range(n)], dtype=np.int32) for part, n in parts.items()})
    clients = [0, 1, 2]
    partition = {"separation": {"train": clients, "val": clients, "test": clients, "total": 3}, "data_indices": indices}
    (folder / "partition.pkl").write_bytes(pickle.dumps(partition))
    draws = np.random.default_rng(5)
    x = draws.integers(256, size=(3 * size, 28, 28, 3), dtype=np.uint8) if images else draws.random((3 * size, 16))
    names = ("raw/xdata.npy", "raw/ydata.npy") if images else ("data.npy", "targets.npy")
    (folder / "raw").mkdir()
    np.save(folder / names[0], x)
    np.save(folder / names[1], (np.arange(3 * size) % 2)[:, None] if images else np.arange(3 * size) % 2)
    return folder


def replace_test_rows(folder: Path, rows: Any) -> None:
    """Replace the test rows of the first client in a partition of FL-bench."""
    content = pickle.loads((folder / "partition.pkl").read_bytes())
    content["data_indices"][0]["test"] = rows
    (folder / "partition.pkl").write_bytes(pickle.dumps(content))


def write_tff(folder: Path, texts: bool = False, label: Any = None) -> Path:
    """As the files of `tff.simulation.datasets`: examples/CLIENT/NAME."""
    folder.mkdir()
    for part, n in SIZES.items():
        with h5py.File(folder / f"fed_emnist_{part}.h5", "w") as file:
            for i, user in enumerate(USERS):
                x, y = rows(i, part, (28, 28))
                group = file.create_group(f"examples/{user}")
                group.create_dataset("pixels", data=[f"t {k}".encode() for k in range(n)] if texts else x)
                group.create_dataset("label", data=y.astype(np.int32) if label is None else label)
    return folder


def expected(count: int, part: str, shape: tuple[int, ...]) -> list[np.ndarray]:
    return [rows(i, part, shape)[0] for i in range(count)]


def check(federation: fw.Federation, inputs: list[np.ndarray], tests: list[np.ndarray], size: tuple[int, ...]) -> None:
    """Every row is where its framework has put it, to the last digit; some training rows validate."""
    x, partition = federation.dataset.x, federation.partition
    for i, (own, test) in enumerate(zip(inputs, tests, strict=True)):
        mine = np.sort(np.concatenate([partition.train[i], partition.val[i]]))
        assert len(partition.val[i])
        assert np.array_equal(x[mine].reshape(len(mine), -1), own.reshape(len(own), -1))
        assert np.array_equal(x[partition.test[i]].reshape(len(test), -1), test.reshape(len(test), -1))
    assert federation.shape == size


def test_leaf_is_read_as_it_was_written(tmp_path: Path) -> None:
    federation = fw.Federation.from_file(write_leaf(tmp_path / "femnist"))
    assert federation.names == USERS
    check(federation, expected(3, "train", (784,)), expected(3, "test", (784,)), (784,))
    images = fw.Federation.from_leaf(tmp_path / "femnist", shape=(1, 28, 28), val=0.25)
    assert images.dataset.x.shape == (36, 1, 28, 28)
    one = min((tmp_path / "femnist" / "train").glob("*.json"))
    assert fw.Federation.from_file(one).names == USERS[:1]


def test_pfllib_is_read_as_it_was_written(tmp_path: Path) -> None:
    federation = fw.Federation.from_file(write_pfllib(tmp_path / "MNIST"))
    assert federation.names == tuple(map(str, range(11)))
    check(federation, expected(11, "train", (1, 8, 8)), expected(11, "test", (1, 8, 8)), (1, 8, 8))
    assert federation.name == "MNIST"


def test_flbench_is_read_as_it_was_written(tmp_path: Path) -> None:
    """Its validation rows stay; where there are none, some training rows validate."""
    folder = write_flbench(tmp_path / "synthetic")
    federation = fw.Federation.from_file(folder, normalize="none")
    assert (federation.name, federation.names) == ("synthetic", ("0", "1", "2"))
    stored, partition = np.load(folder / "data.npy"), federation.partition
    for part, first, count in (("train", 0, 8), ("val", 8, 3), ("test", 11, 4)):
        for i, own in enumerate(getattr(partition, part)):
            expected_rows = stored[15 * i + first : 15 * i + first + count]
            assert np.allclose(federation.dataset.x[own].reshape(count, 16), expected_rows)
    square = fw.Federation.from_flbench(write_flbench(tmp_path / "no-val", val=False), shape=(1, 4, 4), val=0.25)
    assert (square.shape, [len(own) for own in square.partition.val]) == ((1, 4, 4), [2, 2, 2])
    images = fw.Federation.from_flbench(write_flbench(tmp_path / "covid19", images=True))
    assert images.dataset.x.dtype == np.uint8
    assert np.array_equal(
        images.dataset.x[images.partition.train[1][0]],
        np.moveaxis(np.load(tmp_path / "covid19" / "raw" / "xdata.npy")[15], -1, 0),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "data.npy").unlink(), "has a partition of FL-bench, but not its rows"),
        (lambda folder: (folder / "partition.pkl").write_bytes(pickle.dumps({"a": 1})), "is not a partition of FL-b"),
        (lambda folder: (folder / "partition.pkl").write_bytes(pickle.dumps(Evil())), "damaged, or of another kind"),
        (lambda folder: np.save(folder / "data.npy", np.zeros((3, 16))), r"the shapes \[3, 16\] and \[45\]; give both"),
        (lambda folder: np.save(folder / "data.npy", np.array(1.0)), r"the shapes \[\] and \[45\]; give both"),
        (lambda folder: np.save(folder / "targets.npy", np.eye(45, 2)), r"the shapes \[45, 16\] and \[45, 2\]; give"),
        (lambda folder: replace_test_rows(folder, [44, 45]), "names row 45, but rows are 0 to 44; divide the data set"),
        (lambda folder: replace_test_rows(folder, [11, -1]), "names row -1, but rows are 0 to 44; divide the data set"),
        (lambda folder: replace_test_rows(folder, [11.5]), r"data_indices: \[11.5\] is no list of numbers of rows"),
        (lambda folder: replace_test_rows(folder, [True]), r"data_indices: \[True\] is no list of numbers of rows"),
        (lambda folder: replace_test_rows(folder, 3), "data_indices: 3 is no list of numbers of rows; divide"),
    ],
)
def test_a_damaged_folder_of_flbench_is_one_line(tmp_path: Path, change: Any, message: str) -> None:
    change(write_flbench(tmp_path / "synthetic"))
    with pytest.raises(BadInput, match=message):
        fw.Federation.from_flbench(tmp_path / "synthetic")


def test_tff_is_read_as_it_was_written(tmp_path: Path) -> None:
    federation = fw.Federation.from_file(write_tff(tmp_path / "emnist"), normalize="none")
    assert federation.names == USERS
    check(federation, expected(3, "train", (28, 28)), expected(3, "test", (28, 28)), (1, 28, 28))
    one = fw.Federation.from_tff(tmp_path / "emnist" / "fed_emnist_train.h5", features="pixels", label="label")
    assert one.dataset.x.shape[0] == 24


def test_texts_are_words(tmp_path: Path) -> None:
    leaf = fw.Federation.from_leaf(write_leaf(tmp_path / "sent140", text=True), field=4)
    tff = fw.Federation.from_tff(write_tff(tmp_path / "tff", texts=True))
    assert leaf.dataset.x.shape == tff.dataset.x.shape == (36, 256, 1, 1)


def test_clients_without_test_rows_are_left_out_and_counted(tmp_path: Path) -> None:
    federation = fw.Federation.from_leaf(write_leaf(tmp_path / "leaf", skip=USERS[1]))
    assert federation.names == (USERS[0], USERS[2])
    assert "1 client without train or test rows left out" in federation.notes


class Evil:
    """Its pickle would call a function."""

    def __reduce__(self) -> Any:
        return eval, ("1/0",)


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda p: write_leaf(p, text=True), r"field: a row of .* is .*; say which entry is the input"),
        (lambda p: write_pfllib(p, {"y": [1]}), r"0\.npz: is not a file of PFLlib; its object data has no x and y"),
        (lambda p: write_pfllib(p, {"x": [("a", 1)], "y": [1]}), r"0\.npz: x: is not one array of numbers"),
        (lambda p: write_pfllib(p, {"x": Evil(), "y": [1]}), r"0\.npz: damaged, .*refuses to load builtins\.eval"),
        (lambda p: write_pfllib(p, {"x": 3, "y": [1]}), r"0\.npz: is not a file of PFLlib; its object data has"),
        (lambda p: write_pfllib(p, {"x": [1], "y": np.array(3)}), r"0\.npz: is not a file of PFLlib; its object data"),
        (lambda p: write_pfllib(p, sizes=((1, 8, 8), (1, 9, 9))), r"folder: x: rows have different shapes; give"),
        (lambda p: write_tff(p, label=3), r"_train\.h5: f0001_41: pixels and label are no arrays of one length"),
        (lambda p: write_tff(p, label=[1, 2]), r"_train\.h5: f0001_41: pixels and label are no arrays of one length"),
    ],
)
def test_folders_that_cannot_be_read_are_refused(tmp_path: Path, write: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        fw.Federation.from_file(write(tmp_path / "folder"))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", b"[1]", "a.json: is not a file of LEAF; it has no mapping user_data"),
        ("a.json", b'{"user_data": {"u": {"x": [1]}}}', "user_data: 'u' has no x and y of one length"),
        ("a.json", b'{"user_data": {"u": {"x": 1, "y": [1]}}}', "user_data: 'u' has no x and y of one length"),
        ("a.json", b'{"user_data": {"u": {"x": ["a"], "y": "b"}}}', "user_data: 'u' has no x and y of one length"),
        ("a.json", b'{"user_data": {"u": {"x": [[1], [2]], "y": [[1], [1, 2]]}}}', "y: rows have different shapes"),
        ("a.json", b"{", "a.json: damaged, or of another kind"),
        ("a.h5", b"no", "a.h5: damaged, or of another kind"),
        ("a.csv", b"x,y\n1,2\n", "client: missing; name the column of"),
    ],
)
def test_files_that_cannot_be_read_are_refused(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput, match=re.escape(message)):
        fw.Federation.from_file(tmp_path / name)


@pytest.mark.parametrize(
    ("text", "field", "message"),
    [
        (True, 9, r"field: 9 is no position in a row of .*\.json, \['1', .*'word 0'\]; give another one, or none"),
        (True, -6, "field: -6 is no position in a row of"),
        (True, "4", "field: '4' must be a whole number, as field=4 of Sent140"),
        (False, 784, "field: 784 is no position in a row of"),
    ],
)
def test_a_field_that_rows_do_not_have_is_refused(tmp_path: Path, text: bool, field: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        fw.Federation.from_leaf(write_leaf(tmp_path / "leaf", text=text), field=field)


def test_a_field_of_rows_that_are_numbers_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(json.dumps({"user_data": {"u": {"x": [0.5, 1.5], "y": [0, 1]}}}))
    with pytest.raises(BadInput, match=r"field: 0 is no position in a row of .*a\.json, 0\.5; give another"):
        fw.Federation.from_leaf(file, field=0)
