"""The owner of a pool: the folder that has deployed it, until the pool's variable at the server is deleted."""

import socket
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedweave.errors import BadInput

from ..mlflow_records import owner as projects
from .pool_names import VARIABLE

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient

PREFIX = "fedweave-"  # of the variables that hold the owners of pools


@dataclass(frozen=True)
class Owner:
    """The folder that has deployed a pool.

    Attributes:
        project: its name, which other paths to the same folder share.
        user: who has deployed it, for messages.
        host: the name of the machine.
        folder: the path of the project there.
        history: first commit and place in the checkout, which clones share; empty without git.
    """

    project: str
    user: str
    host: str
    folder: str
    history: str

    def __str__(self) -> str:
        return f"the project in {self.folder} on {self.host} (user {self.user})"

    @property
    def is_here(self) -> bool:
        """Whether the current folder is this one, under any path; a copy of it is another folder."""
        if (self.host, self.folder) == (socket.gethostname(), str(Path.cwd())):
            return True
        if self.project != projects.name():
            return False
        original = Path(self.folder, projects.FILE)
        try:
            return self.host != socket.gethostname() or not original.is_file() or original.samefile(projects.FILE)
        except PermissionError:  # the owner's folder belongs to another user, so that this one is a copy
            return False


def claim(client: "SyncPrefectClient", pool: str) -> Owner:
    """Make the current folder the owner of `pool`, unless another one is, or update what the server knows of it."""
    from prefect.client.schemas.actions import VariableCreate, VariableUpdate
    from prefect.exceptions import ObjectAlreadyExists

    own = Owner(**projects.tags(projects.name()), history=_history())
    try:
        client.create_variable(VariableCreate(name=PREFIX + pool, value=asdict(own)))
    except ObjectAlreadyExists:
        owner = read(client, pool)
        if owner and not owner.is_here:
            raise BadInput(
                f"pool {pool}: belongs to {owner}; deploy this project under a name of its own: "
                f"fedweave deploy --pool NAME, or {VARIABLE}=NAME in .env for all its hosts; "
                f"if that project is gone: prefect variable unset {PREFIX}{pool}"
            ) from None
        client.update_variable(VariableUpdate(name=PREFIX + pool, value=asdict(own)))
    return own


def check_flows(client: "SyncPrefectClient", pool: str) -> None:
    """Refuse to run the flows of `pool` in a folder that does not own it."""
    owner = _require_owner(client, pool)
    if not owner.is_here:
        raise BadInput(
            f"pool {pool}: belongs to {owner}, and its flows run there only; in a clone of that project: "
            f"fedweave worker --role stages; another project needs a pool of its own: fedweave deploy --pool NAME, "
            "then fedweave worker --pool NAME"
        )


def check_stages(client: "SyncPrefectClient", pool: str, is_named: bool) -> Owner:
    """The owner of `pool`; refuse to share stages with it in the folder of another project.

    Args:
        is_named: whether the user has named the pool, and so has said that this is a host of its project.

    Raises:
        BadInput: nobody owns it, or a folder that this one is not a clone of.
    """
    owner = _require_owner(client, pool)
    if not (is_named or owner.is_here or (owner.history and owner.history == _history())):
        raise BadInput(
            f"pool {pool}: belongs to {owner}, and {Path.cwd()} is not a clone of it with the same first commit; "
            f"set {VARIABLE} in .env to the pool of this project; on a host of that project: {VARIABLE}={pool}"
        )
    return owner


def read(client: "SyncPrefectClient", pool: str) -> Owner | None:
    """The owner of `pool`; None if it has none."""
    variable = client.read_variable_by_name(PREFIX + pool)
    return _parse_owner(variable.value, variable.name) if variable else None


def _require_owner(client: "SyncPrefectClient", pool: str) -> Owner:
    """The owner of `pool`; refused if it has none."""
    if owner := read(client, pool):
        return owner
    names = [entry.name for entry in client.read_variables() if entry.name.startswith(PREFIX)]
    deployed = ", ".join(sorted(name.removeprefix(PREFIX) for name in names)) or "none"
    raise BadInput(
        f"pool {pool}: nobody has deployed it at this server (deployed: {deployed}); name another one ({VARIABLE}), or "
        "deploy it in the project's main folder: fedweave deploy"
    )


def _parse_owner(value: Any, name: str) -> Owner:
    """The owner that a variable holds; refused if somebody has changed it by hand."""
    fields = Owner.__dataclass_fields__
    if not isinstance(value, Mapping) or {*value} != {*fields} or not all(isinstance(v, str) for v in value.values()):
        raise BadInput(f"Prefect's variable {name}: does not hold the owner of a pool; prefect variable unset {name}")
    return Owner(**value)


def _history() -> str:
    """The first commit of git and the place of this folder in the checkout; empty without git or commits."""
    try:
        commits = _git("rev-list", "--max-parents=0", "HEAD").split()
        return f"{commits[-1]}:{_git('rev-parse', '--show-prefix').strip()}"
    except (OSError, subprocess.CalledProcessError):
        return ""


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], capture_output=True, text=True, check=True).stdout
