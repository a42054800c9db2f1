"""Stage `sources`: digests of the code behind every other stage, so that each has one dependency for its code."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from fedweave.files import write_atomic
from fedweave.pipelines import paths
from fedweave.pipelines.processes import stage
from fedweave.runs import assembly, dependencies, graph_controls
from fedweave.study.spec import Study


def main() -> None:
    """Write a file of digests for every data set and task, and below results/<study>/code for every run and ablation.

    A file that is written with the same content makes no stage run again.
    """
    study = assembly.load()
    folder = paths.code(study.name)
    for task, spec in study.tasks.items():
        _write(paths.CODE / "datasets" / f"{spec.dataset}.json", dependencies.of_dataset(spec.dataset))
        _write(paths.CODE / "partitions" / f"{task}.json", dependencies.of_partition(spec.partition["name"]))
        runs = [key for key, item in study.runs.items() if item.task == task]
        _write(
            folder / "tasks" / f"{task}.json", {file for key in runs for file in dependencies.of_run(study.run(key))}
        )
    for key in study.runs:
        run = study.run(key)
        graphs = {str(file): dependencies.file_digest(file) for file in graph_controls.given_files(run)}
        _write(folder / "runs" / f"{key}.json", dependencies.of_run(run), graphs)
    for name in study.ablate:
        _write(folder / "ablations" / f"{name}.json", _ablation(study, name))
    _write(folder / "tables.json", dependencies.of_tables())
    _write(folder / "page.json", dependencies.of_page())


def _ablation(study: Study, name: str) -> set[Path]:
    """The files behind the variants of an ablation, which may have other models and partitions, and behind its
    tests."""
    block = study.ablate[name]
    runs = [assembly.varied(study, block["run"], {}, settings) for settings in block["variants"].values()]
    partitions = {run.task.partition["name"] for run in runs}
    dealt = {file for rule in partitions for file in dependencies.of_partition(rule)}
    return {file for run in runs for file in dependencies.of_run(run)} | dealt | {*dependencies.of_statistics()}


def _write(file: Path, files: Iterable[Path], data: Mapping[str, str] | None = None) -> None:
    write_atomic(file, json.dumps({**dependencies.listed(files), **(data or {})}, indent=1) + "\n")


if __name__ == "__main__":
    stage(main)
