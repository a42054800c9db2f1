"""Arguments of calls: numbers of NumPy count like Python's, and a value of another kind is refused by its name."""

import gc
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave.errors import BadInput, format_count

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

DRAWS = np.random.default_rng(0)
X, Y, WHO = DRAWS.normal(size=(120, 3)), DRAWS.integers(2, size=120), ["a", "b", "c"] * 40
TABLE = pd.DataFrame({"who": WHO, "kind": DRAWS.choice(["u", "v"], 120), "y": Y})


def test_numbers_of_numpy_count_like_those_of_python() -> None:
    """This holds for options of rows and windows, and for settings of training and tuning."""
    hours = {"client": WHO, "time": np.arange(120)}
    for options in ({"gap": 1}, {"window": 4, "horizon": 2, "stride": 2, "gap": 2}):
        numpy_options = {name: np.int64(value) for name, value in options.items()}
        one, other = (fw.Federation.from_arrays(X, X[:, 0], **hours, **given) for given in (options, numpy_options))
        assert one.partition_block == other.partition_block
    few = fw.Federation.from_arrays(X, Y, client=WHO)
    numpy_options = {
        "rounds": np.int64(1),
        "batch_size": np.int32(16),
        "lr": np.float32(0.5),
        "evaluate": {"every": np.int8(1)},
    }
    run = fw.fit("fedavg", few, progress=False, **numpy_options)
    same = fw.fit("fedavg", few, progress=False, rounds=1, batch_size=16, lr=0.5, evaluate={"every": 1})
    assert run.history.equals(same.history)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fw.Federation.from_pandas(TABLE, client="who", label="y", embed="yes"), "embed: 'yes' is neither"),
        (
            lambda: fw.Federation.from_arrays(X, Y, client=WHO, group=["u", None, "v"] * 40),
            "group: 40 of 120 entries are missing; name one for each client",
        ),
        (
            lambda: fw.Federation.from_arrays(X, Y, client=WHO, group={"a": "u", "b": np.nan, "c": "v"}),
            "group: 1 of 3 entries are missing; name one for each client",
        ),
    ],
    ids=["embed", "group", "mapping"],
)
def test_values_of_another_kind_are_refused(make: Any, words: str) -> None:
    with pytest.raises(BadInput) as refusal:
        make()
    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("value", "kind", "way"),
    [
        (pd.DataFrame({"shop": ["A"], "late": [1]}), "DataFrame", "from_pandas(table, client=..., label=...)"),
        ("shops.csv", "str", "from_file(path, client=..., label=...)"),
        (Path("shops.csv"), "PosixPath", "from_file(path, client=..., label=...)"),
        (np.zeros((4, 2)), "ndarray", "from_arrays(x, y, client=...)"),
    ],
)
def test_what_is_no_federation_yet_is_refused_with_the_call_that_makes_one(value: Any, kind: str, way: str) -> None:
    line = f"{kind} is not a federation; make one with fw.Federation.{way}"
    for name, arguments in {"compare": (value, ["local"]), "fit": ("local", value), "recommend": (value,)}.items():
        with pytest.raises(BadInput) as caught:
            getattr(fw, name)(*arguments)
        assert str(caught.value) == f"{name}(): {line}"


def test_join_accepts_only_true_or_false() -> None:
    run = fw.fit("fedavg", fw.Federation.from_arrays(X, Y, client=WHO), rounds=1, progress=False)
    with pytest.raises(BadInput, match="freeze: 'x' is neither True nor False"):
        run.join(X[:30], client=["d"] * 30, label=Y[:30], rounds=np.int64(1), freeze="x")
    flags: dict[str, Any] = {"rounds": np.int64(1), "freeze": np.True_}
    assert run.join(X[:30], client=["d"] * 30, label=Y[:30], **flags).clients == ("a", "b", "c", "d")


NOUNS = ["client", "row", "test row", "class", "entry", "search", "value", "index", "hash"]


@pytest.mark.parametrize("noun", NOUNS)
def test_a_count_has_the_number_of_its_noun(noun: str) -> None:
    plurals = {"class": "classes", "entry": "entries", "search": "searches", "index": "indexes", "hash": "hashes"}
    assert format_count(1, noun) == f"1 {noun}"
    assert [format_count(count, noun) for count in (0, 2)] == [
        f"{count} {plurals.get(noun, noun + 's')}" for count in (0, 2)
    ]


def test_one_is_singular_in_messages_and_reports() -> None:
    """One row, one client, one round, one constant category, one client with few test rows."""
    table = pd.DataFrame({"x": ["only"] * 40, "y": [0, 1] * 20, "who": ["A"] * 40})
    made = fw.Federation.from_pandas(table, client="who", label="y")
    assert "x: category, 1 value, one column each" in str(made.describe())
    assert "1 of 1 client has fewer than 10 test rows" in str(made.describe())
    run = fw.fit("local", made, rounds=1, progress=False)
    assert repr(run).endswith("over 1 client, 1 round")
    assert repr(run.comparison) == "Comparison of 1 method on 'own-data': 1 client, 1 seed"
    with pytest.raises(fw.BadInput, match="column 'y' is missing in 1 row; drop them"):
        fw.Federation.from_pandas(table.assign(y=[None, *table["y"][1:]]), client="who", label="y")


def test_the_temporary_folder_of_results_is_removed_without_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the last object that needs it, and at once if training fails."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    federation = fw.Federation.from_arrays(X, Y, client=WHO)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = fw.fit("local", federation, rounds=1, progress=False)
        assert result.comparison.study.folder in [*tmp_path.glob("fedweave-*")]
        del result
        gc.collect()
        assert not [*tmp_path.glob("fedweave-*")]
        with pytest.raises(ZeroDivisionError):
            fw.fit("local", federation, rounds=1, progress=False, callbacks=[lambda progress: 1 / 0])
        assert not [*tmp_path.glob("fedweave-*")]
    assert [str(one.message) for one in caught if issubclass(one.category, ResourceWarning)] == []
