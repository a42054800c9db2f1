"""Writes the table of docs/datasets/README.md: the data sets, their tasks in studies/base.yaml, and their files.

Run it after a change of a data set: `python -m tools.dataset_table`. Text outside of the table's markers is written by
hand and is kept.
"""

from collections.abc import Iterator
from os.path import commonpath
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from fedweave.data import DATASETS
from fedweave.data.sources.origins import CATALOGUE, FileSet
from fedweave.data.sources.packaged import PACKAGED
from fedweave.study.spec import read_yaml
from tools.pages import rewrite

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "datasets" / "README.md"
HEADER = (
    "| data set | what it is | clients in `studies/base.yaml` | source | files on a mirror |\n|---|---|---|---|---|\n"
)
MAX_NAMED = 4  # the maximum number of files of a form that are named one by one
BUNDLED = ("digits", "digits-graph", "digits-sites")  # scikit-learn has the images, and is not an optional package


def main() -> None:
    """Rewrite the page."""
    rewrite(PAGE, datasets=lambda _: table())


def table() -> str:
    """A row for each data set, by name."""
    tasks = read_yaml(ROOT / "studies" / "base.yaml")["tasks"]
    return HEADER + "".join(_line(name, tasks) for name in sorted(DATASETS))


def _line(name: str, tasks: dict[str, Any]) -> str:
    page = f"[`{name}`]({name}.md)" if (PAGE.parent / f"{name}.md").is_file() else f"`{name}`"
    mirror_files = ", or ".join(dict.fromkeys(_describe_files(form) for form in CATALOGUE[name])) or "–"
    cells = (page, _describe(name), _describe_clients(name, tasks), _describe_sources(name), mirror_files)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


def _describe(name: str) -> str:
    """The first sentence of the loader's docstring, as `fedweave list datasets` prints it."""
    loader = getattr(DATASETS[name], "func", DATASETS[name])
    text = (loader.__doc__ or "").partition("\n\n")[0].partition(" Source: ")[0]
    return " ".join(text.split()).rstrip(".")


def _describe_clients(name: str, tasks: dict[str, Any]) -> str:
    """The number of clients in the tasks of the data set, and the name of their partition."""
    blocks = [task["partition"] for task in tasks.values() if task.get("dataset") == name]
    return "; ".join(f"{block['clients']} (`{block['name']}`)" for block in blocks if "name" in block) or "–"


def _describe_sources(name: str) -> str:
    """The hosts of the official files, the package that contains them, or how to request them."""
    if name in PACKAGED:
        return f"package {PACKAGED[name][0].package}"
    if name in BUNDLED:
        return "package scikit-learn"
    hosts = dict.fromkeys(urlsplit(url).hostname for form in CATALOGUE[name] for url in _addresses(form))
    hints = dict.fromkeys(form.hint for form in CATALOGUE[name] if form.hint)
    return "; ".join([*map(str, hosts), *hints])


def _addresses(form: FileSet) -> Iterator[str]:
    for file in form.files:
        yield from filter(None, (file.url, file.archive and file.archive.url))


def _describe_files(form: FileSet) -> str:
    """The files of a form, or the archives that contain them. Folders if there are many files."""
    paths = list(dict.fromkeys(file.archive.path if file.archive else file.path for file in form.files))
    if len(paths) <= MAX_NAMED:
        return " and ".join(f"`{path}`" for path in paths)
    return f"`{commonpath(paths)}/` ({len(paths)} files)"


if __name__ == "__main__":
    main()
