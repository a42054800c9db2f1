"""A stage that runs on another host: its work order, and the way of its outputs to the one folder that has dvc.lock.

The writer issues a work order for a stage. A worker on any host runs that stage and returns its outputs. The writer
checks and commits them. Where both see the same folder, no file is copied; between clones, files go through DVC's
default remote. Neither side trusts the other with a command or a path: each side takes them from its own dvc.yaml.
"""

import hashlib
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fedweave import pipelines
from fedweave.errors import BadInput, choose, format_value
from fedweave.files.atomic import write_atomic
from fedweave.study import plugins
from fedweave.study.config import load_yaml
from fedweave.study.spec import PARAMS, check_names

from .. import paths, project
from . import foreign_params

if TYPE_CHECKING:
    from dvc.output import Output
    from dvc.repo import Repo

FOLDER = paths.STATE / "work-orders"
ISSUE_HINT = "let the flow issue it"
TOKEN, MD5 = re.compile(r"[0-9a-f]{32}"), re.compile(r"[0-9a-f]{32}(\.dir)?")
ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*(@[A-Za-z0-9_][A-Za-z0-9_-]*)?")
WRITER = threading.Lock()  # one thread of a process at a time uses DVC; against other processes DVC has its own locks


@dataclass(frozen=True)
class WorkOrder:
    """What a worker needs to run one stage.

    Attributes:
        stage: its address in dvc.yaml.
        inputs: what the stages above it wrote, as DVC's entries (path, md5).
        params: the text of the writer's params.yaml.
        code: digest of the writer's code; other code is refused.
        basis: digest of command, parameters and dependencies; outputs with another digest are not accepted.
        token: name of a file in the writer's folder, which no worker in another folder sees; 32 hexadecimal digits.
    """

    stage: str
    inputs: tuple[dict[str, str], ...]
    params: str
    code: str
    basis: str
    token: str

    @property
    def is_here(self) -> bool:
        """Whether this folder is the writer's, on this or another host."""
        return bool(TOKEN.fullmatch(self.token)) and (FOLDER / self.token).is_file()

    def check(self) -> None:
        """Refuse a work order that no writer with the code of this folder can have issued.

        Raises:
            BadInput: other code, or a field that is not of its form.
        """
        if not TOKEN.fullmatch(self.token):
            raise BadInput(f"work order: token {format_value(self.token)} is not 32 hexadecimal digits; {ISSUE_HINT}")
        if not ADDRESS.fullmatch(self.stage):
            raise BadInput(f"work order: stage {format_value(self.stage)} is not the name of a stage; {ISSUE_HINT}")
        if code_digest() != self.code:
            raise BadInput(f"{Path.cwd()}: its code is not the writer's; check out the same commit there and here")
        params = load_yaml(self.params)
        if not isinstance(params, dict):
            raise BadInput(f"work order: params: is not a mapping; {ISSUE_HINT}")
        check_names(params, "work order: params")  # they become words of commands and parts of paths
        if (uses := params.get("uses") or {}) != project.used_plugins():
            raise BadInput(
                f"work order: params: uses: {format_value(uses)} is not what {PARAMS} has here; use the same study"
            )


@contextmanager
def issue(name: str) -> Iterator[WorkOrder]:
    """A work order for the stage `name`, which is valid inside the block.

    Its inputs are pushed to the DVC remote, if one is set.
    """
    token = FOLDER / uuid4().hex
    write_atomic(token, name)
    try:
        with WRITER:
            work_order = _create_work_order(name, token.name)
        yield work_order
    finally:
        token.unlink(missing_ok=True)


def _create_work_order(name: str, token: str) -> WorkOrder:
    with _repo() as repo:
        stage = _stage(repo, name)
        inputs = _upstream_outputs(repo, stage)
        if repo.config["core"].get("remote"):
            _push(repo, inputs)
        return WorkOrder(
            name,
            tuple(map(_entry, inputs)),
            PARAMS.read_text(encoding="utf-8"),
            code_digest(),
            definition_digest(stage, stage.deps),
            token,
        )


def accept(work_order: WorkOrder, outputs: Sequence[Mapping[str, str]]) -> None:
    """Commit a worker's results for `work_order`; `outputs` are fetched from the DVC remote, none from the same folder.

    Raises:
        BadInput: the stage is no longer the one of the work order, or an output is missing or is none of the stage.
    """
    with WRITER, _repo() as repo:
        stage = _stage(repo, work_order.stage)
        if definition_digest(stage, stage.deps) != work_order.basis:
            raise BadInput(
                f"{work_order.stage}: params.yaml or an input changed while it ran elsewhere; run the flow again"
            )
        _pull(repo, stage, outputs, stage.outs)
        missing = [path for path in map(str, outputs_of(stage)) if not Path(path).exists()]
        if missing:
            raise BadInput(
                f"{work_order.stage}: {missing[0]} did not arrive; "
                "share the folder, or set a remote: dvc remote add -d NAME PLACE"
            )
        repo.commit(work_order.stage, force=True)


@contextmanager
def prepare(work_order: WorkOrder) -> Iterator[list[str]]:
    """Prepare this folder for `work_order`, for the duration of the block; gives the command to run.

    Raises:
        BadInput: this clone has other code than the writer, its params.yaml was changed by hand, it has no DVC remote
            or cannot get the stage's inputs, or the work order is not valid.
    """
    work_order.check()
    if work_order.is_here:
        with _repo() as repo:
            stage = _stage(repo, work_order.stage)
            command, outputs = str(stage.cmd), outputs_of(stage)
        for path in outputs:
            remove(path)
        yield ["/bin/sh", "-c", command]
        return
    _check_remote()
    with foreign_params.apply(work_order.params):
        with _repo() as repo:
            stage = _stage(repo, work_order.stage)
            _pull(repo, stage, work_order.inputs, _upstream_outputs(repo, stage))
        yield [sys.executable, "-m", "dvc", "--wait-for-lock", "repro", "-s", work_order.stage]


def outputs_of(stage: Any) -> list[Path]:
    """The paths that a stage writes, relative to the project, none of which may be outside of it."""
    outputs = [Path(os.path.normpath(str(out.def_path))) for out in stage.outs]
    for path in outputs:
        if path.is_absolute() or path.parts[:1] == ("..",) or path == Path():
            raise BadInput(f"dvc.yaml: {stage.addressing}: {str(path)!r} is outside of the project; write below it")
    return outputs


def remove(path: Path) -> None:
    """Remove an output of any kind; of a link only the link."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def deliver(work_order: WorkOrder) -> list[dict[str, str]]:
    """Push the outputs of `work_order` to the DVC remote and list them; the writer's own folder needs no push."""
    if work_order.is_here:
        return []
    with _repo() as repo:
        outs = list(_stage(repo, work_order.stage).outs)
        _push(repo, outs)
        return [_entry(out) for out in outs]


def code_digest() -> str:
    """A hash of every file that can change what a stage does: the package, the pipeline and its stages."""
    uses = project.plugin_paths().values()
    packages = plugins.find_installed().values()
    roots = [paths.PACKAGE, Path(pipelines.__file__).resolve().parent, *packages, *(Path(p).resolve() for p in uses)]
    files = {"dvc.yaml": Path("dvc.yaml")}
    for root in roots:
        members = root.rglob("*") if root.is_dir() else (root,)
        files |= {str(file.relative_to(root.parent)): file for file in members if "__pycache__" not in file.parts}
    hashed = hashlib.sha256()
    for name, file in sorted(files.items()):
        hashed.update(name.encode() + file.read_bytes() if file.is_file() else b"")
    return hashed.hexdigest()[:16]


def _check_remote() -> None:
    """Refuse a clone from which no output could reach the writer."""
    with _repo() as repo:
        if not repo.config["core"].get("remote"):
            raise BadInput(
                f"{Path.cwd()}: is not the writer's folder, and has no DVC remote; share that folder, or set the "
                "writer's remote here: dvc remote add -d NAME PLACE"
            )


def _repo() -> "Repo":
    return project.repository(wait=True)


def _stage(repo: "Repo", name: str) -> Any:
    """The stage with the address `name`; refused if dvc.yaml has none."""
    stages = {stage.addressing: stage for stage in repo.index.stages}
    return stages[choose(name, stages, "dvc.yaml: stages")]


def _upstream_outputs(repo: "Repo", stage: Any) -> list["Output"]:
    """The outputs of all stages above `stage`: a command may read more of them than it depends on directly."""
    import networkx

    return [out for other in networkx.descendants(repo.index.graph, stage) for out in other.outs]


def _entry(out: "Output") -> dict[str, str]:
    if not out.hash_info:
        raise BadInput(
            f"{out.def_path}: DVC does not know it yet; run the stage that makes it first: {out.stage.addressing}"
        )
    return {"path": str(out.def_path), "hash": str(out.hash_name), str(out.hash_info.name): str(out.hash_info.value)}


def definition_digest(stage: Any, dependencies: Sequence[Any]) -> str:
    """A digest of the command of a stage and of `dependencies`, all or some of its own, as they are now.

    Raises:
        DvcException: a file or a parameter is missing.
    """
    for dependency in dependencies:
        dependency.save()
    content = [str(stage.cmd), *([str(dep.def_path), dep.hash_info.value] for dep in dependencies)]
    return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()[:16]


def _push(repo: "Repo", outs: Sequence["Output"]) -> None:
    for out in outs:
        for objects in out.get_used_objs().values():
            repo.cloud.push(objects)


def _pull(repo: "Repo", stage: Any, entries: Sequence[Mapping[str, str]], expected: Sequence["Output"]) -> None:
    """Fetch `entries` from the DVC remote. Each must be one of the outputs `expected`, with its MD5 sum."""
    from dvc.output import loadd_from

    allowed = {str(out.def_path) for out in expected}
    for entry in entries:
        if entry.get("path") not in allowed or not MD5.fullmatch(str(entry.get("md5"))):
            raise BadInput(
                f"{stage.addressing}: {format_value(dict(entry))} is not an output of dvc.yaml with its MD5 sum; "
                "run the flow again"
            )
    clean = [{"path": entry["path"], "hash": "md5", "md5": entry["md5"]} for entry in entries]
    for out in loadd_from(stage, clean):
        for objects in out.get_used_objs().values():
            repo.cloud.pull(objects)
        _check_members(out)
        out.checkout(force=True)


def _check_members(out: "Output") -> None:
    """Refuse a folder whose list of files names one outside of it."""
    members = out.get_obj()
    for key, _, _ in members if out.hash_info is not None and out.hash_info.isdir and members is not None else ():
        if not key or any(part in ("", ".", "..") or "/" in part for part in key):
            raise BadInput(
                f"{out.def_path}: the DVC remote lists {format_value('/'.join(key))} in it; "
                "remove it there, and run the flow again"
            )
