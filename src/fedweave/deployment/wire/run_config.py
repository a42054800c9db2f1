"""The run-config of an app: the roster, the server's folder and its times; `flwr run --run-config` can change it."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedweave.deployment.wire.roster import DEFAULT_PATH, Roster
from fedweave.errors import BadInput, format_value

HOME = Path("~/.fedweave/federations")


def read_folder(config: Mapping[str, Any], short_hash: str) -> Path:
    """The folder of checkpoints and results; by default one of the specification with `short_hash`."""
    return (Path(str(config["folder"])) if config["folder"] else HOME / short_hash).expanduser()


def read_roster(config: Mapping[str, Any]) -> Roster:
    """The roster of the nodes' keys."""
    return Roster((Path(str(config["roster"])) if config["roster"] else DEFAULT_PATH).expanduser())


def read_count(config: Mapping[str, Any], key: str) -> int:
    """A whole number of clients, 0 or more."""
    if (number := read_number(config, key)) % 1:
        raise BadInput(f"run-config: {key}", f"{format_value(config[key])} is not a whole number; for example {key}=2")
    return int(number)


def read_number(config: Mapping[str, Any], key: str) -> float:
    """A finite number of seconds, 0 or more."""
    try:
        number = float(config[key])
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise BadInput(f"run-config: {key}", f"{format_value(config[key])} is not a number >= 0; for example {key}=600")
    return number
