"""Arbitrary content for every parser: it is read, or refused as bad input, without any other error. Also properties of
specifications and partitions.
"""

import copy
import json
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from numpy.lib.format import open_memmap

from fedweave import data
from fedweave.data import DATASETS, require_files
from fedweave.data.base import Dataset
from fedweave.data.partitions.registry import PARTITIONS
from fedweave.data.sources import origins
from fedweave.data.sources.traffic import read_hdf5
from fedweave.data.sources.transfer import SourceError, extract
from fedweave.errors import BadInput
from fedweave.files.atomic import load_tensors, read
from fedweave.results.runs import read_scores
from fedweave.study import schema, spec, validate
from fedweave.study.config import construct
from tests import valid_files
from tests.study.test_spec import good

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

# Values that a user, a script or a broken disk may put into a YAML file.
scalars = (
    st.none() | st.booleans() | st.integers(-3, 3) | st.integers() | st.floats() | st.text(max_size=5) | st.just("1e3")
)
names = st.text(max_size=4) | st.integers()
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))


def refusal(act: Callable[[], Any], kind: type[Exception] = BadInput) -> str | None:
    """The line with which `act` refuses its input by an error of this kind, or None."""
    try:
        act()
    except kind as error:
        return str(error)
    return None


def valid_or_refused(act: Callable[[], Any], kind: type[Exception] = BadInput) -> None:
    """`act` succeeds, or refuses its input in one line."""
    line = refusal(act, kind)
    assert line is None or (line and "\n" not in line)


def key_paths(node: Any, path: tuple = ()) -> list[tuple]:
    """Every path into a tree of mappings and lists."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, value in inner for place in key_paths(value, (*path, key)))]


@MANY
@given(st.data())
def test_any_value_anywhere_in_a_configuration(drawn: st.DataObject) -> None:
    """One or two entries of a valid file are replaced by arbitrary values."""
    content = copy.deepcopy(good())
    for _ in range(drawn.draw(st.integers(1, 2))):
        *parents, key = drawn.draw(st.sampled_from([place for place in key_paths(content) if place]))
        node = content
        for parent in parents:
            node = node[parent]
        node[key] = drawn.draw(values)
    valid_or_refused(lambda: validate.check(spec.parse(content)))


@MANY
@given(st.dictionaries(st.text(max_size=6), values, max_size=4))
def test_any_mapping_as_a_configuration(content: dict[str, Any]) -> None:
    """The keys are arbitrary."""
    valid_or_refused(lambda: validate.check(spec.parse(content)))


@MANY
@given(
    content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode),
    at=st.integers(0, 10_000),
    patch=st.binary(max_size=3),
)
def test_any_bytes_as_yaml(content: bytes, at: int, patch: bytes, tmp_path: Path) -> None:
    """Random bytes, and a valid file with a few bytes changed."""
    original = Path("studies/base.yaml").read_bytes() if Path("studies/base.yaml").exists() else b"a: {b: [1, 2]}\n"
    for text in (content, original[:400][: at % 400] + patch + original[at % 400 + len(patch) : 400]):
        (tmp_path / "params.yaml").write_bytes(text)
        valid_or_refused(lambda: spec.read_yaml(tmp_path / "params.yaml"))


@given(st.dictionaries(st.sampled_from(sorted(schema.TrainSpec.__dataclass_fields__)), values, max_size=5))
@MANY
def test_a_train_block_is_typed_or_refused(block: dict[str, Any]) -> None:
    """An accepted block has the annotated types and is within its bounds."""
    line = refusal(lambda: construct(schema.TrainSpec, {"rounds": 1, "lr": 0.1, **block}, "train"))
    if line is not None:
        assert "train." in line
        return
    train = construct(schema.TrainSpec, {"rounds": 1, "lr": 0.1, **block}, "train")
    assert isinstance(train.rounds, int)
    assert train.rounds >= 1
    assert isinstance(train.lr, float)
    assert np.isfinite(train.lr)
    assert train.lr >= 0
    assert 0 <= train.momentum <= 1


AGAIN = "write it again"
# kind of file -> (a valid file, its reader, what it raises for a damaged one)
READERS: dict[str, tuple[Callable[[], list[bytes]], Callable[[Path], Any], type[Exception]]] = {
    "array": (valid_files.arrays, lambda path: read(path, partial(open_memmap, mode="r"), AGAIN), BadInput),
    "partition": (valid_files.partitions, data.load_partition, BadInput),
    "table": (valid_files.tables, read_hdf5, BadInput),
    "scores": (valid_files.evaluations, read_scores, BadInput),
    "checkpoint": (valid_files.checkpoints, lambda path: read(path, load_tensors, AGAIN), BadInput),
    "tar.gz": (valid_files.tar, lambda path: extract(path, {"m": path.parent / "out"}), SourceError),
    "zip": (valid_files.zips, lambda path: extract(path, {"m": path.parent / "out"}), SourceError),
}


@cache
def valid_contents(kind: str) -> list[bytes]:
    return READERS[kind][0]()


@pytest.mark.parametrize("kind", READERS)
@FEW
@given(drawn=st.data())
def test_damaged_files_are_read_or_refused(kind: str, drawn: st.DataObject, tmp_path: Path) -> None:
    """Bytes are changed, or the end is cut off."""
    _, reader, refusal_type = READERS[kind]
    content = bytearray(drawn.draw(st.sampled_from(valid_contents(kind))))
    for place in drawn.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=8)):
        content[place] = drawn.draw(st.integers(0, 255))
    path = tmp_path / f"file.{kind}"
    path.write_bytes(content[: drawn.draw(st.integers(0, len(content)) | st.just(len(content)))])
    valid_or_refused(lambda: reader(path), refusal_type)


@pytest.mark.parametrize("kind", READERS)
def test_valid_files_are_read(kind: str, tmp_path: Path) -> None:
    for content in valid_contents(kind):
        (tmp_path / f"file.{kind}").write_bytes(content)
        READERS[kind][1](tmp_path / f"file.{kind}")


@pytest.mark.parametrize("name", sorted(name for name in DATASETS if origins.CATALOGUE[name]))
def test_junk_is_refused_as_a_data_set(name: str, tmp_path: Path) -> None:
    """With a known digest, no other file is opened. Without one, the loader finds the error."""
    for file in origins.CATALOGUE[name][0].files[:12]:
        (tmp_path / file.path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file.path).write_bytes(b"junk")
    if all(file.digest != origins.ANY for file in origins.CATALOGUE[name][0].files):
        with pytest.raises(BadInput):
            require_files(name, tmp_path)
    else:
        require_files(name, tmp_path)
        with pytest.raises(BadInput):
            data.load(name, tmp_path)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small prepared data set and its partition."""
    folder = tmp_path_factory.mktemp("prepared")
    dataset = toy(40)
    data.save_dataset(folder / "set", dataset)
    data.save_partition(folder / "p.npz", data.partition(dataset, "iid", 3, 0))
    return folder


def toy(count: int, classes: int = 4) -> Dataset:
    """Rows with labels in turn."""
    y = np.arange(count, dtype=np.int64) % classes
    return Dataset("toy", "images", np.ones((count, 1, 2, 2), np.float32), y, classes)


@MANY
@given(
    name=st.sampled_from(["set/meta.json", "set/x.npy", "set/y.npy", "p.npz"]),
    at=st.integers(0, 5000),
    patch=st.binary(min_size=1, max_size=8),
    cut=st.booleans(),
)
def test_damaged_prepared_data_are_read_or_refused(prepared: Path, name: str, at: int, patch: bytes, cut: bool) -> None:
    """Bytes are changed or cut off. The arrays are read and checked, or the line names the stage to run again."""
    original = (prepared / name).read_bytes()
    place = at % len(original)
    (prepared / name).write_bytes(
        original[:place] if cut else original[:place] + patch + original[place + len(patch) :]
    )
    try:
        valid_or_refused(
            lambda: data.check_fits(data.load_dataset(prepared / "set"), data.load_partition(prepared / "p.npz"))
        )
    finally:
        (prepared / name).write_bytes(original)


@FEW
@given(value=values, key=st.sampled_from(["x", "y", "kind", "classes", "names", "arrays", "note"]))
def test_any_value_in_meta_json(prepared: Path, value: Any, key: str) -> None:
    """The types are not those of a data set."""
    original = (prepared / "set" / "meta.json").read_text()
    try:
        (prepared / "set" / "meta.json").write_text(json.dumps({**json.loads(original), key: value}, skipkeys=True))
        valid_or_refused(lambda: data.load_dataset(prepared / "set"))
    finally:
        (prepared / "set" / "meta.json").write_text(original)


OPTIONS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "iid": st.just({}),
    "shards": st.fixed_dictionaries({"classes": st.integers(1, 4)}),
    "classes": st.fixed_dictionaries({"classes": st.integers(1, 4)}),
    "clusters": st.fixed_dictionaries({"classes": st.integers(1, 4)}),
    "dirichlet": st.fixed_dictionaries(
        {"beta": st.floats(0.05, 10), "minimum": st.integers(3, 8), "attempts": st.just(40)}
    ),
    "lda": st.fixed_dictionaries({"alpha": st.floats(0.05, 10)}),
    "dominant": st.fixed_dictionaries({"classes": st.integers(1, 3), "dominance": st.floats(0.1, 0.9)}),
    "grouped": st.fixed_dictionaries({"groups": st.integers(1, 4), "share": st.floats(0.1, 1.0)}),
}


@MANY
@given(st.sampled_from(sorted(OPTIONS)), st.integers(1, 12), st.integers(8, 300), st.integers(0, 2**31 - 1), st.data())
def test_a_partition_is_valid_or_refused(name: str, clients: int, count: int, seed: int, drawn: st.DataObject) -> None:
    """No repeated row, no missing row, no empty client, and the same result again; otherwise a refusal in one line."""
    assume(name in PARTITIONS)
    dataset, options = toy(count), drawn.draw(OPTIONS[name])
    line = refusal(lambda: data.partition(dataset, name, clients, seed, **options))
    if line is not None:
        assert line.startswith("partition")
        return
    partition = data.partition(dataset, name, clients, seed, **options)
    data.check_fits(dataset, partition)
    rows = np.concatenate([*partition.train, *partition.val, *partition.test])
    assert len(np.unique(rows)) == len(rows) <= count
    assert all(len(part) for parts in (partition.train, partition.val, partition.test) for part in parts)
    again = data.partition(dataset, name, clients, seed, **options)
    assert all(np.array_equal(a, b) for a, b in zip(partition.train, again.train, strict=True))
