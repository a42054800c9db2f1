"""Images are predicted on the scale of the training images, whatever their type, and by an exported folder too."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import PIL
import pytest
from PIL import Image

import fedweave as fw
from fedweave import exported_model
from fedweave.prediction import packing

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
BYTES = np.random.default_rng(0).integers(256, size=(60, 1, 6, 5), dtype=np.uint8)
BYTES[30:] //= 2
LABELS, CLIENTS = np.arange(60) // 30, ["a", "b"] * 30
QUIET: dict[str, Any] = {"model": "linear", "rounds": 2, "seed": 0, "lr": 0.2, "progress": False}
NEW = BYTES[::7]


def federation(x: Any, **options: Any) -> fw.Federation:
    return fw.Federation.from_arrays(x, LABELS, client=CLIENTS, **options)


class Models:
    """A model in Python, after it was loaded from its folder of results, and in an exported folder."""

    def __init__(self, trained_on: fw.Federation, folder: Path) -> None:
        fw.fit("local", trained_on, **QUIET, out=folder / "out")
        self.result = fw.load(folder / "out")["local"]
        self.exported = exported_model.load(self.result.export(folder / "export", "a"))

    def predict(self, x: Any) -> np.ndarray:
        """Probabilities [M, 2] by both, which agree."""
        answers = self.result.predict_proba(x, "a").to_numpy()
        np.testing.assert_allclose(self.exported.predict_proba(x), answers, atol=1e-6)
        return answers

    def refuse(self, x: Any, words: str) -> None:
        for call, error in (
            (lambda: self.result.predict(x, "a"), fw.BadInput),
            (lambda: self.exported.predict(x), exported_model.InputError),
        ):
            with pytest.raises(error, match=words) as caught:
                call()
            assert "\n" not in str(caught.value)


@pytest.fixture(scope="module")
def of_bytes(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(federation(BYTES), tmp_path_factory.mktemp("bytes"))


@pytest.fixture(scope="module")
def of_fractions(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(federation(BYTES.astype(np.float32) / 255), tmp_path_factory.mktemp("fractions"))


@pytest.mark.parametrize("kind", ["int64", "float32", "float64", "uint16", "list", "list of floats"])
def test_images_of_any_type_are_predicted_as_bytes(kind: str, of_bytes: Models) -> None:
    """Values from 0 to 255 are divided by 255, as those of training were."""
    expected = of_bytes.predict(NEW)
    assert np.ptp(expected[:, 0]) > 0.05  # the model tells images apart
    lists = {"list": NEW.tolist(), "list of floats": NEW.astype(float).tolist()}
    x = lists[kind] if kind in lists else NEW.astype(kind)
    np.testing.assert_allclose(of_bytes.predict(x), expected, atol=1e-6)


def test_a_model_of_bytes_refuses_other_scales(of_bytes: Models) -> None:
    """Fractions up to 1 may be on either scale. A black image is the same on both."""
    of_bytes.refuse(NEW / 255, r"fractions \(floats\) up to 1, but training had .* from 0 to 255; .*255 \* x")
    of_bytes.refuse(NEW > 90, "fractions")
    of_bytes.refuse(NEW.astype(int) - 1, "values from -1 to .* but training had images with values from 0 to 255")
    of_bytes.refuse(NEW.astype(float) * 2, "but training had images with values from 0 to 255")
    black = np.zeros((1, 1, 6, 5))
    np.testing.assert_allclose(of_bytes.predict(black), of_bytes.predict(black.astype(np.uint8)), atol=1e-6)


def test_a_model_of_fractions_takes_bytes_and_refuses_other_scales(of_fractions: Models) -> None:
    """Whole numbers are on the scale from 0 to 255. Floats are taken as they are, unless far outside."""
    expected = of_fractions.predict(NEW.astype(np.float32) / 255)
    for x in (NEW, NEW.astype(int), NEW.tolist()):
        np.testing.assert_allclose(of_fractions.predict(x), expected, atol=1e-6)
    of_fractions.predict(NEW / 200)
    of_fractions.refuse(NEW.astype(float), "values up to 25., but training had images with values from 0 to")
    of_fractions.refuse((NEW > 90).astype(int), "whole numbers up to 1, but training had .* from 0 to 1")
    of_fractions.refuse(NEW.astype(int) + 99, "but training had images with values from 0 to 1")


def test_other_numbers_are_taken_as_they_are(tmp_path: Path) -> None:
    """Training images of a scanner, from -900 to 700: no type is divided by 255."""
    x = 6 * BYTES.astype(int) - 900
    models = Models(federation(x), tmp_path)
    expected = models.predict(x[::7].astype(np.float32))
    for new in (x[::7], x[::7].astype(np.int16), x[::7].tolist()):
        np.testing.assert_allclose(models.predict(new), expected, atol=1e-6)
    models.refuse(100 * x, "training had images with values from -900 to")


@pytest.mark.parametrize("kind", [np.int64, np.uint16, list])
def test_training_takes_whole_numbers_as_bytes(kind: Any) -> None:
    """The same rows, the same description and the same models as with bytes."""
    x = BYTES.tolist() if kind is list else BYTES.astype(kind)
    ours, theirs = federation(x), federation(BYTES)
    assert ours.partition_block == theirs.partition_block
    assert str(ours.describe()) == str(theirs.describe())
    assert str(fw.fit("local", ours, **QUIET).scores) == str(fw.fit("local", theirs, **QUIET).scores)


def test_the_scaling_is_stated(of_bytes: Models, of_fractions: Models, tmp_path: Path) -> None:
    """By `describe`, and by export.json."""
    text = str(federation(BYTES).describe())
    assert "Images have whole numbers from 0 to 255, which are divided by 255." in text
    text = str(federation(BYTES / 255).describe())
    assert "Images have numbers from 0 to 1 in training, which are not divided by 255." in text
    for models, divisor in ((of_bytes, 255), (of_fractions, 1)):
        about = json.loads((Path(models.result.export(tmp_path / str(divisor), "a")) / "export.json").read_text())
        assert about["pixels"]["divisor"] == divisor
        assert about["pixels"]["high"] == pytest.approx(divisor, rel=0.02)


def test_a_scale_of_training_that_is_unlikely_is_named() -> None:
    """Whole numbers that are dark as bytes, and bytes as floats. Rows that are scaled anyway get no line."""
    assert "the largest is 15; if that is white, give x / 15" in "".join(federation(BYTES.astype(int) // 16).notes)
    floats = BYTES.astype(np.float32)
    assert "which are not divided by 255; give x.astype('uint8')" in "".join(federation(floats, normalize="none").notes)
    assert federation(floats).notes == federation(BYTES).notes == ()


def test_newcomers_have_images_on_the_scale_of_training(tmp_path: Path) -> None:
    """Whole numbers of any type join bytes and fractions. Fractions do not join bytes."""
    x, y, names = BYTES[:40], np.arange(40) % 2, ["c"] * 40
    for trained_on in (BYTES, BYTES.astype(np.float32) / 255):
        ours = federation(trained_on)
        result = fw.fit("fedavg", ours, **QUIET)
        joined = [
            result.join(new, client=names, label=y, rounds=1).scores
            for new in (x, x.astype(int), x.astype(float) if trained_on is BYTES else x / 255)
        ]
        for scores in joined[1:]:
            np.testing.assert_allclose(scores, joined[0], atol=1e-4)
    bytes_result = fw.fit("fedavg", federation(BYTES), **QUIET)
    for new, words in ((x / 255, "fractions"), (x / 2, "join: images have fractions")):
        with pytest.raises(fw.BadInput, match=words):
            bytes_result.join(new, client=names, label=y, rounds=1)


def photos(folder: Path) -> list[str]:
    """Files CLIENT/CLASS/FILE of coloured images of 7 x 5 pixels; dogs are darker."""
    draws, files = np.random.default_rng(1), []
    for client in "ab":
        for label, factor in (("cat", 1), ("dog", 2)):
            (folder / client / label).mkdir(parents=True)
            for k in range(12):
                files.append(f"{client}/{label}/{k:02d}.png")
                x = draws.integers(256, size=(7, 5, 3), dtype=np.uint8) // factor
                Image.fromarray(x).save(folder / files[-1])
    return files


@pytest.mark.parametrize("size", [None, (4, 6)])
def test_files_are_predicted_as_they_were_imported(size: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths, a table of them, bytes and images of PIL, also after loading; with the size and colours of training."""
    files = photos(tmp_path / "photos")
    ours = fw.Federation.from_images(tmp_path / "photos", size=size)
    fw.fit("local", ours, **QUIET, out=tmp_path / "out")
    result = fw.load(tmp_path / "out")["local"]
    expected = result.predict_proba(ours.dataset.x, "a").to_numpy()
    paths = [tmp_path / "photos" / file for file in files]
    for x in (
        paths,
        [*map(str, paths)],
        np.array([*map(str, paths)]),
        pd.Series([*map(str, paths)]),
        pd.DataFrame({"file": [*map(str, paths)]}),
        [path.read_bytes() for path in paths],
        [Image.open(path) for path in paths],
    ):
        np.testing.assert_allclose(result.predict_proba(x, "a"), expected, atol=1e-6)
    monkeypatch.chdir(tmp_path / "photos")  # relative paths are below the current folder
    np.testing.assert_allclose(result.predict_proba(files, "a"), expected, atol=1e-6)
    Image.fromarray(np.zeros((9, 9), np.uint8)).save(tmp_path / "grey.png")
    if size is None:
        with pytest.raises(fw.BadInput, match=r"grey\.png: is of 9 x 9 pixels, those of training of 7 x 5"):
            result.predict([tmp_path / "grey.png"], "a")
    else:
        assert {*result.predict([tmp_path / "grey.png"], "a")} <= {"cat", "dog"}
    for x, words in (
        (["none.png"], r"none\.png: cannot be read as an image \(FileNotFoundError"),
        (pd.DataFrame({"path": files}), "table: no column 'file' of images; it has path"),
    ):
        with pytest.raises(fw.BadInput, match=words):
            result.predict(x, "a")


def test_an_exported_folder_says_how_files_become_arrays(tmp_path: Path) -> None:
    """In one line, whose expression reads a file as training did. Nor does a model of arrays open files."""
    files = photos(tmp_path / "photos")
    ours = fw.Federation.from_images(tmp_path / "photos", size=(4, 6))
    result = fw.fit("local", ours, **QUIET)
    exported = exported_model.load(result.export(tmp_path / "export", "a"))
    file = tmp_path / "photos" / files[0]
    with pytest.raises(exported_model.InputError, match=r"reads arrays \[M, 3, 4, 6\]; read a file by np") as caught:
        exported.predict([str(file)])
    x = eval(str(caught.value).split("read a file by ")[1], {"np": np, "PIL": PIL, "file": file})
    np.testing.assert_allclose(exported.predict_proba(x), result.predict_proba([file], "a"), atol=1e-6)
    of_arrays = fw.fit("local", federation(BYTES), **QUIET)
    with pytest.raises(fw.BadInput, match=r"x: holds 'a\.png', but this model reads arrays; give \[M, 1, 6, 5\]"):
        of_arrays.predict(["a.png"], "a")
    line = "rows = ...  # an array [M, 3, 4, 6] of numbers from 0 to 255"
    assert line in (tmp_path / "export" / "README.md").read_text()
    (tmp_path / "packed").mkdir()
    packing.pack(result.run, tmp_path / "packed")
    with pytest.raises(fw.BadInput, match="this model reads arrays"):  # a server opens no files that a request names
        packing.unpack(tmp_path / "packed").outputs([str(file)], "a", None)
