"""Stage `graphs`: digests of a file or a run of another study that a graph is read from.

The words `given:FILE` and `replayed:RUN` name them in the settings, and params.yaml once more, for DVC.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedweave.errors import BadInput
from fedweave.files import write_table
from fedweave.pipelines import paths
from fedweave.pipelines.processes import stage
from fedweave.runs import dependencies
from fedweave.study.spec import PARAMS, read_yaml

BLOCKS = ("tasks", "runs", "methods", "tune", "ablate")  # of params.yaml, where a setting may stand


def main(name: str) -> None:
    """Write the digests of graph `name` beside those of packages, on which the stage `sources` depends."""
    place = Path(read_yaml(PARAMS)["graphs"][name])
    files = sorted(place.glob("collaboration-*.npz")) if place.is_dir() else [place]
    rows = ((str(file), dependencies.file_digest(file)) for file in files)
    write_table(paths.CODE / "packages" / f"{name}.csv", ("file", "digest"), rows)


def named(content: Mapping[str, Any]) -> dict[str, str]:
    """Name -> path of each file, and of each folder of another study's run, that a params.yaml reads graphs from."""
    words = {text for block in BLOCKS for text in _texts(content.get(block))}
    places = {place for word in words for place in _place(word, content)}
    return {_name(place): place for place in sorted(places)}


def check_named(content: Mapping[str, Any], where: str) -> None:
    """Refuse a params.yaml that reads a graph without naming its file, whose changes DVC would not notice.

    Raises:
        BadInput: naming the file, and what to write.
    """
    listed = (content.get("graphs") or {}).values()
    for name, place in named(content).items():
        if place not in listed:
            raise BadInput(f"{where}: graphs: {place} is missing, which a run reads; write graphs: {{{name}: {place}}}")


def replayed_run(word: object, study: str, runs: Mapping[str, Any]) -> str:
    """The run of the same study whose graph `word` replays; empty if there is none."""
    kind, _, source = str(word).partition(":")
    name = source.removeprefix(f"{paths.RESULTS}/").removeprefix(f"{study}/").removeprefix("runs/")
    return name if kind == "replayed" and name in runs else ""


def _place(word: str, content: Mapping[str, Any]) -> Iterator[str]:
    kind, _, source = word.partition(":")
    if kind == "given" and source:
        yield source
    elif kind == "replayed" and source and not replayed_run(word, content["study"], content["runs"]):
        study, _, name = source.rpartition("/")
        yield source if (Path(source) / "run.json").is_file() else str(paths.run(study or content["study"], name))


def _texts(value: object) -> Iterator[str]:
    """All texts inside of a block."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list):
        for part in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(part)


def _name(place: str) -> str:
    """A name that DVC takes, and another one for every place."""
    return f"graph-{hashlib.sha256(place.encode()).hexdigest()[:12]}"


if __name__ == "__main__":
    stage(main)
