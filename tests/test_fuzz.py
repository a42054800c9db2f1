"""Arbitrary content for every parser: it is read, or refused as bad input, and never anything else; and laws of specs and partitions."""

import copy
import gzip
import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from fedweave import assemble, blocks, data, spec
from fedweave.config import construct
from fedweave.data import DATASETS, catalogue, require
from fedweave.data.base import Dataset
from fedweave.data.partition import PARTITIONS
from fedweave.data.pickles import read_arrays
from fedweave.data.transfer import SourceError, extract
from fedweave.errors import BadInput
from fedweave.experiment import perform
from fedweave.results.runs import load_run
from tests.test_bad_files import ODD, bench
from tests.test_spec import good

FEW = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
MANY = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

MADE = bench(ODD[3][1])

# Values that a hand, a script or a broken disk may put anywhere in a YAML file.
scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.integers() | st.floats() | st.text(max_size=5) | st.just("1e3")
names = st.text(max_size=4) | st.integers()
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3))


def refusal(act: Callable[[], Any]) -> str | None:
    """The line with which `act` refuses its input, if it does."""
    try:
        act()
    except BadInput as error:
        return str(error)
    return None


def sound_or_refused(act: Callable[[], Any]) -> None:
    """`act` ends well, or with one line of bad input."""
    line = refusal(act)
    assert line is None or (line and "\n" not in line)


def places(node: Any, path: tuple = ()) -> list[tuple]:
    """Every path into a tree of mappings and lists."""
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    return [path, *(place for key, value in inner for place in places(value, (*path, key)))]


@MANY
@given(st.data())
def test_any_value_anywhere_in_a_configuration(drawn: st.DataObject) -> None:
    """One or two entries of a valid file replaced by anything."""
    content = copy.deepcopy(good())
    for _ in range(drawn.draw(st.integers(1, 2))):
        *parents, key = drawn.draw(st.sampled_from([place for place in places(content) if place]))
        node = content
        for parent in parents:
            node = node[parent]
        node[key] = drawn.draw(values)
    sound_or_refused(lambda: assemble.check(spec.parse(content)))


@MANY
@given(st.dictionaries(st.text(max_size=6), values, max_size=4))
def test_any_mapping_as_a_configuration(content: dict[str, Any]) -> None:
    """Whatever its keys."""
    sound_or_refused(lambda: assemble.check(spec.parse(content)))


@MANY
@given(content=st.binary(max_size=60) | st.text(max_size=60).map(str.encode), at=st.integers(0, 10_000), patch=st.binary(max_size=3))
def test_any_bytes_as_yaml(content: bytes, at: int, patch: bytes, tmp_path: Path) -> None:
    """Noise, and a valid file with a few bytes changed."""
    whole = Path("studies/base.yaml").read_bytes() if Path("studies/base.yaml").exists() else b"a: {b: [1, 2]}\n"
    for text in (content, whole[:400][: at % 400] + patch + whole[at % 400 + len(patch) : 400]):
        (tmp_path / "params.yaml").write_bytes(text)
        sound_or_refused(lambda: spec.read_yaml(tmp_path / "params.yaml"))


@given(st.dictionaries(st.sampled_from(sorted(blocks.TrainSpec.__dataclass_fields__)), values, max_size=5))
@MANY
def test_a_train_block_is_typed_or_refused(block: dict[str, Any]) -> None:
    """What passes has the annotated types and lies in its bounds."""
    line = refusal(lambda: construct(blocks.TrainSpec, {"rounds": 1, "lr": 0.1, **block}, "train"))
    if line is not None:
        assert "train." in line
        return
    made = construct(blocks.TrainSpec, {"rounds": 1, "lr": 0.1, **block}, "train")
    assert isinstance(made.rounds, int)
    assert made.rounds >= 1
    assert isinstance(made.lr, float)
    assert np.isfinite(made.lr)
    assert made.lr >= 0
    assert 0 <= made.momentum <= 1


class Planted:
    """Asks an unpickler to call something."""

    def __reduce__(self) -> tuple:
        return print, ("called",)


@MANY
@given(content=st.binary(max_size=80), at=st.integers(0, 400), patch=st.binary(min_size=1, max_size=4))
def test_any_bytes_as_a_pickle(content: bytes, at: int, patch: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Noise and damaged pickles: plain data or bad input; nothing is called."""
    whole = pickle.dumps({"a": np.arange(6.0).reshape(2, 3), "b": [1, "x"]}, protocol=2)
    planted = pickle.dumps([1, Planted()])
    for raw in (content, whole[: at % len(whole)] + patch + whole[at % len(whole) + len(patch) :], planted):
        (tmp_path / "p").write_bytes(raw)
        sound_or_refused(lambda: read_arrays(tmp_path / "p"))
    assert "called" not in capsys.readouterr().out


def archives() -> dict[str, bytes]:
    """A good archive of each kind with a member called m (m.gz)."""
    packed, zipped = io.BytesIO(), io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        entry = tarfile.TarInfo("m")
        entry.size = 50
        tar.addfile(entry, io.BytesIO(b"x" * 50))
    with zipfile.ZipFile(zipped, "w") as archive:
        archive.writestr("m", b"x" * 50)
    return {"a.tar.gz": packed.getvalue(), "a.zip": zipped.getvalue(), "m.gz": gzip.compress(b"x" * 50)}


@MANY
@given(
    name=st.sampled_from(sorted(archives())),
    content=st.binary(max_size=60),
    at=st.integers(0, 300),
    patch=st.binary(min_size=1, max_size=4),
)
def test_any_bytes_as_an_archive(name: str, content: bytes, at: int, patch: bytes, tmp_path: Path) -> None:
    """It gives its member, or the source is said to be bad and no file is left."""
    whole = archives()[name]
    member, target = name if name == "m.gz" else "m", tmp_path / "out"
    for raw in (content, whole[: at % len(whole)] + patch + whole[at % len(whole) + len(patch) :]):
        (tmp_path / name).write_bytes(raw)
        target.unlink(missing_ok=True)
        try:
            extract(tmp_path / name, {member: target})
        except SourceError:
            assert not target.exists()
        assert not [*tmp_path.glob(".out*")]


def planted_files(name: str, root: Path, content: Callable[[str], bytes]) -> None:
    """Every file of one form of a data set, with content that is not its own."""
    for file in catalogue.CATALOGUE[name][0].files[:12]:
        (root / file.path).parent.mkdir(parents=True, exist_ok=True)
        (root / file.path).write_bytes(content(file.path))


@pytest.mark.parametrize("name", sorted(name for name in DATASETS if catalogue.CATALOGUE[name]))
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(content=st.binary(max_size=200) | st.lists(st.text("0123456789,.-abc \n", max_size=60)).map(lambda rows: "\n".join(rows).encode()))
def test_any_bytes_as_a_data_set(name: str, content: bytes, tmp_path: Path) -> None:
    """Even if the checksums were believed, a reader of a raw format ends with bad input."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "require", lambda *_: None)
        planted_files(name, tmp_path, lambda path: gzip.compress(content) if path.endswith(".gz") else content)
        with pytest.raises(BadInput):
            data.load(name, tmp_path)
    if all(file.digest != catalogue.ANY for file in catalogue.CATALOGUE[name][0].files):
        with pytest.raises(BadInput):
            require(name, tmp_path)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small prepared data set and a partition of it."""
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
def test_any_damage_to_prepared_data(prepared: Path, name: str, at: int, patch: bytes, cut: bool) -> None:
    """Bytes changed or cut off: the arrays are read and checked, or the stage to run again is named."""
    whole = (prepared / name).read_bytes()
    place = at % len(whole)
    (prepared / name).write_bytes(whole[:place] if cut else whole[:place] + patch + whole[place + len(patch) :])
    try:
        sound_or_refused(lambda: data.check_fits(data.load_dataset(prepared / "set"), data.load_partition(prepared / "p.npz")))
    finally:
        (prepared / name).write_bytes(whole)


@FEW
@given(value=values, key=st.sampled_from(["x", "y", "kind", "classes", "names", "arrays", "note"]))
def test_any_value_in_meta_json(prepared: Path, value: Any, key: str) -> None:
    """Types that are not those of a data set."""
    whole = (prepared / "set" / "meta.json").read_text()
    try:
        (prepared / "set" / "meta.json").write_text(json.dumps({**json.loads(whole), key: value}, skipkeys=True))
        sound_or_refused(lambda: data.load_dataset(prepared / "set"))
    finally:
        (prepared / "set" / "meta.json").write_text(whole)


@FEW
@given(content=st.binary(max_size=100), name=st.sampled_from(["run.json", "rounds.csv", "evaluations.parquet", "diagnostics.csv"]))
def test_any_bytes_in_a_finished_run(content: bytes, name: str, tmp_path: Path) -> None:
    """Tables are made of what others wrote."""
    for file in ("run.json", "rounds.csv", "evaluations.parquet"):
        (tmp_path / file).write_bytes(content if file == name else b"{}")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadInput):
        load_run(tmp_path)


@FEW
@given(content=st.binary(max_size=200))
def test_any_bytes_as_a_checkpoint(content: bytes, tmp_path: Path) -> None:
    """Never a start from something that is not a checkpoint."""
    (tmp_path / f"{MADE.run.fingerprint()}-0-000000001.pt").write_bytes(content)
    with pytest.raises(BadInput, match="not a readable checkpoint"):
        perform(MADE, 0, tmp_path)


OPTIONS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "iid": st.just({}),
    "shards": st.fixed_dictionaries({"classes": st.integers(1, 4)}),
    "classes": st.fixed_dictionaries({"classes": st.integers(1, 4)}),
    "clusters": st.fixed_dictionaries({"classes": st.integers(1, 4)}),
    "dirichlet": st.fixed_dictionaries({"beta": st.floats(0.05, 10), "minimum": st.integers(3, 8), "attempts": st.just(40)}),
    "lda": st.fixed_dictionaries({"alpha": st.floats(0.05, 10)}),
    "dominant": st.fixed_dictionaries({"classes": st.integers(1, 3), "dominance": st.floats(0.1, 0.9)}),
    "grouped": st.fixed_dictionaries({"groups": st.integers(1, 4), "share": st.floats(0.1, 1.0)}),
}


@MANY
@given(st.sampled_from(sorted(OPTIONS)), st.integers(1, 12), st.integers(8, 300), st.integers(0, 2**31 - 1), st.data())
def test_a_partition_is_one_or_is_refused(name: str, clients: int, count: int, seed: int, drawn: st.DataObject) -> None:
    """No row twice, none that is not there, no empty client, the same again; or one line."""
    assume(name in PARTITIONS)
    dataset, options = toy(count), drawn.draw(OPTIONS[name])
    line = refusal(lambda: data.partition(dataset, name, clients, seed, **options))
    if line is not None:
        assert line.startswith("partition")
        return
    made = data.partition(dataset, name, clients, seed, **options)
    data.check_fits(dataset, made)
    rows = np.concatenate([*made.train, *made.val, *made.test])
    assert len(np.unique(rows)) == len(rows) <= count
    assert all(len(part) for parts in (made.train, made.val, made.test) for part in parts)
    again = data.partition(dataset, name, clients, seed, **options)
    assert all(np.array_equal(a, b) for a, b in zip(made.train, again.train, strict=True))
