"""Every loader on small files of its own format, also for data sets that are hard to obtain."""

import gzip
import hashlib
import pickle
import zipfile
from io import BytesIO
from pathlib import Path

import h5py
import numpy as np
import pytest
from PIL import Image

from fedweave import data
from fedweave.data.facts import check_content
from fedweave.data.sources import citation, compcars, images, traffic, weather
from fedweave.errors import BadInput
from fedweave.tensors.random_streams import stream


def idx(array: np.ndarray) -> bytes:
    """An array of bytes in the format of MNIST."""
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes() + array.tobytes()


def jpeg(value: int, size: int) -> bytes:
    """A grey square."""
    buffer = BytesIO()
    Image.new("L", (size, size), value).save(buffer, "JPEG")
    return buffer.getvalue()


def test_cifar_pickles_are_read_with_their_superclasses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = images.torchvision_datasets().CIFAR100
    folder = tmp_path / "CIFAR100" / "cifar-100-python"
    folder.mkdir(parents=True)
    pixels = stream(2).integers(0, 256, size=(2, 5, 3072), dtype=np.uint8)
    parts = {
        "train": {"data": pixels[0], "fine_labels": [0, 1, 2, 3, 4], "coarse_labels": [0, 0, 1, 1, 2]},
        "test": {"data": pixels[1], "fine_labels": [4] * 5, "coarse_labels": [2] * 5},
        "meta": {"fine_label_names": list("abcde")},
    }
    for name, content in parts.items():
        (folder / name).write_bytes(pickle.dumps(content))
        sums = {
            name: hashlib.md5((folder / name).read_bytes()).hexdigest() for name in parts if (folder / name).exists()
        }
    monkeypatch.setattr(reader, "train_list", [["train", sums["train"]]])
    monkeypatch.setattr(reader, "test_list", [["test", sums["test"]]])
    monkeypatch.setitem(reader.meta, "md5", sums["meta"])
    dataset = images.cifar100(tmp_path)
    assert np.array_equal(dataset.x, pixels.reshape(10, 3, 32, 32))
    assert dataset.coarse.tolist() == [0, 0, 1, 1, 2] + [2] * 5
    assert dataset.official.tolist() == [0] * 5 + [1] * 5
    assert dataset.note == ""


def test_emnist(tmp_path: Path) -> None:
    raw = tmp_path / "EMNIST" / "raw"
    raw.mkdir(parents=True)
    for part, count in (("train", 4), ("test", 2)):
        pixels = np.full((count, 28, 28), count, np.uint8)
        (raw / f"emnist-digits-{part}-images-idx3-ubyte").write_bytes(idx(pixels))
        (raw / f"emnist-digits-{part}-labels-idx1-ubyte").write_bytes(idx(np.arange(count, dtype=np.uint8)))
    dataset = images.emnist(tmp_path)
    assert dataset.x[:, 0, 0, 0].tolist() == [4, 4, 4, 4, 2, 2]
    assert dataset.labels.tolist() == [0, 1, 2, 3, 0, 1]
    with pytest.raises(BadInput, match="dataset emnist: shape is"):
        check_content(dataset)


def test_tiny_imagenet(tmp_path: Path) -> None:
    (tmp_path / "TinyImageNet").mkdir()
    with zipfile.ZipFile(tmp_path / "TinyImageNet" / "tiny-imagenet-200.zip", "w") as archive:
        base = "tiny-imagenet-200"
        archive.writestr(f"{base}/wnids.txt", "n2\nn1\n")
        archive.writestr(f"{base}/val/val_annotations.txt", "val_0.JPEG\tn2\t0\t0\t9\t9\n")
        archive.writestr(f"{base}/val/images/val_0.JPEG", jpeg(200, 64))
        for word, value in (("n1", 50), ("n2", 100)):
            archive.writestr(f"{base}/train/{word}/images/{word}_0.JPEG", jpeg(value, 64))
    dataset = images.tiny_imagenet(tmp_path)
    assert dataset.x.shape == (3, 3, 64, 64)
    assert dataset.x[:, 1, 5, 5].tolist() == [50, 100, 200]
    assert (dataset.labels.tolist(), dataset.official.tolist()) == ([0, 1, 1], [0, 0, 1])


def test_compcars(tmp_path: Path) -> None:
    files = {
        "misc/attributes.txt": b"model_id maximum_speed displacement type\n7 0 0 3\n8 0 0 9\n",
        "label/1/7/2010/a.txt": b"4\n1\n1 1 9 9\n",
        "label/1/7/2003/b.txt": b"4\n1\n1 1 9 9\n",  # too old
        "label/1/8/2010/c.txt": b"4\n1\n1 1 9 9\n",  # of another type
        "label/1/7/2012/d.txt": b"-1\n1\n1 1 9 9\n",  # from an unknown side
        "image/1/7/2010/a.jpg": jpeg(90, 30),
    }
    for path, content in files.items():
        (tmp_path / "CompCars" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "CompCars" / path).write_bytes(content)
    dataset = compcars.compcars(tmp_path)
    assert (dataset.x.shape, dataset.labels.tolist(), dataset.owner.tolist()) == ((1, 3, 224, 224), [2], [7])
    assert dataset.names[7] == "FS 2010"
    assert dataset.relation.shape[1] + 30 == 158  # edges of SHN's table 5, with self-loops


def test_arxiv(tmp_path: Path) -> None:
    tables = {"edge": "0,1\n2,1\n1,0\n", "node-feat": "1,2\n3,4\n5,6\n", "node-label": "0\n2\n1\n"}
    (tmp_path / "ogbn-arxiv").mkdir()
    with zipfile.ZipFile(tmp_path / "ogbn-arxiv" / "arxiv.zip", "w") as archive:
        for name, text in tables.items():
            archive.writestr(f"arxiv/raw/{name}.csv.gz", gzip.compress(text.encode()))
    dataset = citation.arxiv(tmp_path)
    assert dataset.links.tolist() == [[0, 1, 1, 2], [1, 0, 2, 1]]
    assert (dataset.x.tolist(), dataset.labels.tolist()) == ([[1, 2], [3, 4], [5, 6]], [0, 2, 1])


@pytest.mark.parametrize("form", ["csv", "h5"])
def test_traffic(form: str, tmp_path: Path) -> None:
    folder, times = (tmp_path / "PEMS-BAY", ["2017-01-01T00:00:00", "2017-01-01T12:00:00", "2017-01-02T18:00:00"])
    folder.mkdir()
    if form == "csv":
        rows = "".join(f"{time.replace('T', ' ')},{i},{10 + i}\n" for i, time in enumerate(times))
        (folder / "PEMS-BAY.csv").write_text(",400001,400017\n" + rows)
    else:
        with h5py.File(folder / "pems-bay.h5", "w") as file:
            file["speed/axis0"] = np.array([400001, 400017])
            file["speed/axis1"] = np.array(times, "datetime64[ns]").astype(np.int64)
            file["speed/block0_values"] = np.array([[0.0, 10], [1, 11], [2, 12]])
    content = (["400001", "400017"], {"400001": 0, "400017": 1}, np.array([[1, 0.3], [0, 1]], np.float32))
    (folder / "adj_mx_bay.pkl").write_bytes(pickle.dumps(content, protocol=2))
    dataset = data.DATASETS["pems-bay"](tmp_path)
    assert (dataset.x.tolist(), dataset.time.tolist()) == ([[0, 1, 2], [10, 11, 12]], [0.0, 0.5, 0.75])
    assert (dataset.relation.tolist(), dataset.names) == ([[0, 1], [1, 0]], ("400001", "400017"))
    (folder / "adj_mx_bay.pkl").write_bytes(pickle.dumps((["400017", "400001"], {}, np.eye(2)), protocol=2))
    with pytest.raises(BadInput, match="its sensors are not those of the speed table"):
        data.DATASETS["pems-bay"](tmp_path)
    (folder / "adj_mx_bay.pkl").write_bytes(pickle.dumps(np.eye(3), protocol=2))
    with pytest.raises(BadInput, match="not a sensor graph"):
        traffic.read_adjacency(folder / "adj_mx_bay.pkl")


def test_weather(tmp_path: Path) -> None:
    lines = [
        f"0010{element}{year}" + "".join(f"{year + m / 10 + 7 * (element > '02'):7.1f}" for m in range(12))
        for element in ("02", "03")
        for year in range(1995, 2020)
    ]
    (tmp_path / "noaa").write_text("\n".join(lines) + "\n")
    months = weather.read_temperatures(tmp_path / "noaa", range(1996, 2020))
    assert (list(months), months[1].shape, months[1][0], months[1][-1]) == ([1], (288,), 1996.0, 2020.1)
    (tmp_path / "map").write_text("AL GA\nDC MD\nMD VA\n")
    borders = weather.read_borders(tmp_path / "map", ["AL", "GA", "MD", "VA"])
    assert borders.tolist() == [[0, 1, 2, 3], [1, 0, 3, 2]]
