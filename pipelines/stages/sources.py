"""Stage `sources`: digests of the code behind every other stage, and the settings of every search.

So every stage needs only one dependency for its code.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from fedweave.files.atomic import digest_file, write_json
from fedweave.runs import dependencies, graph_files
from fedweave.study import model_files, validate
from fedweave.study.code import find_dependencies
from fedweave.study.spec import PARAMS, RunSpec, StudySpec, read_yaml

from .. import paths
from ..processes import run_main
from . import graphs


def main() -> None:
    """Write a file of digests for every data set and task, and below results/<study>/code for every run and ablation.

    A file that is written with the same content makes no stage run again.

    Raises:
        BadInput: params.yaml is not valid, or does not name a file that a graph is read from.
    """
    study = validate.load()
    graphs.check_graph_paths(read_yaml(PARAMS), str(PARAMS))
    folder = paths.code(study.name)
    for task, spec in study.tasks.items():
        _write(paths.CODE / "datasets" / f"{spec.dataset}.json", dependencies.of_dataset(spec.dataset))
        _write(paths.CODE / "partitions" / f"{task}.json", dependencies.of_partition(spec.partition["name"]))
        task_runs = [study.run(key) for key, item in study.runs.items() if item.task == task]
        _write_runs(folder / "tasks" / f"{task}.json", study, task_runs, settings=_search_settings(study, task))
    for key in study.runs:
        _write_runs(folder / "runs" / f"{key}.json", study, [study.run(key)])
    for name in study.ablate:
        runs = _variants(study, name)
        rules = {run.task.partition["name"] for run in runs}  # variants have partitions, and summaries of these
        partition_files = (file for rule in rules for file in dependencies.of_partition(rule))
        others = {*partition_files, *dependencies.of_statistics()}
        _write_runs(folder / "ablations" / f"{name}.json", study, runs, others)
    # Tables and the page read summaries of partitions. They do not depend on that folder, which all studies share.
    summary = find_dependencies([paths.PACKAGE / "data" / "summary.py"])
    _write(folder / "tables.json", {*dependencies.of_tables(), *summary})
    _write(folder / "page.json", {*dependencies.of_page(), *summary})


def _search_settings(study: StudySpec, task: str) -> dict[str, Any]:
    """The settings that decide the searches of `task`, apart from those of the task itself."""
    items = {key: item for key, item in study.runs.items() if item.task == task}
    methods = sorted({item.method for item in items.values()})
    return {
        "runs": {key: asdict(item) for key, item in items.items()},
        "methods": {name: study.methods.get(name) for name in methods},
        "tune": {**study.tune.budget, "spaces": {name: study.tune.spaces.get(name) for name in methods}},
    }


def _variants(study: StudySpec, name: str) -> list[RunSpec]:
    """The variants of an ablation, which may have other models and partitions."""
    block = study.ablate[name]
    return [validate.build_variant(study, block["run"], {}, settings) for settings in block["variants"].values()]


def _write_runs(
    file: Path,
    study: StudySpec,
    runs: Iterable[RunSpec],
    others: Iterable[Path] = (),
    settings: Mapping[str, Any] | None = None,
) -> None:
    """Write the digests of the code and the graphs of `runs` and of other files, and `settings`."""
    files = {*others, *(path for run in runs for path in dependencies.of_run(run))}
    graph = {name: text for run in runs for name, text in _graph_digests(study, run).items()}
    _write(file, files, {**graph, **(settings or {})})


def _graph_digests(study: StudySpec, run: RunSpec) -> dict[str, str]:
    """Digests of what the graph of a run is read from: of files, or of everything that decides a run of this study.

    Of a contestant, what its predictions depend on is there too.
    """
    if key := graphs.replayed_run(run.options.get("graph"), study.name, study.runs):
        other = study.run(key)
        search = json.dumps([study.tune.budget, study.tune.spaces.get(other.method)])
        return {f"replayed {key}": f"{other.fingerprint()} {dependencies.run_digest(other)} {search}"}
    files = {str(file): digest_file(file) for file in graph_files.files_of(run)}
    if digest := run.task.model.get(model_files.DIGEST):
        files[f"weights {run.task.model['weights']}"] = str(digest)
    return files | {f"{name} {run.method}": text for name, text in dependencies.outside_digest(run).items()}


def _write(file: Path, files: Iterable[Path], data: Mapping[str, Any] | None = None) -> None:
    write_json(file, {**dependencies.list_digests(files), **(data or {})})


if __name__ == "__main__":
    run_main(main)
