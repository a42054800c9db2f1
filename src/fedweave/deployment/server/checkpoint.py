"""The server's state between two rounds, and its files."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedweave.deployment.stored_states import StoredStates
from fedweave.engine.protocol import Server
from fedweave.errors import BadInput
from fedweave.files.atomic import hold_lock, remove_temporary_files
from fedweave.runs.history import History

KIND = "server"  # of the files
MAX_FILES = 2  # checkpoints that stay in the folder


@dataclass(frozen=True)
class Session:
    """A running federation.

    Attributes:
        round: number of rounds that are over.
        server: the method's state.
        members: identities of the clients, in the order in which they joined.
        sizes: training rows of each member, float [N].
        history: scores, losses and traffic so far.
        last: numbers of the last round, whose scores have not arrived yet; empty if there is no such round.
        controls: rule -> score by identity, of rules without a model.
    """

    round: int = 0
    server: Server = field(default_factory=dict)
    members: tuple[int, ...] = ()
    sizes: Tensor = field(default_factory=lambda: torch.zeros(0))
    history: History = field(default_factory=History)
    last: dict[str, Any] = field(default_factory=dict)
    controls: dict[str, dict[str, float]] = field(default_factory=dict)


def save(folder: Path, spec_hash: str, session: Session) -> None:
    """Write a checkpoint. The one before it stays, because the disk may damage the new one."""
    content = {**vars(session), "history": session.history.to_plain(), "members": [*session.members]}
    states = StoredStates(folder, spec_hash)
    states.save(session.round, content, KIND)
    states.remove_older(KIND, sorted(states.versions(KIND))[-MAX_FILES:][0])


def restore(folder: Path, spec_hash: str) -> Session | None:
    """The newest readable checkpoint, or None where there is none.

    Raises:
        BadInput: none can be read, or all are of another federation.
    """
    remove_temporary_files(folder, f"{KIND}-*")
    states, refusal = StoredStates(folder, spec_hash), None
    for version in sorted(states.versions(KIND), reverse=True):
        try:
            content = states.load(version, KIND)
        except BadInput as error:
            refusal = refusal or error
            continue
        history = History.from_plain(content["history"])
        return replace(Session(**{**content, "history": history}), members=tuple(content["members"]))
    if refusal:
        raise refusal
    return None


def lock_folder(folder: Path, remedy: str, wait: float = 0.0) -> AbstractContextManager[None]:
    """Lock the folder of a federation for a block; `remedy` says what to do if another has it after `wait` seconds."""
    return hold_lock(folder / ".lock", BadInput(folder, f"another federation is running in it; {remedy}"), wait)
