"""The ledger of a life: what its deliveries are, what was put aside, and the lock of those who write."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedweave.errors import Busy, format_count
from fedweave.files.atomic import hold_lock, read_json
from fedweave.lifecycle import LEDGER
from fedweave.lifecycle.schema import Schema

FOLDER = "deliveries"  # of the ledger and the files that it names
RESTORE = "restore it from DVC: dvc checkout"
SHOWN = 3  # names in a note


@dataclass(frozen=True)
class Arrival:
    """One delivery.

    Attributes:
        number: 1 for the first.
        file, digest: its file beside the ledger, and the digest of that file.
        source, reading: name and digest of what was read.
        when: in UTC.
        rows: that the reading had.
        new, corrections, deletions: rows of each kind of change.
        labelled: rows that have had no label before, and have one now.
        joined: clients that are new.
        absent: clients of the delivery before that have no row in this one.
        notes: what was suspicious and was accepted, and which columns may be misread.
    """

    number: int
    file: str
    digest: str
    source: str
    reading: str
    when: str
    rows: int
    new: int
    corrections: int
    deletions: int
    labelled: int
    joined: tuple[str, ...] = ()
    absent: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        parts = [(self.new, "new row"), (self.corrections, "correction"), (self.deletions, "deletion")]
        changes = ", ".join(format_count(count, noun) for count, noun in parts if count)
        joined, absent = (_names(word, names) for word, names in (("new", self.joined), ("without rows", self.absent)))
        said = [*([changes] if changes else ()), *joined, *absent, *self.notes]
        return f"delivery {self.number}, {self.source}: {'; '.join(said)}"


def _names(word: str, names: Sequence[str]) -> list[str]:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return [f"clients {word}: {', '.join(names[:SHOWN])}{more}"] if names else []


@dataclass(frozen=True)
class Quarantined:
    """A reading that was put aside.

    Attributes:
        name, digest: of the reading.
        when: in UTC.
        reason: one line.
        file: the copy of its content.
    """

    name: str
    digest: str
    when: str
    reason: str
    file: str

    def __str__(self) -> str:
        return f"quarantined, {self.name}: {self.reason}"


@dataclass(frozen=True)
class Ledger:
    """What the deliveries are.

    Attributes:
        schema: of the next one; None before the first.
        arrivals: in their order.
        seen: digests of readings that need not be read again.
        has_past: whether the first call, which takes all there is, has come to its end.
        forgotten: site whose rows were erased, and are not taken -> number of the delivery that says so.
    """

    schema: Schema | None = None
    arrivals: tuple[Arrival, ...] = ()
    seen: tuple[str, ...] = ()
    has_past: bool = False
    forgotten: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, content: Mapping[str, Any]) -> "Ledger":
        """A ledger from the content of its file."""
        lists = ("joined", "absent", "notes")
        arrivals = (Arrival(**{**entry, **{name: (*entry[name],) for name in lists}}) for entry in content["arrivals"])
        schema = content["schema"] and Schema.parse(content["schema"])
        return cls(schema, tuple(arrivals), (*content["seen"],), content["has_past"], content.get("forgotten", {}))


def read_ledger(folder: Path) -> Ledger:
    """The ledger of a life; an empty one before the first delivery.

    Raises:
        BadInput: its file is damaged.
    """
    if not (file := folder / FOLDER / LEDGER).is_file():
        return Ledger()
    return read_json(file, RESTORE, Ledger.parse)


@contextmanager
def lock(folder: Path, part: str) -> Iterator[None]:
    """The context of one process that writes a part of a life.

    Raises:
        Busy: another one is at it.
    """
    busy = Busy(f"{folder}: another process writes its {part}; try again when it has ended")
    with hold_lock(folder / f".{part}.lock", busy):
        yield
