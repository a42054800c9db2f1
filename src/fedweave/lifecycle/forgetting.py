"""A site that is forgotten: its rows are erased, the models that were trained with it too, and the next training has no
row of it, which digests prove.

Deliveries and trainings name each row by a digest. Those of the erased rows are kept in `forgotten/`, and no delivery
and no training may have one of them.
"""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedweave.errors import BadInput, choose, format_count
from fedweave.files.atomic import write_atomic, write_parquet
from fedweave.lifecycle import answer_log, record, sites, timestamp
from fedweave.lifecycle.deliveries import CHANGE, CORRECTION, DELETION, NEW, Deliveries
from fedweave.lifecycle.ledger import Arrival, Ledger, lock
from fedweave.lifecycle.row_digests import ID, ROW

if TYPE_CHECKING:
    import pandas as pd

FOLDER = "forgotten"
ROWS = "rows.parquet"  # in the folder of a training: digests of the rows that it read


def erase_rows(deliveries: Deliveries, site: str) -> None:
    """Erase the rows of a site from all deliveries; rows of it that come later are not taken. A further delivery, which
    is empty, gives the rows that are left a version of their own.

    Raises:
        BadInput: there is no such site.
        Busy: another process is at it.
    """
    with lock(deliveries.folder, "deliveries"):
        ledger, client = deliveries.ledger, deliveries.terms.client
        if site not in ledger.forgotten:
            rows = deliveries.all_rows()
            own = rows[rows[client] == choose(site, sorted({*rows[client]}), "site")]
            number = len(ledger.arrivals) + 1
            write_parquet(deliveries.folder / FOLDER / f"{number:06}.parquet", own[[ID, ROW, "number"]])
            arrivals = [_without(deliveries, one, own, number) for one in ledger.arrivals]
            file = f"{number:06}.parquet"
            digest = deliveries.store(file, own[:0].drop(columns="number"))
            note = f"{site} is forgotten, with {format_count(own[ID].nunique(), 'row')}"
            empty = Arrival(number, file, digest, "forget", "", timestamp(), 0, 0, 0, 0, 0, notes=(note,))
            forgotten = {**ledger.forgotten, site: number}
            ledger = replace(ledger, arrivals=(*arrivals, empty), forgotten=forgotten)
            deliveries.write(ledger)
        for path in deliveries.place.glob("*.parquet"):  # also those that a kill left
            if path.name not in {one.file for one in ledger.arrivals}:
                path.unlink()


def _without(deliveries: Deliveries, arrival: Arrival, own: "pd.DataFrame", number: int) -> Arrival:
    """A delivery without the rows of a site, in a new file."""
    if arrival.number not in {*own["number"]}:
        return arrival
    rows = deliveries.read(arrival)
    site, client = own[deliveries.terms.client].iloc[0], deliveries.terms.client
    kept = rows[rows[client] != site].drop(columns="number")
    file = f"{arrival.number:06}-{number:06}.parquet"
    new, corrections, deletions = (int((kept[CHANGE] == kind).sum()) for kind in (NEW, CORRECTION, DELETION))
    joined, absent = (tuple(one for one in names if one != site) for names in (arrival.joined, arrival.absent))
    digest, labelled = deliveries.store(file, kept), min(arrival.labelled, len(kept))
    arrival = replace(arrival, file=file, digest=digest, labelled=labelled, joined=joined, absent=absent)
    return replace(arrival, new=new, corrections=corrections, deletions=deletions)


def erase_models(folder: Path, number: int, site: str) -> None:
    """Remove the trainings that had rows of a site, its archive, and its scores and answers.

    Args:
        folder: of the life.
        number: of the delivery with which the site was forgotten.
    """
    import pandas as pd

    first = int(_erased(folder, number)["number"].min())
    for place in (folder / "models").glob("[0-9]*"):
        if first <= int(place.name) < number:
            shutil.rmtree(place)
        for joined in (*place.glob(f"{sites.FOLDER}/[0-9]*"), *place.glob(f"*/{sites.FOLDER}/[0-9]*")):
            if first <= int(joined.name) < number:
                shutil.rmtree(joined)
    for place in sites.list_archive(folder, site):
        shutil.rmtree(place)
    for name in (record.FILE, answer_log.SCORES):
        scores = record.read_record(folder, name)
        if (scores["client"] == site).any():
            write_atomic(folder / name, scores[scores["client"] != site].to_csv(index=False, float_format="%.10g"))
    for file in (folder / answer_log.FOLDER).glob("*.parquet"):
        with suppress(FileNotFoundError):  # a server makes one file of those of a day
            answers = pd.read_parquet(file)
            if (answers["client"] == site).any():
                write_parquet(file, answers[answers["client"] != site])


def _erased(folder: Path, number: int) -> "pd.DataFrame":
    """Digests of the rows that were erased, and the numbers of their deliveries."""
    import pandas as pd

    return pd.read_parquet(folder / FOLDER / f"{number:06}.parquet")


def prove(folder: Path, ledger: Ledger, deliveries: Deliveries, site: str) -> str:
    """A sentence that says that no delivery and no training has a row of a site.

    Raises:
        BadInput: one has, or a training has no list of its rows.
    """
    own = {*_names(_erased(folder, ledger.forgotten[site]))}
    if own & {*_names(deliveries.all_rows())}:
        raise BadInput(deliveries.place, f"has rows of {site}, which is forgotten")
    trainings = sorted((folder / "models").glob("[0-9]*"))
    count = 0
    for training in trainings:
        names = {*_names(read_rows(training))}
        if own & names:
            raise BadInput(training, f"was trained on rows of {site}, which is forgotten; forget it again")
        count += len(names)
    versions = ", ".join(str(int(one.name)) for one in trainings)
    digest = hashlib.sha256("".join(sorted(own)).encode()).hexdigest()[:12]
    return (
        f"{site}: none of its {format_count(len(own), 'row')} (digest {digest}) is in a delivery, or among the "
        f"{format_count(count, 'row')} that the trainings of version {versions} read."
    )


def read_rows(training: Path) -> "pd.DataFrame":
    """Digests of the rows that a training read.

    Raises:
        BadInput: they were not stored.
    """
    import pandas as pd

    if not (training / ROWS).is_file():
        raise BadInput(
            training, f"has no {ROWS}, the list of the rows that it read; remove it if you can do without it"
        )
    return pd.read_parquet(training / ROWS)


def store_rows(training: Path, rows: "pd.DataFrame") -> None:
    """Store the digests of the rows that a training reads."""
    write_parquet(training / ROWS, rows[[ID, ROW]])


def _names(rows: "pd.DataFrame") -> Iterator[str]:
    return (f"{row} {values}" for row, values in zip(rows[ID], rows[ROW], strict=True))
