"""Write a run as a Flower app: specification, server and clients; apart from it, the file of each client's data."""

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from fedweave.api import folder as results_folder
from fedweave.api.federation import Federation as Federations
from fedweave.api.result import MethodResult
from fedweave.data import Dataset, Partition
from fedweave.deployment import averaging, client_data, spec, support, tensors
from fedweave.deployment.spec import WIDTHS, AppSpec
from fedweave.errors import BadInput
from fedweave.federation import engine
from fedweave.federation.executors import Loop
from fedweave.federation.federation import Federation
from fedweave.federation.records import State
from fedweave.federation.schedule import cohort
from fedweave.federation.start import admission
from fedweave.files import check_writable, write_atomic
from fedweave.runs import preparation
from fedweave.runs.preparation import PreparedRun
from fedweave.study.spec import Run, parse
from fedweave.tensors import trees

PACKAGE = "fedweave_app"
ROUNDS = 200  # that are tried for what clients send; what changes later changes at the opening of a stage
FILES = re.compile(r"client-\d+\.pt")  # of clients' data
STEP = 8  # rows of the one step that such a trial trains
PYPROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "1.0.{number}"
description = "{label} on {task}: a federation of fedweave, specification {hash}"
license = "Apache-2.0"
dependencies = ["fedweave[flower]=={fedweave}"]

[tool.hatch.build.targets.wheel]
packages = ["{package}"]

[tool.flwr.app]
publisher = "fedweave"

[tool.flwr.app.components]
serverapp = "{package}.server:app"
clientapp = "{package}.client:app"

# folder: of checkpoints and results on the server's host; empty: ~/.fedweave/federations/<hash>
# roster: file of the nodes' keys; empty: ~/.fedweave/roster.json
# wait: seconds for clients that are expected; timeout: seconds for the answers of a round; least: founders to begin
[tool.flwr.app.config]
folder = ""
roster = ""
wait = 600.0
timeout = 3600.0
least = 0
"""
APP = '''"""The {side} of this federation; fedweave has the code, spec.json says which run it is."""

from pathlib import Path

from fedweave.deployment.flower.{module} import {function}

app = {function}(Path(__file__).parent / "spec.json")
'''
README = """# {label} on {task}, as a federation

Specification: `{hash}`. Every node is started with `spec="{short}"` or the whole hash, and refuses another app.
`spec.json` lists every tensor that leaves a node, under `forms`. The guide is docs/federation.md of fedweave.
"""


def export(
    run: Run, dataset: Dataset, partition: Partition, target: Path, seed: int | None = None, secure: bool = False
) -> AppSpec:
    """Write the app of `run` to `target`.

    Args:
        dataset, partition: the data of the run, of which shapes and scaling enter the app, and no row.
        seed: of the federation; default: the run's first.
        secure: whether nodes mask their uploads, so that the server learns their mean only.

    Raises:
        BadInput: a run that cannot be a federation of real hosts or that needs more than means, or a folder that holds
            something else.
    """
    prepared = prepare(run, dataset, partition, seed)
    check_target(target)
    made = specify(prepared, dataset, partition, secure)
    write_app(made, prepared.method.label, target)
    return made


def export_result(
    result: MethodResult, federation: Federations, target: Path, data: Path | None = None, secure: bool = False
) -> AppSpec:
    """Write the app of a method of a comparison, or of what `recommend` chose; the settings are those of the result.

    Args:
        federation: that the result comes from.
        data: folder for the file of each client's data; default: none are written.
        secure: as in `export`.

    Raises:
        BadInput: as `export`.
    """
    spec_of, name = result.settings, str(result.run.info["run"])
    method = {key: value for key, value in spec_of["method"].items() if key != "name"}
    block = {**spec_of["task"], "train": spec_of["train"], "evaluate": spec_of["evaluate"]}
    raw = {
        "study": result.run.info["study"],
        "seeds": [*result.run.seeds],
        "tasks": {result.run.task: block},
        "runs": {name: {"task": result.run.task, "method": spec_of["method"]["name"], "set": method}},
        "methods": {spec_of["method"]["name"]: {}},
        "tune": {"seeds": [max(result.run.seeds) + 1]},
    }
    run = parse(raw, "export_result").run(name)
    check_target(target, data)
    made = export(run, federation.dataset, federation.partition, target, secure=secure)
    if data is not None:
        write_client_files(prepare(run, federation.dataset, federation.partition).federation, data)
    return made


def prepare(run: Run, dataset: Dataset, partition: Partition, seed: int | None = None) -> PreparedRun:
    """The objects of one repetition of `run`, on the CPU.

    Raises:
        BadInput: an unknown seed, or a run that cannot be a federation of real hosts.
    """
    chosen = check_seed(run, seed)
    prepared = preparation.prepare(replace(run, train=replace(run.train, device="cpu")), dataset, partition).for_seed(
        chosen
    )
    support.check(run, prepared.method)
    return replace(prepared, run=replace(run, seeds=(chosen,)))


def check_seed(run: Run, seed: int | None) -> int:
    """The seed of the federation: `seed`, by default the run's first.

    Raises:
        BadInput: it is none of the run's.
    """
    if seed is not None and seed not in run.seeds:
        raise BadInput(f"seed: {seed} is none of the run's: {', '.join(map(str, run.seeds))}")
    return run.seeds[0] if seed is None else seed


def check_target(target: Path, data: Path | None = None) -> None:
    """Refuse folders that hold something else: than an app, and, of `data`, than files of clients.

    Raises:
        BadInput: naming the folder.
    """
    if target.exists() and (not target.is_dir() or (any(target.iterdir()) and not (target / PACKAGE).is_dir())):
        raise BadInput(f"export: {target} holds something else; choose an empty folder")
    _probe(target)
    if data is None:
        return
    if data.resolve().is_relative_to(target.resolve()):
        raise BadInput(f"export: {data} is inside of the app, which all hosts get; choose another folder for the data")
    if data.exists() and (not data.is_dir() or any(not FILES.fullmatch(entry.name) for entry in data.iterdir())):
        raise BadInput(f"export: {data} holds something else; choose an empty folder for the data")
    _probe(data)


def _probe(folder: Path) -> None:
    """Make sure that `folder` can be written; what is made for that is removed again."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        check_writable(folder)
    finally:
        for place in new:
            with suppress(OSError):
                place.rmdir()


def specify(prepared: PreparedRun, dataset: Dataset, partition: Partition, secure: bool = False) -> AppSpec:
    """The specification of a prepared run, with the tensors that its clients send.

    Raises:
        BadInput: it is to be `secure`, and its server needs more than means.
    """
    federation, run = prepared.federation, prepared.run
    widths = {name: getattr(federation, name).shape[1] for name in WIDTHS}
    names = prepared.names or tuple(f"client {i}" for i in range(federation.clients))
    group, pairs = federation.group, federation.relation
    facts = spec.facts_of(dataset, partition, widths)
    described = results_folder.describe_inputs(dataset, partition, run.task.normalize)
    scaling = {key: described[key] for key in ("scaling", "offset", "unit", "columns") if described.get(key)}
    if isinstance(run.task.normalize, str) and run.task.normalize.endswith("client"):
        scaling = {"columns": described.get("columns")}  # numbers of each client, which stay with it
    blank = AppSpec(
        run,
        facts,
        names,
        None if group is None else tuple(group.tolist()),
        prepared.group_names,
        None if pairs is None else tuple(map(tuple, pairs.tolist())),
        {},
        scaling,
        units=prepared.units,
    )
    made = replace(blank, forms=forms(blank, federation), secure=secure)
    if secure:
        averaging.check(made, client_data.build_federation(client_data.of_client(federation, 0), made))
    return made


def forms(blank: AppSpec, federation: Federation) -> dict[str, Any]:
    """What clients send, found by a trial of one step a round with the first client; see `AppSpec.forms`."""
    mine = client_data.build_federation(client_data.of_client(federation, 0), blank)
    enrolments = [admission(stage.method, mine, blank.seed, Loop()) for stage in blank.timeline.stages]
    described = {
        str(i): tensors.form_of(tensors.flatten(trees.at(start.enrolled, 0)))
        for i, (start, _, _) in enumerate(enrolments)
    }
    train: list[dict[str, Any]] = []
    for round, form in _upload_forms(blank, mine, enrolments):
        if not train or train[-1]["tensors"] != form:
            train.append({"from": round, "tensors": form})
    return {"enrol": described, "train": train}


def _upload_forms(blank: AppSpec, mine: Federation, enrolments: list[Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    """(round, form of the upload) of the rounds that are tried."""
    from fedweave.deployment.members import placeholder_federation

    timeline, one = blank.timeline, torch.zeros(1, dtype=torch.int64)
    count = max(1, blank.founder_count)
    crowd = placeholder_federation(blank, range(count))
    starts = [
        start._replace(enrolled=trees.broadcast(trees.at(start.enrolled, 0), count), clients=count,
                       relation=crowd.relation, ids=crowd.ids)
        for start, _, _ in enrolments
    ]  # fmt: skip
    server = timeline.stages[0].method.init(starts[0])
    _, clients, states = enrolments[0]
    for round in range(timeline.rounds):
        stage, opens = timeline.stage(round)
        if opens and stage.handover is not None:
            server = stage.handover(server, starts[timeline.stages.index(stage)])
        if round >= ROUNDS and not opens:
            continue
        method = stage.method
        who = cohort(mine, one, method.training, method.epochs, blank.seed, round, method.leaks)
        who = replace(who, plan=who.plan[:, :, :1, :STEP])
        trained = engine.train(method, State(round, server, clients, states), who, Loop())
        yield round, tensors.form_of(tensors.flatten(trees.at(trained.updates.upload, 0)))


def write_app(made: AppSpec, label: str, target: Path) -> None:
    """Write the Flower app."""
    (target / PACKAGE).mkdir(parents=True, exist_ok=True)
    about = {
        "name": re.sub(r"[^a-z0-9-]+", "-", made.run.key.lower()).strip("-"), "number": int(made.hash[:6], 16),
        "label": label, "task": made.run.name, "hash": made.hash, "short": made.hash[:16],
        "fedweave": version("fedweave"), "package": PACKAGE,
    }  # fmt: skip
    spec.write(made, target / PACKAGE)
    for side, function in (("server", "server_app"), ("client", "client_app")):
        text = APP.format(side=side, module=function, function=function)
        write_atomic(target / PACKAGE / f"{side}.py", text)
    write_atomic(target / PACKAGE / "__init__.py", "")
    write_atomic(target / "README.md", README.format(**about))
    write_atomic(target / "pyproject.toml", PYPROJECT.format(**about))


def write_client_files(federation: Federation, target: Path) -> list[Path]:
    """Write the file of each client's data to `target`, in place of those there; each belongs on its client's host
    alone.
    """
    check_writable(target)
    for old in target.iterdir():
        if FILES.fullmatch(old.name):
            old.unlink()
    files = []
    for position in range(federation.clients):
        file = client_data.of_client(federation, position)
        files.append(target / f"client-{file.client}.pt")
        file.save(files[-1])
    return files
