"""Units of clients in a user's data: a person with two clients counts once in tests, from the table to the texts."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave.results import statistics
from fedweave.results.repetitions import interval

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

CLIENTS, ROWS = 12, 30
OWNER = np.repeat(np.arange(CLIENTS), ROWS)
DRAWS = np.random.default_rng(0)
SIDE = DRAWS.integers(2, size=CLIENTS * ROWS)
TABLE = pd.DataFrame(
    {
        "arm": [f"arm {i:02}" for i in OWNER],
        "person": [f"person {i // 2}" for i in OWNER],
        "x": SIDE + DRAWS.normal(size=len(OWNER)),
        "z": DRAWS.normal(size=len(OWNER)),
        "y": SIDE,
    }
)
PEOPLE = tuple(f"person {i // 2}" for i in range(CLIENTS))
SHARING = [i // 2 for i in range(CLIENTS)]
BUDGET: dict[str, Any] = {"rounds": 2, "lr": 0.1, "progress": False}


def make_arms(table: pd.DataFrame = TABLE, unit: Any = "person", **options: Any) -> fw.Federation:
    return fw.Federation.from_pandas(table, client="arm", label="y", unit=unit, **options)


def test_every_way_to_give_units_is_equivalent(tmp_path: Path) -> None:
    """A column, values of rows, a mapping, a file, arrays. The column is not a feature."""
    TABLE.to_csv(tmp_path / "arms.csv", index=False)
    texts = {name: TABLE[name].to_numpy(str) for name in ("arm", "person")}
    np.savez(tmp_path / "arms.npz", x=TABLE[["x", "z"]], y=TABLE["y"], **texts)
    mapping = dict(zip(TABLE["arm"], TABLE["person"], strict=True))
    ways = [
        make_arms(),
        make_arms(unit=TABLE["person"], features=["x", "z"]),
        make_arms(unit=mapping, features=["x", "z"]),
        fw.Federation.from_file(tmp_path / "arms.csv", client="arm", label="y", unit="person"),
        fw.Federation.from_file(tmp_path / "arms.npz", client="arm", label="y", unit="person"),
        fw.Federation.from_arrays(TABLE[["x", "z"]], TABLE["y"], client=TABLE["arm"], unit=TABLE["person"]),
    ]
    for made in ways:
        assert made.partition.units == PEOPLE
        assert made.shape == (2,)
        assert made.table["unit"].tolist() == [*PEOPLE]
    steps = TABLE.assign(t=np.tile(np.arange(ROWS), CLIENTS))
    future = fw.Federation.from_pandas(steps, client="arm", label="x", time="t", window=3, horizon=1, unit="person")
    assert future.partition.units == PEOPLE
    assert "unit" not in make_arms(unit=None, features=["x"]).table
    graphs = {name: (np.eye(12), np.array([[0], [1]]), np.tile([0, 1], 6)) for name in "abc"}
    named = fw.Federation.from_graphs(graphs, unit={"a": "A", "b": "A", "c": "B"})
    assert named.partition.units == ("A", "A", "B")


BAD = {
    "unit: no column 'persn'; did you mean 'person'": "persn",
    "unit: client 'arm 00' is in two units, 'row .*' and 'row .*'; give": [f"row {i}" for i in range(len(TABLE))],
    "unit: client 'arm 11' has none": {f"arm {i:02}": "a" for i in range(11)},
    r"unit: shape \[3\], but x has 360 rows; give one value for each": ["a", "b", "c"],
    "unit: 60 of 360 entries are missing; give every client a unit, its own one if it shares none": (
        TABLE["person"].mask(OWNER < 2)
    ),
    "unit: 1 of 12 entries are missing": {f"arm {i:02}": "" if i == 3 else "a" for i in range(12)},
}


@pytest.mark.parametrize("message", BAD)
def test_bad_units_are_refused_in_one_line(message: str) -> None:
    with pytest.raises(fw.BadInput, match=message):
        make_arms(unit=BAD[message])


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> fw.Comparison:
    return fw.compare(make_arms(), ["local", "fedavg"], out=tmp_path_factory.mktemp("units") / "out", **BUDGET)


def test_a_comparison_is_over_units(compared: fw.Comparison) -> None:
    run = compared["local"].run
    info = json.loads((run.folder / "run.json").read_text())
    assert (info["units"], info["sharing"]) == ([*PEOPLE], SHARING)
    scores = {
        name: compared[name].select_scores().pivot(index="seed", columns="client", values="value")
        for name in compared.methods
    }
    units = {name: table.to_numpy().reshape(3, 6, 2).mean(2) for name, table in scores.items()}
    board = compared.leaderboard().set_index("method")
    for name, values in units.items():
        assert board["mean"][name] == pytest.approx(values.mean())
        np.testing.assert_allclose(board.loc[name, ["low", "high"]].astype(float), np.clip(interval(values), 0, 100))
    test = compared.test("fedavg", "local")
    alone = statistics.compare_pairs(units, [("fedavg", "local")], True)[0]
    assert (test.p, test.low, test.high) == (alone.p, alone.low, alone.high)
    sentence = "clients of one unit count as one: 12 clients, 6 units"
    assert (test.clients, test.counted) == (12, sentence)
    assert str(test).endswith(f"; {sentence}")
    assert f"C{sentence[1:]}." in compared.warnings
    again = fw.load(compared.study.folder)
    pd.testing.assert_frame_equal(again.leaderboard(), compared.leaderboard())


def test_a_sample_of_clients_counts_their_units() -> None:
    done = fw.compare(make_arms(), ["local", "fedavg"], seeds=2, evaluate={"clients": 7}, **BUDGET)
    sample = done["local"].run.evaluated_clients
    expected = len({SHARING[client] for client in sample})
    assert expected < len(sample) == 7
    test = done.test("fedavg", "local")
    assert (test.clients, test.counted) == (7, f"clients of one unit count as one: 7 clients, {expected} units")


def test_units_belong_to_the_data(compared: fw.Comparison) -> None:
    """A folder has no runs with other units, so that one table never mixes two kinds of tests."""
    assert make_arms().partition_block != make_arms(unit=None, features=["x", "z"]).partition_block
    with pytest.raises(fw.BadInput, match="holds results of other data"):
        fw.fit("local", make_arms(unit=None, features=["x", "z"]), out=compared.study.folder, **BUDGET)


def test_a_newcomer_may_have_the_unit_of_another_client() -> None:
    old, new = TABLE[TABLE["arm"] != "arm 11"], TABLE[TABLE["arm"] == "arm 11"]
    run = fw.fit("fedavg_ft", make_arms(old), **BUDGET)
    names = {"client": "arm", "label": "y"}
    joined = run.join(new, **names, unit="person", rounds=1)
    assert joined.run.info["units"] == [*PEOPLE]
    assert joined.run.info["sharing"] == SHARING
    with pytest.raises(fw.BadInput, match="only the clients of training have units; give unit= of the newcomers"):
        run.join(new.drop(columns="person"), **names, rounds=1)
    plain = fw.fit("fedavg_ft", make_arms(old, None, features=["x", "z"]), **BUDGET)
    with pytest.raises(fw.BadInput, match="only the clients of newcomers have units; leave unit= out"):
        plain.join(new, **names, unit="person", rounds=1)
