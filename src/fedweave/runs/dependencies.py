"""What a result depends on: the code, by the names in a study, and the files that a run reads."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fedweave.data import DATASETS, PARTITIONS
from fedweave.files.atomic import digest_file
from fedweave.methods import METHODS
from fedweave.metrics import METRICS
from fedweave.models import MODELS
from fedweave.registry import files
from fedweave.runs import graph_files
from fedweave.runs.inputs import data_folders
from fedweave.study import plugins
from fedweave.study.code import PACKAGE, State, digest, find_dependencies, find_state, is_own, label, read_source
from fedweave.study.spec import RunSpec

TRAINING = ("runs/archive.py", "runs/repetition.py")  # behind every run
TABLES = ("results/__init__.py", "runs/selection.py")
STATISTICS = ("results/statistics.py", "runs/selection.py")
PARTITION_FILES = ("dataset.json", "partition.npz")  # the first one has check sums of the features
# Words of code that finds files beside it.
OWN_PLACE = re.compile(r"\b(__file__|__path__|__spec__|resources|pkgutil)\b")
PAGE = ("plots/__init__.py", "report/page.py", "report/__init__.py")


def of_run(run: RunSpec) -> tuple[Path, ...]:
    """The files behind the training of `run`: the engine, its method and its model, and what these import.

    Of a plug-in that may read files beside its code, these files too. The code of its data set and partition is not
    included: a change of it shows in the arrays that a run reads.
    """
    model = run.task.model["name"]
    model_files = (
        files("model", model, MODELS[model]) if model in MODELS else ()
    )  # a model in memory has no name and no file
    metric = run.task.metric
    metric_files = files("metric", metric, METRICS[metric].function) if metric in METRICS else ()
    own_files = [*files("method", run.method, METHODS[run.method]), *model_files, *metric_files]
    return _with_data_files(find_dependencies([*_package_paths(TRAINING), *own_files], plugins.roots()))


def of_dataset(name: str) -> tuple[Path, ...]:
    """The files behind the arrays of a data set: its code, and data files in the folder of its plug-in."""
    own_files = files("dataset", name, DATASETS[name])
    code = find_dependencies([PACKAGE / "data" / "loading.py", *own_files], plugins.roots())
    return (*code, *_data_files(own_files))


def _with_data_files(code: tuple[Path, ...]) -> tuple[Path, ...]:
    """`code`, and the data files of plug-ins whose code in it names its own place, from where it may read them."""
    plug_ins = [file for file in code if not is_own(file)]
    return (*code, *_data_files(file for file in plug_ins if _names_own_place(file, find_state(file))))


@cache
def _names_own_place(file: Path, _state: State | None) -> bool:
    return OWN_PLACE.search(file.read_text("utf-8", "replace")) is not None


def _data_files(code: Iterable[Path]) -> list[Path]:
    """The data files in the folders of the plug-ins to which the files `code` belong."""
    files_of_code = [*code]
    folders = [
        plug_in
        for plug_in in plugins.list_loaded()
        if plug_in.is_dir() and any(file.is_relative_to(plug_in) for file in files_of_code)
    ]
    return sorted(file for folder in folders for file in folder.rglob("*") if _is_data(file, folder))


def _is_data(file: Path, folder: Path) -> bool:
    """Whether a file of a plug-in may be what its code reads: neither code, nor hidden, nor a text for people."""
    hidden = any(part.startswith((".", "__pycache__")) for part in file.relative_to(folder).parts)
    return file.is_file() and not hidden and file.suffix not in (".py", ".pyc", ".pyo", ".md")


def of_partition(name: str) -> tuple[Path, ...]:
    """The files behind the rows that a partition rule gives to clients, with those of a plug-in as in `of_run`."""
    own_files = files("partition", name, PARTITIONS[name])
    return _with_data_files(find_dependencies([PACKAGE / "data" / "summary.py", *own_files], plugins.roots()))


def of_tables() -> tuple[Path, ...]:
    """The files behind the tables of a study, published numbers included."""
    published = sorted((PACKAGE / "results" / "published").glob("*.csv"))
    return tuple(sorted({*find_dependencies(_package_paths(TABLES)), *published}))


def of_statistics() -> tuple[Path, ...]:
    """The files behind the comparison of variants."""
    return find_dependencies(_package_paths(STATISTICS))


def of_page() -> tuple[Path, ...]:
    """The files behind the report, its templates included."""
    return tuple(sorted({*find_dependencies(_package_paths(PAGE)), *(PACKAGE / "report" / "templates").glob("*.*")}))


def run_digest(run: RunSpec) -> str:
    """A hash of the code behind `run`, by which a checkpoint of other code is refused."""
    return digest(of_run(run))


def inputs_digest(run: RunSpec, root: Path | None = Path("data")) -> str:
    """A hash of the files that `run` reads: check sums of its data set, the rows of its clients, graphs, and what the
    code of a contestant depends on.

    Args:
        root: folder of data sets and partitions; None where they are in memory, so that graphs alone are files.
    """
    partition_files = (
        () if root is None else [data_folders(run.task, run.name, root)[1] / name for name in PARTITION_FILES]
    )
    # A missing file is refused where it is read. It can also be missing for a moment, while a stage writes it again.
    paths = [path for path in (*partition_files, *graph_files.files_of(run)) if path.is_file()]
    digests = {path.name: digest_file(path) for path in paths} | outside_digest(run)
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()[:16]


def outside_digest(run: RunSpec) -> dict[str, str]:
    """{"contestant": a text that changes with its code}, if the method of `run` is code from elsewhere."""
    method = METHODS[run.method]
    return {} if method.has_models else {"contestant": method.digest()}  # type: ignore[attr-defined]


def list_digests(files: Iterable[Path]) -> Mapping[str, Any]:
    """Digests of files by their labels, for a file on which stages depend; files of one label have one text.

    Folders have no influence, also not on the order: the same code in another place makes no stage run again.
    """
    digests: dict[str, list[str]] = {}
    for name, text in sorted((label(file), read_source(file).digest) for file in files):
        digests.setdefault(name, []).append(text)
    return {name: " ".join(texts) for name, texts in digests.items()}


def _package_paths(names: Iterable[str]) -> list[Path]:
    return [PACKAGE / name for name in names]
