"""Stage `graphs`: digests of files that runs read: of a graph, of another study's run, of a contestant, of weights.

The values `given:FILE` and `replayed:RUN` of a setting name graphs, and `methods.NAME.contestant` names programs, and
`tasks.NAME.model.weights` names weights. The block `graphs` of params.yaml lists their files for DVC.
"""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedweave.contestants import declared
from fedweave.errors import BadInput, format_count
from fedweave.families.weaving import Weaving
from fedweave.files import weights
from fedweave.files.atomic import digest_file, write_table
from fedweave.graphs import setting as graph_settings
from fedweave.methods import METHODS
from fedweave.runs import graph_controls
from fedweave.study import outside, search_spaces, validate, variants
from fedweave.study.spec import PARAMS, RunSpec, StudySpec, nest, read_yaml

from .. import paths
from ..processes import run_main

CONTESTANT, WEIGHTS = "contestant-", "weights-"  # begin the names of files of contestants, and of weights of models


def main(name: str) -> None:
    """Write the digests of the files of `name` beside those of packages; the stage `sources` depends on them."""
    check(validate.load(), str(PARAMS))
    source = Path(read_yaml(PARAMS)["graphs"][name])
    pattern = "*" if name.startswith((CONTESTANT, WEIGHTS)) else "collaboration-*.npz"
    files = [file for file in sorted(source.rglob(pattern)) if file.is_file()] if source.is_dir() else [source]
    files = [file for file in files if "__pycache__" not in file.parts]
    rows = ((str(file), digest_file(file)) for file in files)
    write_table(paths.CODE / "packages" / f"{name}.csv", ("file", "digest"), rows)


def check(study: StudySpec, where: str) -> None:
    """Refuse graphs that a run of `study` cannot read, before DVC needs their files and before any training."""
    for run, name in _readers(study, where):
        setting = run.options.get("graph")
        if source := replayed_run(setting, study.name, study.runs):
            _check_source(run, study.run(source), f"{name}.graph: {setting!r}")
        else:
            graph_controls.check_stored_graph(run, name)
    replayed_runs(study, where)


def _check_source(run: RunSpec, source: RunSpec, where: str) -> None:
    """Refuse a source in the same study whose method has no graph, or that has another number of clients."""
    if not issubclass(METHODS[source.method], Weaving):
        raise BadInput(f"{where}: {source.method} has no collaboration graph; name a run of another method")
    source_clients, clients = (r.task.partition.get("clients") for r in (source, run))
    if source_clients and clients and source_clients != clients:  # left out, it is that of the data
        raise BadInput(
            f"{where}: its graph is of {format_count(source_clients, 'client')}, and this run has "
            f"{clients}; name a run with as many"
        )


def replayed_runs(study: StudySpec, where: str) -> dict[str, str]:
    """Run -> the run of the same study whose graph it replays, which must be trained before it."""
    sources = {}
    for key in study.runs:
        word = study.run(key).options.get("graph")
        if source := replayed_run(word, study.name, study.runs):
            _check_order(study, key, source, f"{where}: runs.{key}.graph: {word!r}")
            sources[key] = source
    return sources


def _readers(study: StudySpec, where: str) -> Iterator[tuple[RunSpec, str]]:
    """(run, name for messages) of every run, every run with a graph of its search space, and every variant."""
    for key, item in study.runs.items():
        yield study.run(key), f"{where}: runs.{key}"
        space = search_spaces.entries(study, key).get("graph", {}) if study.tune.trials else {}
        for word in space.get("choices", ()):
            yield study.run(key, {"graph": word}), f"{where}: tune.spaces.{item.method}"
    for name, block in study.ablate.items():
        for variant, settings in block["variants"].items():
            yield validate.build_variant(study, block["run"], {}, settings), f"{where}: ablate.{name}.{variant}"


def _check_order(study: StudySpec, key: str, source: str, where: str) -> None:
    """Refuse a run that replays a run `source` of the same study that is not trained before it.

    DVC trains in the order of params.yaml: a stage of dvc.yaml cannot depend on another one for some runs only.
    """
    order = [*study.runs]
    if source == key:
        raise BadInput(f"{where}: this is the run itself; name another run")
    if search_spaces.has_search(study, key):
        raise BadInput(f"{where}: not trained yet when the values of this run are searched for; set tune.trials: 0")
    if order.index(source) > order.index(key):
        raise BadInput(f"{where}: it would be trained after the run that reads it; write {key} below {source}")


def graph_paths(content: Mapping[str, Any]) -> dict[str, str]:
    """Name -> path of each file or folder that is read for a graph, and of those that a contestant depends on.

    Contestants must be listed among the methods.
    """
    programs = declared.files_of(outside.split(content["methods"])[0])
    graph_files = {path for word in graph_settings.stored_graphs(content) for path in _word_paths(word, content)}
    return (
        {_name(path): path for path in sorted(graph_files)}
        | {_name(path, CONTESTANT): path for path in programs}
        | {_name(path, WEIGHTS): path for path in sorted(_weights_paths(content))}
    )


def _weights_paths(content: Mapping[str, Any]) -> set[str]:
    """The files and folders of weights that models of tasks and of variants start from, but for those of packages."""
    blocks = [task.get("model") for task in content["tasks"].values() if isinstance(task, Mapping)]
    changes = [variant for block in (content.get("ablate") or {}).values() for variant in _variants(block)]
    blocks += [nest(variant).get("model") for variant in changes]
    paths = [block.get("weights") for block in blocks if isinstance(block, Mapping)]
    return {path for path in paths if isinstance(path, str) and path and not path.startswith(weights.PACKAGE)}


def _variants(block: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The settings of the variants of an ablation."""
    return [*variants.expand(block, "ablate")["variants"].values()]


def check_graph_paths(content: Mapping[str, Any], where: str) -> None:
    """Refuse a params.yaml whose block `graphs` lacks a file that is read: DVC would not notice changes of the file."""
    listed = (content.get("graphs") or {}).values()
    for name, path in graph_paths(content).items():
        if path not in listed:
            raise BadInput(f"{where}: graphs: {path} is missing, which a run reads; write graphs: {{{name}: {path}}}")


def replayed_run(word: object, study: str, runs: Mapping[str, Any]) -> str:
    """The run of the same study whose graph `word` replays; empty if there is none."""
    kind, _, source = str(word).partition(":")
    name = source.removeprefix(f"{paths.RESULTS}/").removeprefix(f"{study}/").removeprefix("runs/")
    return name if kind == "replayed" and name in runs else ""


def _word_paths(word: str, content: Mapping[str, Any]) -> Iterator[str]:
    kind, _, source = word.partition(":")
    if kind == "given":
        yield source
    elif not replayed_run(word, content["study"], content["runs"]):
        study, _, name = source.rpartition("/")
        yield source if (Path(source) / "run.json").is_file() else str(paths.run(study or content["study"], name))


def _name(path: str, kind: str = "graph-") -> str:
    """A name that DVC accepts, different for every path."""
    return f"{kind}{hashlib.sha256(path.encode()).hexdigest()[:12]}"


if __name__ == "__main__":
    run_main(main)
