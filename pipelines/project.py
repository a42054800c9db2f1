"""The current folder as a project of DVC: its repository, and the plug-ins that params.yaml names."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedweave.errors import BadInput
from fedweave.study import plugins
from fedweave.study.spec import PARAMS, read_yaml

from . import linked

if TYPE_CHECKING:
    from dvc.repo import Repo

# Environment variable: the folder of the project on this host, where it may be another one than on the writer's host.
PROJECT_VARIABLE = "FEDWEAVE_PROJECT"
GIT_HINT = "make it one of git (git init), or tell DVC that it has no git (dvc config core.no_scm true)"


def used_plugins() -> Any:
    """The block `uses` of params.yaml in this folder, as it is written there; empty without one."""
    return (read_yaml(PARAMS).get("uses") or {}) if PARAMS.is_file() else {}


def plugin_paths() -> dict[str, str]:
    """Name -> path of the plug-ins that params.yaml in this folder names."""
    return plugins.resolve_paths(used_plugins(), str(PARAMS))


def load_plugins() -> None:
    """Import the plug-ins of params.yaml."""
    plugins.load(plugin_paths().values())


def repository(wait: bool = False) -> "Repo":
    """DVC's repository in the current folder; with `wait` it waits for a lock that another process holds.

    Raises:
        BadInput: the folder is not a project; it is not a checkout of git, such as an unpacked archive of the code; or
            its stages depend on another package than the one that runs.
    """
    if line := linked.difference():
        raise BadInput(line)
    from dvc.exceptions import NotDvcRepoError
    from dvc.repo import Repo
    from dvc.scm import SCMError

    try:
        return Repo(os.curdir, _wait_for_lock=wait)
    except SCMError as error:
        raise BadInput(f"{Path.cwd()}: is not a checkout of git, which DVC asks for; {GIT_HINT}") from error
    except NotDvcRepoError as error:
        raise BadInput(
            f"{Path.cwd()}: is not the project's folder, there is no .dvc in it; go to the folder that has dvc.yaml"
        ) from error
