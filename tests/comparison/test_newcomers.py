"""Clients that join after training have the results of a planned join, with the scaling of the training rows."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave.own_data.newcomers import add_newcomers

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
DRAWS = np.random.default_rng(0)
COUNT = 160
TABLE = pd.DataFrame(
    {
        "who": [f"site {i % 4}" for i in range(COUNT)],
        "size": 40 + 9 * DRAWS.normal(size=COUNT),
        "kind": DRAWS.choice(["a", "b"], COUNT),
    }
)
TABLE["late"] = np.where(TABLE["size"] + 5 * DRAWS.normal(size=COUNT) > 40, "yes", "no")
OLD = TABLE[TABLE["who"] != "site 3"]
NEW = TABLE[TABLE["who"] == "site 3"].assign(kind="c", size=lambda t: t["size"] * 2)
NAMES: dict[str, Any] = {"client": "who", "label": "late"}
QUIET: dict[str, Any] = {"progress": False, "seed": 0, "lr": 0.2}


REGIONS = {"site 0": "south", "site 1": "north", "site 2": "south", "site 3": "east"}


@pytest.fixture(scope="module")
def federation() -> fw.Federation:
    """Three clients of a table."""
    return fw.Federation.from_pandas(OLD, **NAMES)


@pytest.mark.parametrize("method", ["fedavg_ft", "pfedgraph", "pfedhn"])
def test_the_rounds_after_joining_have_the_bits_of_a_planned_join(method: str, federation: fw.Federation) -> None:
    run = fw.fit(method, federation, rounds=3, **QUIET)
    joined = run.join(NEW, **NAMES, rounds=2)
    extended = add_newcomers(federation, NEW, "who", "late", {})
    planned = fw.fit(method, extended, rounds=5, newcomers=1, join_round=3, **QUIET)
    assert joined.clients == (*federation.names, "site 3")
    later = planned.history[planned.history["round"] > 3].reset_index(drop=True)
    pd.testing.assert_frame_equal(joined.history, later, check_exact=True)
    assert {*joined.predict(NEW.head(4), "site 3")} <= {"yes", "no"}


class Killed(Exception):
    """Ends a training in its last round."""


def test_a_training_that_ends_early_keeps_the_older_run(federation: fw.Federation, tmp_path: Path) -> None:
    """The older run keeps its state until it is replaced completely. A second start continues from the new one."""

    def kill(progress: Any) -> None:
        if progress.round == 3:
            raise Killed

    before = fw.fit("fedavg_ft", federation, rounds=2, out=tmp_path, **QUIET)
    state = (before.run.folder / "state-0.pt").read_bytes()
    with pytest.raises(Killed):
        fw.fit("fedavg_ft", federation, rounds=3, out=tmp_path, callbacks=[kill], **QUIET)
    assert (before.run.folder / "state-0.pt").read_bytes() == state
    assert before.join(NEW, **NAMES, rounds=1).run.evaluations["round"].max() == 3
    again = fw.fit("fedavg_ft", federation, rounds=3, out=tmp_path, **QUIET)
    assert again.join(NEW, **NAMES, rounds=1).run.evaluations["round"].max() == 4


def test_newcomers_may_have_one_class(federation: fw.Federation) -> None:
    """Training had the other class, so there is something to learn."""
    extended = add_newcomers(federation, NEW.assign(late="yes"), "who", "late", {})
    assert {*extended.dataset.y[len(OLD) :]} == {extended.classes.index("yes")}


def graph(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Features, edges and classes of twelve nodes in a ring."""
    x = np.random.default_rng(seed).normal(size=(12, 3)).astype(np.float32)
    ends = np.arange(12)
    return x, np.stack([ends, (ends + 1) % 12]), np.tile([0, 0, 1, 1], 3)


def test_newcomers_have_groups() -> None:
    """Theirs stand beside those of training. Where they have none, no client has one: they are for tables alone."""
    old, new = (table.assign(region=table["who"].map(REGIONS)) for table in (OLD, NEW))
    federation = fw.Federation.from_pandas(old, **NAMES, group="region")
    grown = add_newcomers(federation, new, "who", "late", {"group": "region"}).partition
    assert [grown.group_names[number] for number in grown.group] == [REGIONS[name] for name in grown.names]
    assert add_newcomers(federation, new.drop(columns="region"), "who", "late", {}).partition.group is None


@pytest.mark.parametrize("method", ["fedavg_ft", "fedpub"])
def test_newcomers_may_have_graphs(method: str) -> None:
    """The bits are those of a planned join. Scores are on the newcomers' own nodes."""
    names = [f"library {i}" for i in range(4)]
    initial = fw.Federation.from_graphs({name: graph(i) for i, name in enumerate(names[:3])})
    run = fw.fit(method, initial, rounds=2, **QUIET)
    joined = run.join({names[3]: graph(3)}, rounds=1)
    extended = joined.comparison.federation
    assert extended is not None
    assert extended.names == tuple(names)
    planned = fw.fit(method, extended, rounds=3, newcomers=1, join_round=2, **QUIET)
    later = planned.history[planned.history["round"] > 2].reset_index(drop=True)
    pd.testing.assert_frame_equal(joined.history, later, check_exact=True)
    assert joined.predict(graph(3)[0], names[3]).shape == (12,)
    with pytest.raises(fw.BadInput, match="made from no tables; leave edges= out"):
        run.join(TABLE, edges=[("a", "b")])


def test_newcomers_may_have_tables_of_nodes() -> None:
    """Columns are encoded as in training, for any values of newcomers."""
    client = np.repeat([f"library {i}" for i in range(4)], 12)
    nodes = pd.DataFrame({"node": range(48), "client": client, "year": np.arange(48.0), "label": [0, 0, 1, 1] * 12})
    old, new = nodes[:36], nodes[36:].assign(year=1e6)
    edges = [(i, i + 1) for i in range(47)]
    initial = fw.Federation.from_graphs(old, edges[:35])
    with pytest.warns(UserWarning, match="column 'year' is far from training .* in 12 of 12 rows, such as 1e"):
        extended = add_newcomers(initial, new, None, None, {}, edges[36:])
    np.testing.assert_array_equal(extended.dataset.x[:36], initial.dataset.x)
    assert extended.dataset.x[36:].min() > 1e4
    assert extended.partition.edges[3].shape == (2, 22)
    assert extended.dataset.edges.max() == 47


def test_forecasts_join_with_the_windows_of_training() -> None:
    """Known steps, steps to forecast and the stride are those of training. A given stride replaces that of training."""
    steps = pd.DataFrame(
        {"town": np.repeat(["a", "b", "c"], 62), "day": [*range(62)] * 3, "price": DRAWS.normal(size=186)}
    )
    names = {"client": "town", "label": "price", "time": "day"}
    initial = fw.Federation.from_pandas(steps[:124], **names, window=4, horizon=2, stride=3)
    run = fw.fit("fedavg", initial, rounds=1, **QUIET)
    for options, windows in (({}, 19), ({"stride": 1}, 57)):
        extended = run.join(steps[124:], **names, **options, rounds=1).comparison.federation
        assert len(extended.dataset.x) - len(initial.dataset.x) == windows
        from_start = fw.Federation.from_pandas(steps, **names, window=4, horizon=2, stride=options.get("stride", 3))
        np.testing.assert_array_equal(extended.dataset.x[-windows:], from_start.dataset.x[-windows:])


def test_scaling_and_categories_of_training_are_kept(federation: fw.Federation) -> None:
    """They are those of the first clients. Scaling per client uses each client's own rows."""
    extended = add_newcomers(federation, NEW, "who", "late", {})
    np.testing.assert_array_equal(extended.dataset.x[: len(OLD)], federation.dataset.x)
    assert extended.preprocessing == federation.preprocessing
    assert not extended.dataset.x[len(OLD) :, 1:].any()  # training had no "c"
    x, y = DRAWS.normal(size=(120, 3)), DRAWS.normal(size=120) * 9 + 70
    names = np.array(["a", "b", "c"] * 40)
    initial = fw.Federation.from_arrays(x[:90], y[:90], client=names[:90], normalize="standard")
    run = fw.fit("fedavg", initial, rounds=2, **QUIET)
    joined = run.join(9 * x[90:], client=["d"] * 30, label=9 * y[90:], rounds=1, freeze=True)
    grown = joined.comparison.federation
    assert grown is not None
    first, second = (fw.data.fit_units(f.dataset, f.partition, f.normalize)[0] for f in (initial, grown))
    np.testing.assert_array_equal(first, second[:3])
    first, second = (fw.data.normalise(f.dataset, f.partition, f.normalize) for f in (initial, grown))
    np.testing.assert_array_equal(first, second[:90])
    own = add_newcomers(fw.Federation.from_pandas(OLD, **NAMES, preprocess="client"), NEW, "who", "late", {})
    assert own.preprocessing is not None
    assert len(own.preprocessing.columns[0].own) == 4
    train = own.partition.train[3]
    assert abs(own.dataset.x[train, 0].mean()) < 1e-5


@pytest.mark.parametrize("preprocess", ["pooled", "client"])
def test_a_newcomer_without_values_in_a_column_gets_those_of_all_clients(preprocess: str) -> None:
    """They are the median, mean and spread of all clients, as for a client of the training."""
    initial = fw.Federation.from_pandas(OLD, **NAMES, preprocess=preprocess)
    alone = NEW.assign(size=np.nan, kind=None)
    extended = add_newcomers(initial, alone, "who", "late", {})
    assert initial.preprocessing is not None
    size = initial.preprocessing.columns[0]
    expected = np.float32((size.median - size.mean) / size.std)
    np.testing.assert_array_equal(extended.dataset.x[len(OLD) :, 0].ravel(), expected)
    assert not extended.dataset.x[len(OLD) :, 1:].any()
    constant = add_newcomers(initial, pd.concat([NEW.assign(who="site 4"), NEW.assign(size=7.0)]), "who", "late", {})
    if preprocess == "client":
        assert constant.preprocessing is not None
        assert constant.preprocessing.columns[0].own[3] == (7.0, 7.0, size.std)


def test_newcomers_have_the_format_of_the_training_rows() -> None:
    """A list of texts, or a table of numbers without names, as for `from_arrays`."""
    clients, labels = ["a", "b", "c"] * 20, [0, 1] * 30
    for rows in (["good day", "bad night", "dull noon"] * 20, pd.DataFrame(DRAWS.normal(size=(60, 3)))):
        run = fw.fit("fedavg", fw.Federation.from_arrays(rows, labels, client=clients), rounds=1, **QUIET)
        joined = run.join(rows[:30], client=["new", "late"] * 15, label=labels[:15] * 2, rounds=1)
        assert joined.clients == ("a", "b", "c", "late", "new")


def test_bad_newcomers_are_refused(federation: fw.Federation) -> None:
    """Each refusal is one line."""
    run = fw.fit("fedavg", federation, rounds=1, **QUIET)
    for message, rows, more in (
        ("client 'site 0' already exists", OLD, {}),
        ("'new.csv' is a file; give its table, such as pd.read_csv", "new.csv", {}),
        ("class 'never' was not in training", NEW.assign(late=["never", "no"] * 20), {}),
        ("no column 'kind'", NEW.drop(columns="kind"), {}),
        ("rounds: 0 must be", NEW, {"rounds": 0}),
        ("out: '' is not a path of a folder", NEW, {"out": ""}),
        ("options: 'splt' is unknown; did you mean 'split'", NEW, {"splt": "random"}),
        ("federation= is not that of the training", NEW, {"federation": 5}),
        ("/dev/null/new", NEW, {"out": "/dev/null/new"}),
    ):
        with pytest.raises(fw.BadInput, match=message):
            run.join(rows, **NAMES, **more)


def test_a_graph_of_true_groups_needs_those_of_newcomers() -> None:
    federation = fw.Federation.from_pandas(OLD, **NAMES, group={"site 0": "n", "site 1": "s", "site 2": "n"})
    run = fw.fit(fw.methods.HeurFedAMP(graph="oracle"), federation, rounds=1, **QUIET)
    with pytest.raises(fw.BadInput, match="give group= of the newcomers"):
        run.join(NEW, **NAMES, rounds=1)
    joined = run.join(NEW, **NAMES, group={"site 3": "s"}, rounds=1)
    assert [*joined.comparison.federation.table["group"]] == ["n", "s", "n", "s"]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"who": "Site 2"}, "clients 'site 2' and 'Site 2' differ only in spelling"),
        ({"size": 1e6}, "table: column 'size' is far from training"),
        ({"size": [-999.0] * 4 + [41.0] * 36}, "column 'size': 4 values are -999, apart from all others"),
        ({"kind": "c"}, "table: column 'kind' has no value that training had"),
        ({"size": np.nan}, "table: column 'size' has no value in any of 40 rows"),
    ],
)
def test_rows_of_newcomers_that_may_be_misread_are_named(federation: fw.Federation, change: Any, line: str) -> None:
    """As those of training are, and those that are to be predicted."""
    run = fw.fit("fedavg", federation, rounds=1, **QUIET)
    rows = NEW.assign(kind="a", size=NEW["size"] / 2).assign(**change)
    with pytest.warns(UserWarning, match=re.escape(line)) as found:
        run.join(rows, **NAMES, rounds=1)
    assert [str(one.message)[: len(line)] for one in found].count(line) == 1


def split_of_newcomer(initial: fw.Federation, **options: Any) -> list[list[int]]:
    """The rows of "site 3" in each part, counted from its first one."""
    extended = add_newcomers(initial, NEW, "who", "late", options)
    parts = (getattr(extended.partition, part)[3] for part in ("train", "val", "test"))
    return [(rows - len(OLD)).tolist() for rows in parts]


def test_newcomers_follow_the_rule_of_the_split() -> None:
    """By time, their last rows test. Without what the rule needs, one line says so, and another rule may be named."""
    with_day = OLD.assign(day=range(len(OLD)))
    by_time = fw.Federation.from_pandas(with_day, **NAMES, time="day")
    for options in ({}, {"shares": {"train": 0.5, "val": 0.2, "test": 0.3}}, {"split": {"train": 0.7, "test": 0.3}}):
        with pytest.raises(fw.BadInput, match=r"join: .* rule 'chronological', so newcomers' rows need time= too"):
            split_of_newcomer(by_time, **options)
    backwards = np.arange(len(NEW))[::-1]
    train, val, test = split_of_newcomer(by_time, time=backwards)
    assert max(test) < min(val) <= max(val) < min(train)
    at_random = split_of_newcomer(by_time, split="random")
    assert at_random == split_of_newcomer(fw.Federation.from_pandas(OLD, **NAMES, split="random"))
    assert at_random != split_of_newcomer(fw.Federation.from_pandas(OLD, **NAMES))
    in_sessions = fw.Federation.from_pandas(with_day, **NAMES, recording="day")
    with pytest.raises(fw.BadInput, match=r"the rule 'grouped', so newcomers' rows need recording= too"):
        split_of_newcomer(in_sessions)


def test_newcomers_of_several_splits_are_refused() -> None:
    """The test rows of the first split trained models in the others."""
    federation = fw.Federation.from_dataset("digits", "iid", clients=3, seeds=[1, 2])
    run = fw.compare(federation, ["fedavg"], rounds=1, seeds=2, central=False, progress=False, tune=0)["fedavg"]
    with pytest.raises(fw.BadInput, match="join: every repetition has a split of its own"):
        run.join(federation.dataset.x[:40], client=["new"] * 40, label=[0, 1] * 20)
