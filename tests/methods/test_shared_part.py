"""Every method shares something, or is refused in one line: it would be Local under another name."""

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave.methods import METHODS

DRAWS = np.random.default_rng(0)
X = DRAWS.normal(size=(90, 2))
TABLE = pd.DataFrame(
    {
        "a": X[:, 0],
        "b": X[:, 1],
        "kind": DRAWS.choice(["u", "v"], 90),
        "y": X[:, 0] > 0,
        "shop": np.repeat(["A", "B", "C"], 30),
    }
)
NUMBERS = fw.Federation.from_pandas(TABLE.drop(columns="kind"), client="shop", label="y", name="shops")
QUIET = {"model": "linear", "rounds": 1, "lr": 0.1, "executor": "loop", "progress": False}
PRIVATE_HEADS = {"fedper": {}, "fedrep": {}, "fedbabu": {}, "fedas": {}, "fedrod": {"local_generic": True}}


@pytest.mark.parametrize("name", PRIVATE_HEADS)
def test_a_private_head_that_is_the_whole_model_is_refused(name: str) -> None:
    method = METHODS[name](**PRIVATE_HEADS[name])
    with pytest.raises(fw.BadInput) as refusal:
        fw.compare(NUMBERS, ["local", method], **QUIET)
    assert f"{method.label} keeps every parameter of the model linear at the client" in str(refusal.value)
    assert "it trains as Local does; take a model that trains a layer below its head, such as mlp" in str(refusal.value)


@pytest.mark.parametrize("name", sorted({*METHODS} - {"local", "central"}))
def test_no_method_trains_alone_in_silence(name: str) -> None:
    """A method may also be refused for another reason, such as a graph that it needs."""
    try:
        done = fw.fit(name, NUMBERS, **QUIET)
    except fw.BadInput:
        return
    assert done.rounds["bytes_up"].sum() > 0


def test_a_layer_below_the_head_is_shared() -> None:
    """The vectors of categories are one."""
    federation = fw.Federation.from_pandas(TABLE, client="shop", label="y", embed=True)
    assert fw.fit("fedper", federation, **QUIET).rounds["bytes_up"].sum() > 0
