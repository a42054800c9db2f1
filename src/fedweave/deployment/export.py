"""Write a run as a Flower app: specification, server and clients. Files of clients' data go elsewhere."""

import re
from contextlib import suppress
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from fedweave.comparison.method_result import MethodResult
from fedweave.data import Dataset, Partition
from fedweave.data.normalisation import parse_options
from fedweave.data.partitions.splits import PARTS
from fedweave.deployment.node import client_data
from fedweave.deployment.server import averaging
from fedweave.deployment.wire import spec, support, tensors
from fedweave.deployment.wire.spec import AppSpec
from fedweave.engine import engine
from fedweave.engine.clients import Clients
from fedweave.engine.executors import Loop
from fedweave.engine.records import State
from fedweave.engine.schedule import cohort
from fedweave.engine.start import admission
from fedweave.errors import BadInput
from fedweave.files.atomic import check_writable, write_atomic
from fedweave.own_data.federation import Federation
from fedweave.prediction import input_description
from fedweave.runs import build
from fedweave.runs.build import PreparedRun
from fedweave.study.spec import RunSpec, parse
from fedweave.tensors import trees

PACKAGE = "fedweave_app"
MAX_ROUNDS = 200  # of the trial that finds what clients send; after them, uploads change only when a stage opens
STEP_ROWS = 8  # rows of the one step that the trial trains in each round
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
    run: RunSpec, dataset: Dataset, partition: Partition, target: Path, seed: int | None = None, secure: bool = False
) -> AppSpec:
    """Write the app of `run` to `target`.

    Args:
        dataset, partition: the data of the run. Their shapes and scaling enter the app, but no row does.
        seed: of the federation; default: the run's first.
        secure: whether nodes mask their uploads, so that the server learns their mean only.

    Raises:
        BadInput: the run cannot be a federation of real hosts, it needs more than means, or the folder holds something
            else.
    """
    prepared = prepare(run, dataset, partition, seed)
    check_target(target)
    app_spec = specify(prepared, dataset, partition, secure)
    write_app(app_spec, prepared.method.label, target)
    return app_spec


def export_result(
    result: MethodResult, federation: Federation, target: Path, data: Path | None = None, secure: bool = False
) -> AppSpec:
    """Write the app of a method of a comparison, or of what `recommend` chose; the settings are those of the result.

    Args:
        federation: the one that the result comes from.
        data: folder for the file of each client's data; default: none are written.
        secure: as in `export`.

    Raises:
        BadInput: as `export`.
    """
    settings, name = result.settings, str(result.run.info["run"])
    method = {key: value for key, value in settings["method"].items() if key != "name"}
    block = {**settings["task"], "train": settings["train"], "evaluate": settings["evaluate"]}
    raw = {
        "study": result.run.info["study"],
        "seeds": [*result.run.seeds],
        "tasks": {result.run.task: block},
        "runs": {name: {"task": result.run.task, "method": settings["method"]["name"], "set": method}},
        "methods": {settings["method"]["name"]: {}},
        "tune": {"seeds": [max(result.run.seeds) + 1]},
    }
    run = parse(raw, "export_result").run(name)
    check_target(target, data)
    app_spec = export(run, federation.dataset, federation.partition, target, secure=secure)
    if data is not None:
        write_client_files(prepare(run, federation.dataset, federation.partition).federation, data)
    return app_spec


def prepare(run: RunSpec, dataset: Dataset, partition: Partition, seed: int | None = None) -> PreparedRun:
    """The objects of one repetition of `run`, on the CPU.

    Raises:
        BadInput: an unknown seed, or a run that cannot be a federation of real hosts.
    """
    chosen = check_seed(run, seed)
    on_cpu = replace(run, train=replace(run.train, device="cpu"))
    prepared = build.prepare(on_cpu, dataset, partition, features=False).for_seed(chosen)
    support.check(run, prepared.method)
    return replace(prepared, run=replace(run, seeds=(chosen,)))


def check_seed(run: RunSpec, seed: int | None) -> int:
    """The seed of the federation: `seed`, by default the run's first."""
    if seed is not None and seed not in run.seeds:
        raise BadInput("seed", f"{seed} is none of the run's: {', '.join(map(str, run.seeds))}")
    return run.seeds[0] if seed is None else seed


def check_target(target: Path, data: Path | None = None) -> None:
    """Refuse a `target` with other content than an app, or a `data` with other files than those of clients."""
    if target.exists() and (not target.is_dir() or (any(target.iterdir()) and not (target / PACKAGE).is_dir())):
        raise BadInput("export", f"{target} is not an empty folder; choose another one")
    _probe(target)
    if data is None:
        return
    if data.resolve().is_relative_to(target.resolve()):
        raise BadInput(
            "export", f"{data} is inside of the app, which all hosts get; choose another folder for the data"
        )
    if data.exists() and (not data.is_dir() or any(client_data.client_of(entry) is None for entry in data.iterdir())):
        raise BadInput("export", f"{data} is not an empty folder; choose another one for the data")
    _probe(data)


def _probe(folder: Path) -> None:
    """Check that `folder` can be written. Folders that this check creates are removed again."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        check_writable(folder)
    finally:
        for path in missing:
            with suppress(OSError):
                path.rmdir()


def specify(prepared: PreparedRun, dataset: Dataset, partition: Partition, secure: bool = False) -> AppSpec:
    """The specification of a prepared run, with the tensors that its clients send.

    Raises:
        BadInput: `secure` is set, but the server of the method needs more than means.
    """
    federation, run = prepared.federation, prepared.run
    widths = {name: getattr(federation, name).shape[1] for name in PARTS}
    group, pairs = federation.group, federation.relation
    draft = AppSpec(
        run,
        spec.facts_of(dataset, partition, widths),
        prepared.names,
        None if group is None else tuple(group.tolist()),
        prepared.group_names,
        None if pairs is None else tuple(map(tuple, pairs.tolist())),
        forms={},
        scaling={},
        units=prepared.units,
    )
    sent = forms(draft, federation)
    description = input_description.describe_inputs(dataset, partition, run.task.normalize)
    keys = ("scaling", "offset", "unit", "precision", "columns", "client_column", "pixels")
    scaling = {key: description[key] for key in keys if description.get(key)}
    if parse_options(run.task.normalize)[0].endswith("client"):
        scaling = {"columns": description.get("columns")}  # the numbers of a client stay with it
    app_spec = replace(draft, forms=sent, scaling=scaling, secure=secure)
    if secure:
        averaging.check(app_spec, client_data.build_federation(client_data.extract_client(federation, 0), app_spec))
    return app_spec


def forms(draft: AppSpec, federation: Clients) -> dict[str, Any]:
    """What clients send, in the format of `AppSpec.forms`: a trial trains the first client for one step a round."""
    client_federation = client_data.build_federation(client_data.extract_client(federation, 0), draft)
    timeline, count = draft.timeline, max(1, draft.founder_count)
    only_client = torch.zeros(1, dtype=torch.int64)
    enrolments = [admission(stage.method, client_federation, draft.seed, Loop()) for stage in timeline.stages]
    starts = [draft.imagine_start(start, count) for start, _, _ in enrolments]
    server = timeline.stages[0].method.init(starts[0])
    _, clients, states = enrolments[0]
    train: list[dict[str, Any]] = []
    for round in range(timeline.rounds):
        stage, opens = timeline.stage(round)
        if opens and stage.handover is not None:
            server = stage.handover(server, starts[timeline.stages.index(stage)])
        if round >= MAX_ROUNDS and not opens:
            continue
        method = stage.method
        participants = cohort(
            client_federation, only_client, method.training, method.epochs, draft.seed, round, method.leaks
        )
        participants = replace(participants, plan=participants.plan[:, :, :1, :STEP_ROWS])
        trained = engine.train(method, State(round, server, clients, states), participants, Loop())
        form = tensors.form_of(tensors.flatten(trees.at(trained.updates.upload, 0)))
        if not train or train[-1]["tensors"] != form:
            train.append({"from": round, "tensors": form})
    enrolled = (tensors.form_of(tensors.flatten(trees.at(start.enrolled, 0))) for start, _, _ in enrolments)
    return {"enrol": {str(i): form for i, form in enumerate(enrolled)}, "train": train}


def write_app(app_spec: AppSpec, label: str, target: Path) -> None:
    """Write the Flower app."""
    (target / PACKAGE).mkdir(parents=True, exist_ok=True)
    values = {
        "name": re.sub(r"[^a-z0-9-]+", "-", app_spec.run.key.lower()).strip("-"),
        "number": int(app_spec.hash[:6], 16),
        "label": label,
        "task": app_spec.run.name,
        "hash": app_spec.hash,
        "short": app_spec.short_hash,
        "fedweave": version("fedweave"),
        "package": PACKAGE,
    }
    spec.write(app_spec, target / PACKAGE)
    for side, function in (("server", "server_app"), ("client", "client_app")):
        text = APP.format(side=side, module=function, function=function)
        write_atomic(target / PACKAGE / f"{side}.py", text)
    write_atomic(target / PACKAGE / "__init__.py", "")
    write_atomic(target / "README.md", README.format(**values))
    write_atomic(target / "pyproject.toml", PYPROJECT.format(**values))


def write_client_files(federation: Clients, target: Path) -> list[Path]:
    """Write the file of each client's data to `target`, and remove older ones there.

    A file belongs on the host of its client only.
    """
    check_writable(target)
    for old in target.iterdir():
        if client_data.client_of(old) is not None:
            old.unlink()
    files = []
    for position in range(federation.clients):
        file = client_data.extract_client(federation, position)
        files.append(client_data.path_of(target, file.client))
        file.save(files[-1])
    return files
