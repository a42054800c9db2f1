"""The rows of a source as deliveries: a folder of immutable files and one ledger, which only grow.

A delivery is written in two steps: its file, then the ledger that names it. A kill between them leaves a file that no
ledger names, which the next call replaces. So no row is lost, and none counts twice.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedweave.data.partitions.splits import PARTS, check_shares
from fedweave.errors import BadInput, choose, format_count, format_value
from fedweave.files.atomic import digest_file, read_json, remove_temporary_files, write_json, write_parquet
from fedweave.lifecycle import LEDGER, reading_notes, timestamp
from fedweave.lifecycle.ledger import FOLDER, RESTORE, Arrival, Ledger, Quarantined, lock, read_ledger
from fedweave.lifecycle.row_digests import ID, ROW, identify
from fedweave.lifecycle.schema import Schema
from fedweave.lifecycle.sources import Reading
from fedweave.own_data.data_warnings import find_similar_names
from fedweave.own_data.targets import KINDS

if TYPE_CHECKING:
    import pandas as pd

CHANGE, PART = "fedweave_change", "fedweave_part"
OWN = (ID, ROW, CHANGE, PART)
LABELLED = "fedweave_labelled"  # number of the delivery in which a row got its label
NEW, CORRECTION, DELETION = "new", "correction", "deletion"
MOST_DELETED = 0.5  # share of all rows that a complete source may leave out


@dataclass(frozen=True)
class Terms:
    """What a source's rows mean; it does not change while a source is followed.

    Attributes:
        client, label: names of columns.
        key: columns that name a row, so that it can be corrected; without them a row is all its values.
        target: "classes", "numbers" or empty, see `Schema.of`.
        complete: a reading has all rows, so that one that is not in it was deleted.
        shares: of the rows of each part.
        seed: of the draw of parts.
    """

    client: str
    label: str
    key: tuple[str, ...] = ()
    target: str = ""
    complete: bool = False
    shares: tuple[float, float, float] = (0.7, 0.15, 0.15)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.label in (self.client, *self.key):
            raise BadInput(
                "label", f"{self.label!r} is also the column of the client or the key; name another column to predict"
            )
        if self.target:
            choose(self.target, KINDS, "target")
        if len(self.shares) != len(PARTS):
            problem = f"{format_value(self.shares)} must be three numbers, of {', '.join(PARTS)}, such as 0.6, 0.2, 0.2"
            raise BadInput("shares", problem)
        check_shares(dict(zip(PARTS, self.shares, strict=True)), "shares")


@dataclass(frozen=True)
class Deliveries:
    """The deliveries in a folder.

    Attributes:
        folder: `deliveries/` has the ledger and the files, `quarantine/` what was put aside.
        terms: what the rows mean.
    """

    folder: Path
    terms: Terms
    _index: dict[str, "pd.DataFrame"] = field(default_factory=dict, repr=False, compare=False)  # file -> its rows

    @property
    def place(self) -> Path:
        """The folder of the ledger."""
        return self.folder / FOLDER

    @property
    def ledger(self) -> Ledger:
        """As its file has it.

        Raises:
            BadInput: the file is damaged.
        """
        return read_ledger(self.folder)

    @property
    def quarantined(self) -> tuple[Quarantined, ...]:
        """What was put aside and is neither accepted nor replaced since, in the order of time."""
        files = (self.folder / "quarantine").glob("*.json")
        found = [read_json(file, "remove it", lambda entry: Quarantined(**entry)) for file in files]
        return tuple(sorted(found, key=lambda entry: (entry.when, entry.name)))

    def take(
        self,
        readings: Iterator[Reading],
        encoding: str = "",
        accept: Sequence[str] = (),
        columns: Sequence[tuple[str, str]] = (),
    ) -> Iterator[Arrival | Quarantined]:
        """Take what is new in each reading; one that was taken or put aside before is passed over.

        The first call takes all there is as the past, whatever its range.

        Args:
            readings: of a source, in their order.
            encoding: of CSV and TSV.
            accept: names or beginnings of digests of readings whose suspicious values are right.
            columns: (option, name) of columns that the first reading must have, as `LifeTraining.named_columns`.

        Raises:
            BadInput: the first reading is damaged or lacks a column, the ledger is damaged, or nothing that is new
                or was put aside has a name in `accept`.
            Busy: another process is taking deliveries.
        """
        with lock(self.folder, "deliveries"):
            for place in (self.place, self.folder / "quarantine"):
                remove_temporary_files(place)
            self._check_terms()
            is_past = not self.ledger.has_past
            aside, found = {entry.digest: entry for entry in self.quarantined}, [*readings]
            new = [reading for reading in found if reading.digest not in self.ledger.seen]
            _check_accepted(accept, [*aside.values(), *new])
            for reading in found:
                is_accepted, seen = any(_is_named(reading, name) for name in accept), self.ledger.seen
                taken = seen[-1:] if len(found) == 1 else seen  # one reading may return to an earlier one
                if reading.digest not in taken and (reading.digest not in aside or is_accepted):
                    outcome = self._take_one(reading, encoding, is_past or is_accepted, columns)
                    yield from () if outcome is None else (outcome,)
                self._drop_outdated(aside.values(), reading)
            if is_past and self.ledger.arrivals:
                self.write(replace(self.ledger, has_past=True))

    def _check_terms(self) -> None:
        """Refuse other terms than those of the rows that are here."""
        schema, terms = self.ledger.schema, self.terms
        for name in ("client", "label", "key"):
            if schema is not None and getattr(schema, name) != getattr(terms, name):
                was = getattr(schema, name)
                raise BadInput(name, f"{getattr(terms, name)!r}, but the deliveries have {was!r}; begin another folder")

    def _take_one(
        self, reading: Reading, encoding: str, is_right: bool, columns: Sequence[tuple[str, str]]
    ) -> Arrival | Quarantined | None:
        """Take what is new in a reading, or put it aside; None where nothing is new."""
        ledger, terms = self.ledger, self.terms
        try:
            if ledger.schema is None:
                table = reading.load((terms.client, *terms.key), (terms.label,), encoding)
                for option, name in columns:
                    choose(name, map(str, table.columns), option)
            else:
                table = reading.load(ledger.schema.names, (), encoding, ledger.schema.has_commas)
            return self._enter(ledger, reading, table, is_right, columns)
        except BadInput as error:
            if ledger.schema is None:
                raise
            return self._put_aside(reading, str(error))

    def _enter(
        self,
        ledger: Ledger,
        reading: Reading,
        table: "pd.DataFrame",
        is_right: bool,
        columns: Sequence[tuple[str, str]],
    ) -> Arrival | Quarantined | None:
        """Write what is new in conformed rows as the next delivery."""
        terms = self.terms
        if (own := next((name for name in (*OWN, LABELLED) if name in table), None)) is not None:
            raise BadInput(f"column {own!r} has a name of fedweave's own; rename it")
        schema = ledger.schema or Schema.of(table, terms.client, terms.label, terms.key, terms.target)
        said = [note for one in ledger.arrivals for note in one.notes] if ledger.arrivals else None
        read_as, (table, schema) = table.attrs, schema.conform(table)
        state = self.state()
        notes = reading_notes.find_notes(read_as, table, schema, columns, said, state)
        table = table[~table[terms.client].isin([*ledger.forgotten])]
        named = identify(table, schema)
        changed, gone = self._compare(named, state, reading)
        problems = [*schema.find_problems(table), *self._find_losses(reading, named, state, gone)] if len(table) else []
        problems += self._find_spellings(table, state)
        known = {*state.loc[state[CHANGE] != DELETION, terms.client]}
        if known and len(changed) and not known & {*table[terms.client]}:
            problems.append(f"none of its clients is known, such as {table[terms.client].iloc[0]!r}")
        if problems and not is_right:
            return self._put_aside(reading, f"{problems[0]}; if this is right, accept it")
        if not len(changed) and not len(gone):
            self.write(replace(ledger, seen=(*ledger.seen, reading.digest)))
            return None
        changed = self._add_parts(changed, state)
        notes = [*(problems if ledger.schema else ()), *notes]
        return self._store(ledger, reading, schema, len(table), changed, gone, state, notes)

    def _compare(
        self, named: "pd.DataFrame", state: "pd.DataFrame", reading: Reading
    ) -> "tuple[pd.DataFrame, pd.DataFrame]":
        """(rows that are new or corrected, with their kind of change; rows that were deleted)."""
        alive = state[state[CHANGE] != DELETION].set_index(ID)[ROW]
        # A file that was delivered before corrects nothing back, unless it has all rows.
        is_old = reading.is_file and any(one.source == reading.name for one in self.ledger.arrivals)
        if is_old and not self.terms.complete:
            earlier = {*zip(*(self.all_rows()[name] for name in (ID, ROW)), strict=True)}
            known = [pair in earlier for pair in zip(named[ID], named[ROW], strict=True)]
        else:
            known = (named[ID].map(alive) == named[ROW]).tolist()
        changed = named[[not one for one in known]]
        kinds = changed[ID].isin(alive.index).map({True: CORRECTION, False: NEW})
        gone = state[(state[CHANGE] != DELETION) & ~state[ID].isin(named[ID])] if self.terms.complete else state[:0]
        return changed.assign(**{CHANGE: kinds.astype("str")}), gone

    def _find_losses(
        self, reading: Reading, named: "pd.DataFrame", state: "pd.DataFrame", gone: "pd.DataFrame"
    ) -> Iterator[str]:
        """Rows that a complete source, or a file of the same name without a key, has lost."""
        alive = int((state[CHANGE] != DELETION).sum())
        if len(gone) > MOST_DELETED * max(alive, 1):
            yield f"{len(gone)} of {format_count(alive, 'row')} would be deleted"
        if reading.is_file and not self.terms.key:
            numbers = {one.number for one in self.ledger.arrivals if one.source == reading.name}
            earlier = self.all_rows()
            earlier = earlier[earlier["number"].isin(numbers)]
            lost = int((~earlier[ID].isin(named[ID])).sum())
            if 0 < lost < len(earlier):  # a file without any of its rows was replaced by the next one
                yield f"{format_count(lost, 'row')} of delivery {max(numbers)} changed in it, and rows have no key"

    def _find_spellings(self, table: "pd.DataFrame", state: "pd.DataFrame") -> Iterator[str]:
        """Clients that earlier deliveries name in nearly the same way, and whole numbers as keys, as 7 or 7.0 for 007.

        Other keys are compared as they are, since 3.1 and 3.10 may be two rows.
        """
        client, key = self.terms.client, self.terms.key
        for name in (client, *(key if len(key) == 1 else ())) if len(state) else ():
            known = {*state[name].dropna()}  # a row that was deleted has no key
            new = {one for one in {*table[name]} - known if name == client or one.removesuffix(".0").isdigit()}
            yield from find_similar_names(f"values of column {name!r}", sorted(new), sorted(known) if new else ())

    def _add_parts(self, changed: "pd.DataFrame", state: "pd.DataFrame") -> "pd.DataFrame":
        """Rows with their part, which a row keeps for ever; the first rows of a client go to one part each."""
        import pandas as pd

        kept = changed[ID].map(state.set_index(ID)[PART])
        drawn = changed[ID].map(self._draw).where(kept.isna(), kept).astype("str")
        taken = {str(name): {*parts} for name, parts in state.groupby(self.terms.client)[PART]}
        parts = []
        for client, part, is_old in zip(changed[self.terms.client], drawn, kept.notna(), strict=True):
            missing = [one for one in PARTS if one not in taken.setdefault(client, set())]
            parts.append(part if is_old or not missing else missing[0])
            taken[client].add(parts[-1])
        return changed.assign(**{PART: pd.Series(parts, index=changed.index, dtype="str")})

    def _draw(self, row: str) -> str:
        """A part by the shares, as a function of the row's name and the seed."""
        draw = int.from_bytes(hashlib.blake2b(f"{self.terms.seed} {row}".encode(), digest_size=8).digest()) / 2**64
        train, val, _ = self.terms.shares
        return PARTS[0] if draw < train else PARTS[1] if draw < train + val else PARTS[2]

    def _store(
        self,
        ledger: Ledger,
        reading: Reading,
        schema: Schema,
        rows: int,
        changed: "pd.DataFrame",
        gone: "pd.DataFrame",
        state: "pd.DataFrame",
        notes: Sequence[str],
    ) -> Arrival:
        """Write the file of a delivery, and then the ledger."""
        import pandas as pd

        client, label, number = self.terms.client, self.terms.label, len(ledger.arrivals) + 1
        deleted = gone[[ID, ROW, PART, client]].assign(**{CHANGE: DELETION})
        content = pd.concat([changed, deleted], ignore_index=True) if len(gone) else changed.reset_index(drop=True)
        content = content.astype({name: changed[name].dtype for name in changed})
        file = f"{number:06}.parquet"
        digest = self.store(file, content)
        had_label = {*state.loc[state[LABELLED] > 0, ID]}
        labelled = changed[label].notna() & ~changed[ID].isin(had_label)
        before = {*state.loc[state["number"] == number - 1, client]} if number > 1 else set()
        present = {*changed[client]}
        arrival = Arrival(
            number,
            file,
            digest,
            reading.name,
            reading.digest,
            timestamp(),
            rows,
            int((changed[CHANGE] == NEW).sum()),
            int((changed[CHANGE] == CORRECTION).sum()),
            len(gone),
            int(labelled.sum()),
            tuple(sorted(present - {*state[client]})) if number > 1 else (),
            tuple(sorted(before - present)),
            tuple(notes),
        )
        wide = schema.widen(changed[[column.name for column in schema.columns]]) if len(changed) else schema
        self.write(
            replace(ledger, schema=wide, arrivals=(*ledger.arrivals, arrival), seen=(*ledger.seen, reading.digest))
        )
        return arrival

    def store(self, file: str, rows: "pd.DataFrame") -> str:
        """Write a file beside the ledger; returns its digest."""
        write_parquet(self.place / file, rows)
        return digest_file(self.place / file)

    def write(self, ledger: Ledger) -> None:
        """Write the ledger, whole or not at all."""
        write_json(self.place / LEDGER, asdict(ledger), ensure_ascii=False)

    def _put_aside(self, reading: Reading, reason: str) -> Quarantined:
        place = self.folder / "quarantine"
        file = reading.copy_to(place)
        reason = reason.removeprefix(f"{reading.name}: ")
        entry = Quarantined(reading.name, reading.digest, timestamp(), reason, file.name)
        write_json(place / f"{reading.digest[:12]}.json", asdict(entry), ensure_ascii=False, indent=None)
        return entry

    def _drop_outdated(self, aside: Iterable[Quarantined], reading: Reading) -> None:
        """Remove what was put aside if it is taken now, or is what a file held before it was changed."""
        for entry in aside:
            is_same = entry.digest == reading.digest
            is_replaced = reading.is_file and entry.name == reading.name and not is_same
            if is_replaced or (is_same and entry.digest in self.ledger.seen):
                for name in (f"{entry.digest[:12]}.json", entry.file):
                    (self.folder / "quarantine" / name).unlink(missing_ok=True)

    def read(self, arrival: Arrival) -> "pd.DataFrame":
        """All of a delivery's file.

        Raises:
            BadInput: it is not the file that was written.
        """
        import pandas as pd

        if arrival.file not in self._index:
            file = self.place / arrival.file
            if not file.is_file() or digest_file(file) != arrival.digest:
                raise BadInput(file, f"is missing or has changed since {arrival.when}; {RESTORE}")
            self._index[arrival.file] = pd.read_parquet(file).assign(number=arrival.number)
        return self._index[arrival.file]

    def all_rows(self, until: int | None = None) -> "pd.DataFrame":
        """The rows of all deliveries up to a number, one below the other."""
        import pandas as pd

        ledger = self.ledger
        tables = [self.read(one) for one in ledger.arrivals if until is None or one.number <= until]
        if not tables:
            columns = [*OWN, self.terms.client, self.terms.label]
            return pd.DataFrame(
                {name: pd.Series(dtype="str") for name in columns} | {"number": pd.Series(dtype="int64")}
            )
        kinds = {name: table.dtypes[name] for table in tables for name in table}  # a later one may have fractions
        other = [{name: kinds[name] for name in table if table.dtypes[name] != kinds[name]} for table in tables]
        tables = [table.astype(change) if change else table for table, change in zip(tables, other, strict=True)]
        return pd.concat(tables, ignore_index=True)

    def state(self, until: int | None = None) -> "pd.DataFrame":
        """Every row that was delivered, as the last change left it, deleted ones too.

        Columns are those of the source and `ID`, `ROW`, `CHANGE`, `PART`, the `number` of the delivery with the last
        change, and `LABELLED`: the number of the first delivery in which it had a label, or 0.
        """
        rows = self.all_rows(until)
        first = rows[rows[self.terms.label].notna()].drop_duplicates(ID).set_index(ID)["number"]
        last = rows.drop_duplicates(ID, keep="last")
        return last.assign(**{LABELLED: last[ID].map(first).fillna(0).astype("int64")}).reset_index(drop=True)

    def rows(self, until: int | None = None) -> "pd.DataFrame":
        """The rows of a version: those that are not deleted, with the types that models are trained on.

        Labels that are classes keep their names, also where some are missing: 1 is not 1.0.
        """
        import pandas as pd

        state, schema = self.state(until), self.ledger.schema
        label = self.terms.label if schema is not None and schema.classes else ""
        rows = state[state[CHANGE] != DELETION].reset_index(drop=True)
        plain = {
            name: _as_plain(rows[name], name == label)
            for name in rows
            if isinstance(rows[name].dtype, pd.api.extensions.ExtensionDtype)
        }
        return rows.assign(**plain)


def _check_accepted(names: Sequence[str], offered: Sequence[Reading | Quarantined]) -> None:
    """Refuse a name that nothing has which was put aside or is new."""
    for name in names:
        if not any(_is_named(one, name) for one in offered):
            choose(name, {one.name for one in offered}, "accept")


def _is_named(reading: Reading | Quarantined, name: str) -> bool:
    return name == reading.name or (len(name) >= 6 and reading.digest.startswith(name))


def _as_plain(values: "pd.Series[Any]", is_class: bool) -> "pd.Series[Any]":
    """Whole numbers and truth values as NumPy's, or where one is missing with fractions, and classes as Python's; other
    columns as they are.
    """
    if str(values.dtype) not in ("Int64", "boolean"):
        return values
    if values.isna().any():
        return values.astype("object").where(values.notna(), None) if is_class else values.astype("float64")
    return values.astype("int64" if str(values.dtype) == "Int64" else "bool")
