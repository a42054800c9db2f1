"""Names of the places where training runs, and of a pool and its deployments: the defaults, or those of the project."""

import os
import re
from typing import Literal

from fedweave.errors import BadInput, format_value

Place = Literal["here", "workers", "ray", "slurm"]  # where the training of a flow runs

VARIABLE = "FEDWEAVE_POOL"  # environment variable with the pool; in .env it holds for all hosts of the project
DEFAULT = "gpu-pool"
NAME = re.compile(r"(?!prefect)[a-z0-9][a-z0-9-]{0,39}")  # Prefect keeps names that begin with its own for itself


def current_pool() -> str:
    """The pool of this project: FEDWEAVE_POOL, which must be a name of one, or the default."""
    return check(os.environ.get(VARIABLE, ""))


def check(name: str) -> str:
    """`name`, which must be one of a pool, or the default where it is empty."""
    if name and not NAME.fullmatch(name):
        raise BadInput(
            f"{VARIABLE}: {format_value(name)} is not a name of a pool; give at most 40 lower-case letters, digits and "
            "hyphens, such as vision; it must not begin with prefect"
        )
    return name or DEFAULT


def deployment(name: str, pool: str) -> str:
    """The name in `pool` of the deployment `name` of prefect.yaml."""
    return name if pool == DEFAULT else f"{name}-{pool}"
