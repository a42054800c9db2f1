"""A board as a folder: board.yaml, its contestants, and the digests of rows and code."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import yaml

from fedweave import contestants
from fedweave.contestants import NAME
from fedweave.contestants.entry import Contestant
from fedweave.errors import BadInput, format_value, relocate
from fedweave.files.atomic import digest_file, write_atomic
from fedweave.own_data.federation import Federation
from fedweave.settings import AtLeast
from fedweave.study.config import construct
from fedweave.study.spec import read_yaml

BOARD, ENTRIES, CONTESTANTS, OWN = "board.yaml", "contestants.yaml", "contestants", "contestant.yaml"
HEADING = "# Written by `fedweave submit`: the command of each contestant, and the digest of its files.\n"
STARTERS = {".py": "python", ".R": "Rscript", ".r": "Rscript", ".jl": "julia", ".sh": "sh"}
LEFT_OUT = ("__pycache__", ".git")  # folders that are no part of a contestant


@dataclass(frozen=True, kw_only=True)
class RowsFile:
    """The rows of a board.

    Attributes:
        file: relative to the board. It need not be public.
        sha256: of its bytes.
        client, label: names of columns.
        options: further arguments of `Federation.from_file`.
    """

    file: str
    sha256: str
    client: str
    label: str
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class BoardTerms:
    """What board.yaml says: the same for every method and contestant.

    Attributes:
        title, about: for the page.
        rows: mapping with the fields of `RowsFile`.
        methods: names of those of fedweave.
        rounds, seeds, metric, model, tune, train: as of `fedweave.compare`; rounds are those of the methods.
        seconds: of one repetition of a contestant.
        memory: MiB of each of its processes.
        sandbox: whether files and the network are closed to contestants.
    """

    title: str
    rows: dict[str, Any]
    methods: list[str]
    about: str = ""
    rounds: Annotated[int, AtLeast(1)] = 50
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    metric: str = ""
    model: str = "mlp"
    tune: int | None = None
    train: dict[str, Any] = field(default_factory=dict)
    seconds: Annotated[float, AtLeast(0.001)] = 600.0
    memory: Annotated[float, AtLeast(1)] = 4096.0
    sandbox: bool = True


@dataclass(frozen=True, kw_only=True)
class OwnTerms:
    """What contestant.yaml may say; seeds and limits are those of the board.

    Attributes:
        command: which runs in the folder of the contestant.
        about: a line for the page.
        requirements, settings, space: as of `fedweave.contestants.program`.
    """

    command: str
    about: str = ""
    requirements: str | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    space: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Board:
    """A board that was read.

    Attributes:
        folder: of the board.
        terms: what board.yaml says.
        rows: the rows and their digest.
        entries: name of a contestant -> {"command": ..., "sha256": ...}, as contestants.yaml has them.
    """

    folder: Path
    terms: BoardTerms
    rows: RowsFile
    entries: dict[str, dict[str, str]]

    @property
    def file(self) -> Path:
        """The file of the rows, which may be absent."""
        return self.folder / self.rows.file

    @property
    def results(self) -> Path:
        """The folder of the runs; other terms have another one."""
        return self.folder / "results" / digest_file(self.folder / BOARD)[:12]

    def federation(self) -> Federation:
        """The clients and their rows.

        Raises:
            BadInput: the file is absent, has another digest, or cannot be read.
        """
        where = f"{self.folder / BOARD}: rows"
        if not self.file.is_file():
            raise BadInput(where, f"{self.file} is not here; whoever keeps the rows judges the contestants")
        if (found := digest_file(self.file)) != self.rows.sha256:
            problem = f"{self.file} has the digest {found}, and the board names {self.rows.sha256}; bring back its rows"
            raise BadInput(f"{where}.sha256", problem)
        options = {"client": self.rows.client, "label": self.rows.label, **self.rows.options}
        return Federation.from_file(self.file, **options)

    def build(self, name: str, folder: Path) -> type[Contestant]:
        """The contestant in `folder`, on the terms of the board.

        Raises:
            BadInput: naming the contestant.
        """
        own, where = read_own_terms(folder), f"contestant {name}"
        with relocate({"contestants.program": where}):
            return contestants.program(
                own.command,
                name=name,
                folder=folder,
                uses=["."],
                timeout=self.terms.seconds,
                memory=self.terms.memory,
                requirements=own.requirements,
                settings=own.settings,
                space=own.space,
                sandbox=self.terms.sandbox,
            )

    def build_all(self) -> list[type[Contestant]]:
        """All contestants, whose files have the digests of contestants.yaml.

        Raises:
            BadInput: naming the contestant.
        """
        return [self.build(name, self.check(name)) for name in self.entries]

    def check(self, name: str) -> Path:
        """The folder of a contestant of the board.

        Raises:
            BadInput: its files or its command are not those that were entered.
        """
        folder, entry = self.folder / CONTESTANTS / name, self.entries[name]
        where = f"{self.folder / ENTRIES}: {name}"
        if not folder.is_dir():
            raise BadInput(where, f"{folder} is not there; bring it back, or remove the line")
        if describe(folder) != entry:
            raise BadInput(where, f"{folder} has another command or digest; bring it back, or enter it by a new name")
        return folder


def read(folder: Path | str) -> Board:
    """The board in a folder.

    Raises:
        BadInput: it has no board.yaml, or one that is wrong.
    """
    place = Path(folder)
    if not (place / BOARD).is_file():
        raise BadInput(f"{place}: has no {BOARD}; name the folder of a board")
    terms = construct(BoardTerms, read_yaml(place / BOARD), str(place / BOARD))
    rows = construct(RowsFile, terms.rows, f"{place / BOARD}: rows")
    entries = read_yaml(place / ENTRIES) if (place / ENTRIES).is_file() else {}
    for name, entry in entries.items():
        check_name(name, str(place / ENTRIES))
        if not (isinstance(entry, dict) and set(entry) == {"command", "sha256"}):
            raise BadInput(
                f"{place / ENTRIES}: {name}", "needs command and sha256 alone; `fedweave submit` writes them"
            )
    return Board(place.resolve(), terms, rows, entries)


def check_name(name: object, where: str) -> None:
    """Refuse what cannot be the name of a contestant and of its folder."""
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        raise BadInput(where, f"{format_value(name)} is not a name; use letters, digits, - and _")


def write_entries(board: Board, entries: dict[str, dict[str, str]]) -> None:
    """Write contestants.yaml."""
    text = yaml.safe_dump(entries, sort_keys=True, default_flow_style=False, width=120)
    write_atomic(board.folder / ENTRIES, HEADING + text)


def read_own_terms(folder: Path) -> OwnTerms:
    """contestant.yaml of a contestant, or the command of its only script.

    Raises:
        BadInput: there are several scripts or none, or a setting that a contestant does not choose.
    """
    if (folder / OWN).is_file():
        return construct(OwnTerms, read_yaml(folder / OWN), f"{folder.name}/{OWN}")
    scripts = [file for file in sorted(folder.iterdir()) if file.suffix in STARTERS]
    if len(scripts) != 1:
        problem = f"has {len(scripts)} scripts and no {OWN}; write one with its command: python mine.py"
        raise BadInput(folder.name, problem)
    return OwnTerms(command=f"{STARTERS[scripts[0].suffix]} {scripts[0].name}")


def describe(folder: Path) -> dict[str, str]:
    """The entry of a contestant: its command and the digest of its files."""
    return {"command": read_own_terms(folder).command, "sha256": digest_folder(folder)}


def list_files(folder: Path) -> Iterator[Path]:
    """The files of a contestant, relative to its folder.

    Raises:
        BadInput: a link, which could lead to rows of the board, or another thing that is no file.
    """
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if set(LEFT_OUT).intersection(inside.parts):
            continue
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise BadInput(f"{folder.name}/{inside}", "is a link or no file; a contestant has files of its own alone")
        if path.is_file():
            yield inside


def digest_folder(folder: Path) -> str:
    """SHA-256 of names and contents of the files of a contestant."""
    lines = [f"{digest_file(folder / file)}  {file.as_posix()}\n" for file in list_files(folder)]
    return hashlib.sha256("".join(lines).encode()).hexdigest()
