"""Names of methods in any capitals, and settings of training that a method has of its own."""

import numpy as np
import pytest

import fedweave as fw
from fedweave.errors import BadInput


@pytest.fixture(scope="module")
def federation() -> fw.Federation:
    draws = np.random.default_rng(0)
    x = draws.normal(size=(120, 3))
    return fw.Federation.from_arrays(x, x.sum(1) > 0, client=["Ann", "Bob", "Cy"] * 40)


def test_capitals_and_hyphens_do_not_matter() -> None:
    assert fw.methods.SCAFFOLD is fw.methods.Scaffold
    assert {"Ditto", "FedAvg", "MOON", "FedDyn", "GPFL", "LgFedAvg"} <= {*dir(fw.methods)}
    with pytest.raises(AttributeError, match="has no attribute 'FedFoo'"):
        _ = fw.methods.FedFoo


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_method_may_have_its_own_training(federation: fw.Federation) -> None:
    common = {"rounds": 2, "seeds": 1, "tune": 0, "central": False, "progress": False}
    both = fw.compare(federation, ["FedAvg", "FedProx"], per_method={"FedProx": {"epochs": 3, "lr": 0.2}}, **common)
    assert both.methods == ("fedavg", "fedprox")
    alone = fw.compare(federation, ["fedprox"], epochs=3, lr=0.2, **common)
    assert both["fedprox"].scores.to_numpy().tolist() == alone["fedprox"].scores.to_numpy().tolist()
    assert "terms are not equal: epochs is 1 of fedavg, 3 of fedprox" in both.warnings
    assert not any("terms are not equal" in line for line in alone.warnings)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"ditto": {}}, r"per_method: 'ditto' is unknown"),
        ({"fedavg": {"mu": 1}}, r"per_method: fedavg: 'mu' is unknown"),
        ({"fedavg": {"epochs": 0}}, r"epochs"),
        (3, r"per_method"),
    ],
)
def test_wrong_settings_of_a_method_are_refused(federation: fw.Federation, given: object, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        fw.compare(federation, ["fedavg"], per_method=given, progress=False)
