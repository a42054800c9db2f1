"""Checkpoints: one file per repetition and moment, named after the specification of the run."""

from pathlib import Path

import torch
from torch import Tensor

from fedweave.errors import BadInput
from fedweave.federation.records import State
from fedweave.files import load_tensors, save_tensors, sweep
from fedweave.runs import assembly
from fedweave.runs.history import History
from fedweave.runs.preparation import PreparedRun
from fedweave.study.spec import Run

VERSION = 3  # of a checkpoint's content
CHECKPOINTS = 2  # of a repetition that stay: the newest, and the one before it in case the disk damages that


def stored(folder: Path, run: Run, seed: int) -> list[Path]:
    """The checkpoints of a repetition, the newest first."""
    return sorted(folder.glob(f"{run.fingerprint()}-{seed}-*.pt"), reverse=True)


def forget(folder: Path, run: Run) -> None:
    """Remove the checkpoints of a run whose results are written."""
    sweep(folder, f"{run.fingerprint()}-*")
    for path in folder.glob(f"{run.fingerprint()}-*.pt"):
        path.unlink(missing_ok=True)


def save(checkpoints: Path, prepared: PreparedRun, seed: int, state: State, history: History) -> None:
    """Write a checkpoint; that of a finished repetition has no state, and the ones before it go."""
    finished = state.round == prepared.rounds
    state = State(state.round, {}, {}) if finished else state
    content = {"version": VERSION, "fingerprint": prepared.run.fingerprint(), "seed": seed}
    path = checkpoints / f"{prepared.run.fingerprint()}-{seed}-{state.round:09d}.pt"
    save_tensors(path, {**content, "state": assembly.to_cpu(tuple(state)), "history": history.plain()})
    for old in stored(checkpoints, prepared.run, seed)[1 if finished else CHECKPOINTS :]:
        old.unlink(missing_ok=True)


def restore(checkpoints: Path, prepared: PreparedRun, seed: int) -> tuple[State | None, History]:
    """The newest readable checkpoint of a repetition; one that the disk has damaged gives way to the one before it.

    Raises:
        BadInput: none can be read, or one is of another version, specification or seed.
    """
    files = stored(checkpoints, prepared.run, seed)
    for path in files:
        try:
            content = load_tensors(path)
            header = [content["version"], content["fingerprint"], content["seed"]]
        except Exception as error:  # a damaged file can raise nearly anything
            reason = type(error).__name__
            continue
        if header != (expected := [VERSION, prepared.run.fingerprint(), seed]):
            raise BadInput(
                f"{path}: is of (version, specification, seed) {header}, not {expected}; "
                "delete it to start this repetition again"
            )
        moved = torch.utils._pytree.tree_map(
            lambda t: t.to(prepared.device) if isinstance(t, Tensor) else t, content["state"]
        )
        return State(*moved), History.of(content["history"])
    if files:
        raise BadInput(f"{files[0]}: not a readable checkpoint ({reason}); delete it to start this repetition again")
    return None, History()
