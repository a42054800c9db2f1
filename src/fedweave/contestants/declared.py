"""Contestants that a study declares: the block `methods.NAME.contestant` of params.yaml."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any

from fedweave.contestants import program
from fedweave.contestants.entry import enter, find_entry
from fedweave.errors import relocate
from fedweave.settings import AtLeast
from fedweave.study.config import construct


@dataclass(frozen=True, kw_only=True)
class ProgramSpec:
    """A program, with the arguments of `fedweave.contestants.program`; paths are relative to the current folder."""

    command: str
    folder: str = "."
    uses: list[str] | str = field(default_factory=list)
    env: dict[str, Any] = field(default_factory=dict)
    timeout: Annotated[float, AtLeast(0.001)] = 3600.0
    memory: float | None = None
    requirements: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    space: dict[str, Any] = field(default_factory=dict)
    sandbox: bool = False
    network: bool = False


def declare(name: str, block: Mapping[str, Any], where: str) -> None:
    """List the contestant `name` among the methods.

    Raises:
        BadInput: at `where`, which stands for the block.
    """
    spec = construct(ProgramSpec, block, where)
    with relocate({"contestants.program": where, f"contestant {name}": where}):
        enter(program(**asdict(spec), name=name), where)


def files_of(methods: Mapping[str, Any]) -> list[str]:
    """Files and folders that the contestants among `methods` depend on; relative to the current folder if below it."""
    entries = filter(None, map(find_entry, methods))
    here = Path.cwd()
    paths = {path for entry in entries for path in entry.runner.files}
    return sorted(str(path.relative_to(here)) if path.is_relative_to(here) else str(path) for path in paths)
