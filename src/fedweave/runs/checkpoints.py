"""Checkpoints: one file per repetition and moment, named after the specification of the run.

The last one of a repetition has its results. It stays after these are written, so that a study which gets further seeds
trains those alone.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedweave.engine.records import State
from fedweave.errors import BadInput
from fedweave.files.atomic import load_tensors, remove_temporary_files, save_tensors, write_json
from fedweave.runs.build import PreparedRun
from fedweave.runs.history import History
from fedweave.runs.machine import describe_machine
from fedweave.study.spec import RunSpec
from fedweave.tensors.storage import Storage, records_to_tables, tables_to_records, tables_to_tensors, temporary_storage
from fedweave.tensors.trees import to_cpu

VERSION = 3  # of a checkpoint's content
CHECKPOINTS = 2  # that are kept of a repetition: the newest, and the one before in case the newest is damaged
WRITTEN = "written.json"  # ends the name of the file with the seeds of a run whose results are written
FINISHED = "finished"  # in the name of a last checkpoint, in place of the round; it sorts after all rounds
MOST_FINISHED = 2**30  # bytes of last checkpoints whose results are written


def list_checkpoints(folder: Path, run: RunSpec, seed: int) -> list[Path]:
    """The checkpoints of a repetition, the newest first."""
    return sorted(folder.glob(f"{run.fingerprint()}-{seed}-*.pt"), reverse=True)


def record_written(folder: Path, prepared: PreparedRun) -> None:
    """Note that the results of a run are written; its finished repetitions stay while there is room.

    Those of a program do not: its log is part of the results, and fedweave does not know all that it depends on.
    """
    run = prepared.run
    if not prepared.method.has_models:
        remove(folder, run)
        return
    _remove_unfinished(folder, run)
    write_json(_record(folder, run), {"seeds": [*run.seeds], "machine": describe_machine(prepared)}, indent=None)
    with suppress(FileNotFoundError):  # another process removes them at the same time
        _make_room(folder.parent)


def _make_room(folder: Path) -> None:
    """Remove finished repetitions of written runs for which `MOST_FINISHED` has no room beside newer ones."""
    records = sorted(folder.glob(f"*/*-{WRITTEN}"), key=lambda path: path.stat().st_mtime, reverse=True)
    used = 0
    for record in records:
        files = [*record.parent.glob(f"{record.name.removesuffix(WRITTEN)}*-{FINISHED}.pt")]
        size = sum(file.stat().st_size for file in files)
        if used + size <= MOST_FINISHED:
            used += size
            continue
        for file in (*files, record):
            file.unlink(missing_ok=True)


def forget_repeated(folder: Path, prepared: PreparedRun) -> None:
    """Remove finished repetitions of a run that are not to be used again: its results were written for the same seeds,
    so that it is trained again on purpose, or by other versions of libraries or on another device.
    """
    record = _record(folder, prepared.run)
    try:
        written = json.loads(record.read_text(encoding="utf-8"))
        is_new = not written.get("resumed", False)
        repeated = is_new and {*written["seeds"]} == {*prepared.run.seeds}
        elsewhere = written["machine"] != describe_machine(prepared)
    except (OSError, ValueError, KeyError, TypeError):  # there is none, or one that a killed process left
        return
    if repeated or elsewhere:
        remove(folder, prepared.run)
    elif is_new:  # from now on they are checkpoints of this training, which may be interrupted
        write_json(record, {**written, "resumed": True}, indent=None)


def is_written(folder: Path, run: RunSpec) -> bool:
    """Whether `folder` has finished repetitions of a run whose results were written, and no training of further seeds
    that has begun since.
    """
    try:
        return not json.loads(_record(folder, run).read_text(encoding="utf-8")).get("resumed", False)
    except (OSError, ValueError):
        return False


def keep_seeds(folder: Path, run: RunSpec, seeds: Sequence[int]) -> None:
    """Remove the finished repetitions of a run that are of none of `seeds`; without any, also their record."""
    kept = {_finished(folder, run, seed) for seed in seeds}
    for path in {*folder.glob(_finished(folder, run, "*").name)} - kept:
        path.unlink(missing_ok=True)
    if not seeds:
        _record(folder, run).unlink(missing_ok=True)


def _finished(folder: Path, run: RunSpec, seed: int | str) -> Path:
    """The checkpoint of a finished repetition."""
    return folder / f"{run.fingerprint()}-{seed}-{FINISHED}.pt"


def _record(folder: Path, run: RunSpec) -> Path:
    """The file with the seeds of a run whose results are written."""
    return folder / f"{run.fingerprint()}-{WRITTEN}"


def remove(folder: Path, run: RunSpec) -> None:
    """Remove the checkpoints of a run."""
    _remove_unfinished(folder, run)
    keep_seeds(folder, run, ())


def _remove_unfinished(folder: Path, run: RunSpec) -> None:
    """Remove the checkpoints of a run but the last ones of its repetitions."""
    remove_temporary_files(folder, f"{run.fingerprint()}-*")
    for path in folder.glob(f"{run.fingerprint()}-*-[0-9]*.pt"):
        path.unlink(missing_ok=True)
    for path in folder.glob(_table_folder(folder, run, "*").name):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def open_storage(checkpoints: Path | None, prepared: PreparedRun, seed: int) -> Iterator[Storage | None]:
    """The storage of the tables of a repetition: None for memory, else files beside its checkpoints.

    Without `checkpoints`, the files are temporary.
    """
    if not prepared.has_mapped_tables:
        yield None
    elif checkpoints is None:
        with temporary_storage() as storage:
            yield storage
    else:
        yield Storage(_table_folder(checkpoints, prepared.run, seed))


def _table_folder(checkpoints: Path, run: RunSpec, seed: int | str) -> Path:
    """The folder of the tables of a repetition."""
    return checkpoints / f"{run.fingerprint()}-{seed}-rows"


def save(
    checkpoints: Path, prepared: PreparedRun, seed: int, state: State, history: History, tables: Storage | None = None
) -> None:
    """Write a checkpoint. That of a finished repetition has no state and replaces all earlier ones.

    Args:
        tables: the storage of the tables of `state`; the checkpoint refers to its files.
    """
    finished = state.round == prepared.rounds
    state = State(state.round, {}, {}) if finished else state
    content = {"version": VERSION, "fingerprint": prepared.run.fingerprint(), "seed": seed}
    moment = FINISHED if finished else f"{state.round:09d}"
    path = checkpoints / f"{prepared.run.fingerprint()}-{seed}-{moment}.pt"
    if tables is not None and not finished:
        tables.flush()  # rows have to be on the disk before a checkpoint refers to them
        tables.retain(path.name, tuple(state))
    save_tensors(path, {**content, "state": to_cpu(tables_to_records(tuple(state))), "history": history.to_plain()})
    for old in list_checkpoints(checkpoints, prepared.run, seed)[1 if finished else CHECKPOINTS :]:
        old.unlink(missing_ok=True)
        if tables is not None:
            tables.release(old.name)
    if finished:
        shutil.rmtree(_table_folder(checkpoints, prepared.run, seed), ignore_errors=True)


def restore(
    checkpoints: Path, prepared: PreparedRun, seed: int, tables: Storage | None = None
) -> tuple[State | None, History]:
    """The newest readable checkpoint of a repetition; a damaged one is skipped.

    Args:
        tables: the storage for its tables; None: in memory.

    Raises:
        BadInput: none can be read, or one is of another version, specification or seed.
    """
    files = list_checkpoints(checkpoints, prepared.run, seed)
    storage = tables or Storage(_table_folder(checkpoints, prepared.run, seed))
    if not files:
        storage.clear()  # rows of a process that ended before its first checkpoint
    for path in files:
        try:
            content = load_tensors(path)
            actual = [content["version"], content["fingerprint"], content["seed"]]
            state = records_to_tables(content["state"], storage)
        except Exception as error:  # a damaged file can raise nearly anything
            reason = type(error).__name__
            continue
        if actual != (expected := [VERSION, prepared.run.fingerprint(), seed]):
            raise BadInput(
                f"{path}",
                f"is of (version, specification, seed) {actual}, not {expected}; "
                "delete it to start this repetition again",
            )
        if tables is None:
            state = tables_to_tensors(state)
        else:
            _retain_rows(tables, files[files.index(path) :], state)
        state_on_device = torch.utils._pytree.tree_map(
            lambda t: t.to(prepared.device) if isinstance(t, Tensor) else t, state
        )
        return State(*state_on_device), History.from_plain(content["history"])
    if files:
        raise BadInput(f"{files[0]}", f"not a readable checkpoint ({reason}); delete it to start this repetition again")
    return None, History()


def _retain_rows(tables: Storage, files: list[Path], state: Any) -> None:
    """Keep the rows of the newest of `files`, whose content is `state`, and of the older ones that can be read."""
    tables.retain(files[0].name, state)
    for older in files[1:]:
        with suppress(Exception):  # a damaged file can raise nearly anything; its rows are not needed
            tables.retain(older.name, records_to_tables(load_tensors(older)["state"], tables))
    tables.remove_unused_files()
