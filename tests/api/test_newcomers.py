"""Clients that join after training: the same as if the run had known of them, by what training rows said."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave.api.newcomers import Data, extended

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
OLD, NEW = (
    TABLE[TABLE["who"] != "site 3"],
    TABLE[TABLE["who"] == "site 3"].assign(kind="c", size=lambda t: t["size"] * 2),
)
NAMES: dict[str, Any] = {"client": "who", "label": "late"}
QUIET: dict[str, Any] = {"progress": False, "seed": 0, "lr": 0.2}


@pytest.fixture(scope="module")
def known() -> fw.Federation:
    """Three clients of a table."""
    return fw.Federation.from_pandas(OLD, **NAMES)


@pytest.mark.parametrize("method", ["fedavg_ft", "pfedgraph", "pfedhn"])
def test_the_rounds_after_joining(method: str, known: fw.Federation) -> None:
    """Bit for bit those of a run that was told from the start who joins when."""
    run = fw.fit(method, known, rounds=3, **QUIET)
    joined = run.join(NEW, **NAMES, rounds=2)
    whole = extended(known, Data(NEW, "who", "late", {}))
    told = fw.fit(method, whole, rounds=5, newcomers=1, join_round=3, **QUIET)
    assert joined.clients == (*known.names, "site 3")
    later = told.history[told.history["round"] > 3].reset_index(drop=True)
    pd.testing.assert_frame_equal(joined.history, later, check_exact=True)
    assert {*joined.predict(NEW.head(4), "site 3")} <= {"yes", "no"}


def test_what_training_said_stays(known: fw.Federation) -> None:
    """Scaling and categories are those of the first clients; numbers too, and each client's own where it has them."""
    whole = extended(known, Data(NEW, "who", "late", {}))
    np.testing.assert_array_equal(whole.dataset.x[: len(OLD)], known.dataset.x)
    assert whole.preprocessing == known.preprocessing
    assert not whole.dataset.x[len(OLD) :, 1:].any()  # "c" is no value of training
    x, y = DRAWS.normal(size=(120, 3)), DRAWS.normal(size=120) * 9 + 70
    names = np.array(["a", "b", "c"] * 40)
    made = fw.Federation.from_arrays(x[:90], y[:90], client=names[:90], normalize="standard")
    run = fw.fit("fedavg", made, rounds=2, **QUIET)
    joined = run.join(9 * x[90:], client=["d"] * 30, label=9 * y[90:], rounds=1, freeze=True)
    grown = joined.comparison.federation
    assert grown is not None
    first, second = (fw.data.fit_units(f.dataset, f.partition, f.normalize)[0] for f in (made, grown))
    np.testing.assert_array_equal(first, second[:3])
    first, second = (fw.data.normalise(f.dataset, f.partition, f.normalize) for f in (made, grown))
    np.testing.assert_array_equal(first, second[:90])
    own = extended(fw.Federation.from_pandas(OLD, **NAMES, preprocess="client"), Data(NEW, "who", "late", {}))
    assert own.preprocessing is not None
    assert len(own.preprocessing.columns[0].own) == 4
    train = own.partition.train[3]
    assert abs(own.dataset.x[train, 0].mean()) < 1e-5


def test_refused(known: fw.Federation) -> None:
    """One line each."""
    run = fw.fit("fedavg", known, rounds=1, **QUIET)
    for message, rows, more in (
        ("client 'site 0' is there already", OLD, {}),
        ("class 'never' was not in training", NEW.assign(late=["never", "no"] * 20), {}),
        ("no column 'kind'", NEW.drop(columns="kind"), {}),
        ("rounds: 0 must be", NEW, {"rounds": 0}),
    ):
        with pytest.raises(fw.BadInput, match=message):
            run.join(rows, **NAMES, **more)
