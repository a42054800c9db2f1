"""What a process inherits from its parent, and how a fork of the server takes it over from the client."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

# Environment variables that may differ from stage to stage, in addition to DVC's own
VARYING = ("_", "SHLVL", "PWD", "OLDPWD", "CUDA_VISIBLE_DEVICES")


def fixed_variables(environment: dict[str, str]) -> dict[str, str]:
    """The variables that must be the same for a process and its fork."""
    return {name: value for name, value in environment.items() if not _may_differ(name)}


def _may_differ(name: str) -> bool:
    return name in VARYING or name.startswith("DVC_")


def initial_environment() -> dict[str, str]:
    """The environment that this process was started with, without its own later changes."""
    lines = (line.partition(b"=") for line in Path("/proc/self/environ").read_bytes().split(b"\0") if line)
    return {os.fsdecode(name): os.fsdecode(value) for name, _, value in lines}


def inherit(request: dict[str, Any], streams: list[int]) -> None:
    """Take over streams, variables, umask and ignored signals of the client, and lead a new process group."""
    os.setpgid(0, 0)
    for descriptor, stream in enumerate(streams):
        os.dup2(stream, descriptor)
        os.close(stream)
    os.umask(request["umask"])
    for name in filter(_may_differ, tuple(os.environ)):
        del os.environ[name]
    os.environ.update({name: value for name, value in request["env"].items() if _may_differ(name)})
    signal.signal(signal.SIGINT, signal.SIG_IGN if signal.SIGINT in request["ignored"] else signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # the server ignores it
    for number in request["ignored"]:
        signal.signal(number, signal.SIG_IGN)
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]
