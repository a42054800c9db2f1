"""Where the files of each data set come from, and how an intact copy is recognised.

Paths are the same below the local root and below a mirror. A data set may have several forms (`FileSet`), each of
which is enough. digests.txt lists the sha256 sums of files that a mirror may hold, in the format of `sha256sum -c`.

Where this file knows a digest of the data set, a mirror is not trusted, and digests that the mirror publishes are not
used. No digest of PEMS-BAY's speeds is known here, so the mirror's own digest is used for them. It detects damage
during a transfer, but not a forged table.
"""

from functools import cache
from importlib.resources import files
from typing import NamedTuple

from fedweave.data.sources.packaged import PACKAGED

RECORDED = "recorded"  # no published digest: the one in <file>.sha256 next to the file is used, also a mirror's
OWN = "own"  # as RECORDED, but never from a mirror: the digest of its archive or of another form is known
ANY = "any"  # too many files to list: it is enough that this one exists, and the loader checks the content


class Archive(NamedTuple):
    """An official file that holds several others; its own path is where a mirror may keep it."""

    path: str
    digest: str
    url: str


class File(NamedTuple):
    """One file below the root."""

    path: str
    digest: str  # "sha256:<hex>", "md5:<hex>", "git:<hex>" (the blob's name in a git repository), RECORDED, OWN or ANY
    url: str | None = None  # official source
    archive: Archive | None = None  # or the archive that holds it
    member: str = ""  # under this name; one that ends in .gz is decompressed


class FileSet(NamedTuple):
    """A complete set of files, one form of a data set; `hint` says how to get files that no program may download."""

    files: tuple[File, ...]
    hint: str = ""


@cache
def read_digests() -> dict[str, str]:
    """Digest of every path in digests.txt."""
    text = files("fedweave.data.sources").joinpath("digests.txt").read_text(encoding="ascii")
    pairs = (line.split("  ", 1) for line in text.splitlines())
    return {path: f"sha256:{digest}" for digest, path in pairs}


def _build_file(path: str, url: str | None = None, archive: Archive | None = None, member: str = "") -> File:
    return File(path, read_digests()[path], url, archive, member)


def _folder_files(folder: str) -> FileSet:
    """Every listed file below `folder`."""
    return FileSet(tuple(_build_file(path) for path in read_digests() if path.startswith(folder + "/")))


def _fashion() -> FileSet:
    host = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
    sums = {
        "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
        "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
        "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
    }
    path = "FashionMNIST/raw"
    archives = {name: Archive(f"{path}/{name}.gz", f"md5:{md5}", f"{host}/{name}.gz") for name, md5 in sums.items()}
    return FileSet(tuple(_build_file(f"{path}/{name}", None, archives[name], f"{name}.gz") for name in sums))


def _cifar(folder: str, inner: str, archive_md5: str, sums: dict[str, str]) -> FileSet:
    """The official pickles of CIFAR, with the md5 sums that torchvision checks."""
    file = f"{inner.removesuffix('-batches-py').removesuffix('-python')}-python.tar.gz"
    archive = Archive(f"{folder}/{file}", f"md5:{archive_md5}", f"https://www.cs.toronto.edu/~kriz/{file}")
    members = [f"{inner}/{name}" for name in sums]
    digests = [f"md5:{md5}" for md5 in sums.values()]
    return FileSet(tuple(File(f"{folder}/{m}", d, None, archive, m) for m, d in zip(members, digests, strict=True)))


CIFAR10_SUMS = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
    "batches.meta": "5ff9c542aee3614f3951f8cda6e48888",
}
CIFAR100_SUMS = {
    "train": "16019d7e3df5f24257cddd939b257f8d",
    "test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "meta": "7973b15100ade9c7d40fb424638fde48",
}


def _emnist() -> FileSet:
    url = "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip"
    archive = Archive("EMNIST/gzip.zip", "md5:58c8d27c78d21e728a6bc7b3cc06412e", url)
    kinds = [f"emnist-digits-{part}-{kind}" for part in ("train", "test") for kind in ("images-idx3", "labels-idx1")]
    names = [f"{kind}-ubyte" for kind in kinds]
    return FileSet(tuple(File(f"EMNIST/raw/{name}", OWN, None, archive, f"gzip/{name}.gz") for name in names))


def _planetoid(folder: str) -> FileSet:
    host = "https://github.com/kimiyoung/planetoid/raw/master/data"
    paths = [path for path in read_digests() if path.startswith(f"Planetoid/{folder}/raw/")]
    return FileSet(tuple(_build_file(path, f"{host}/{path.rsplit('/', 1)[1]}") for path in paths))


AMAZON_BLOBS = {  # names of the files in commit 1e72912a of shchur/gnn-benchmark
    "Computers": "git:8120e4148a330b3fafe37c4476823302d9d834b9",
    "Photo": "git:97323743cb56aca9dd611f5b4b46862c1c9c6bd9",
}


def _amazon(folder: str) -> tuple[FileSet, ...]:
    """A lossless copy with smaller arrays, or the official file."""
    path = f"Amazon/{folder}/raw/amazon_electronics_{folder.lower()}.npz"
    url = f"https://github.com/shchur/gnn-benchmark/raw/master/data/npz/{path.rsplit('/', 1)[1]}"
    return FileSet((_build_file(path),)), FileSet((File(path, AMAZON_BLOBS[folder], url),))


def _traffic(folder: str, graph: str, table: str) -> tuple[FileSet, ...]:
    """Speeds as DCRNN's HDF5 table or as the CSV of Zenodo record 5146275, and DCRNN's sensor graph."""
    host = "https://raw.githubusercontent.com/liyaguang/DCRNN/master/data/sensor_graph"
    adjacency = _build_file(f"{folder}/{graph}", f"{host}/{graph}")
    hint = f"{table} is behind the data link of github.com/liyaguang/DCRNN"
    path = f"{folder}/{table}"
    trust = OWN if path in read_digests() else RECORDED
    csv = File(f"{folder}/{folder}.csv", trust, f"https://zenodo.org/records/5146275/files/{folder}.csv?download=1")
    stored_form = FileSet((File(path, trust), adjacency), hint)
    listed_forms = (FileSet((_build_file(path), adjacency)),) if path in read_digests() else ()
    return (*listed_forms, stored_form, FileSet((csv, adjacency)))


def _weather() -> FileSet:
    commit = "data-2C-beyond-the-limit-usa/f465a4f31affb9cb5dd19412440a159865b5ca40"
    noaa = f"https://raw.githubusercontent.com/washingtonpost/{commit}/data/raw"
    vdi = "https://raw.githubusercontent.com/Wang-ML-Lab/VDI/15c0866ac2264d359ae4d0a471a90f77e96a40f0"
    return FileSet(
        (
            _build_file("TPT-48/climdiv-tmpcst-v1.0.0-20200106", f"{noaa}/climdiv-tmpcst-v1.0.0-20200106"),
            _build_file("TPT-48/noaastate.txt", f"{noaa}/noaastate.txt"),
            _build_file("TPT-48/state_abbreviations.csv", f"{vdi}/TPT-48/visualization/usa_map/Abbre.csv"),
            _build_file("TPT-48/usa_map.txt", f"{vdi}/TPT-48/visualization/usa_map/usa_map.txt"),
        )
    )


def _single_file(path: str, digest: str, url: str) -> FileSet:
    return FileSet((File(path, digest, url),))


CATALOGUE: dict[str, tuple[FileSet, ...]] = {
    "digits": (),
    "digits-sites": (),
    "digits-graph": (),
    **dict.fromkeys(PACKAGED, ()),
    "fashion-mnist": (_fashion(),),
    "emnist": (_emnist(),),
    "cifar10": (
        _cifar("CIFAR10", "cifar-10-batches-py", "c58f30108f718f92721af3b95e74349a", CIFAR10_SUMS),
        _folder_files("CIFAR10"),
    ),
    "cifar100": (
        _cifar("CIFAR100", "cifar-100-python", "eb9058c3a382ffc7106e4002c42a8d85", CIFAR100_SUMS),
        _folder_files("CIFAR100"),
    ),
    "tiny-imagenet": (
        _single_file(
            "TinyImageNet/tiny-imagenet-200.zip",
            "md5:90528d7ca1a48142e341f4ef8d21d0de",
            "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
        ),
    ),
    "compcars": (
        FileSet(
            (File("CompCars/misc/attributes.txt", ANY),),
            "ask mmlab.ie.cuhk.edu.hk/datasets/comp_cars for the password and unpack image/, label/, misc/",
        ),
    ),
    "cora": (_planetoid("Cora"),),
    "citeseer": (_planetoid("CiteSeer"),),
    "pubmed": (_planetoid("PubMed"),),
    "amazon-computer": _amazon("Computers"),
    "amazon-photo": _amazon("Photo"),
    "ogbn-arxiv": (
        _single_file(
            "ogbn-arxiv/arxiv.zip",
            "sha256:49f85c801589ecdcc52cfaca99693aaea7b8af16a9ac3f41dd85a5f3193fe276",
            "https://snap.stanford.edu/ogb/data/nodeproppred/arxiv.zip",
        ),
    ),
    "metr-la": _traffic("METR-LA", "adj_mx.pkl", "metr-la.h5"),
    "pems-bay": _traffic("PEMS-BAY", "adj_mx_bay.pkl", "pems-bay.h5"),
    "tpt48": (_weather(),),
    "tpt48-2008": (_weather(),),
}
