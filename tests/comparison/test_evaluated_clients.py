"""`evaluate={"clients": K}`: tables, tests, figures, predictions and newcomers, as in a full evaluation."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave import results

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
DRAWS = np.random.default_rng(0)
X, Y = DRAWS.normal(size=(240, 3)).astype(np.float32), DRAWS.integers(2, size=240)
NAMES = np.array([f"site {i % 6}" for i in range(240)])
METHODS = ["local", "fedaghn"]
QUIET: dict[str, Any] = {"rounds": 2, "progress": False, "lr": 0.2, "executor": "loop"}


@pytest.fixture(scope="module")
def federation() -> fw.Federation:
    """A federation of six clients."""
    return fw.Federation.from_arrays(X, Y, client=NAMES)


@pytest.fixture(scope="module")
def whole(federation: fw.Federation) -> fw.Comparison:
    """All clients are evaluated."""
    return fw.compare(federation, METHODS, seeds=1, evaluate={"edges": 2}, **QUIET)


@pytest.fixture(scope="module")
def some(federation: fw.Federation, tmp_path_factory: pytest.TempPathFactory) -> fw.Comparison:
    """Three clients are evaluated."""
    out = tmp_path_factory.mktemp("some")
    return fw.compare(federation, METHODS, seeds=1, evaluate={"edges": 2, "clients": 3}, out=out, **QUIET)


def test_all_methods_score_the_same_clients_as_in_a_full_evaluation(whole: fw.Comparison, some: fw.Comparison) -> None:
    """Every score of the sampled clients is there, and no other. Tables and texts have the number of clients."""
    names = some["local"].evaluated_clients
    assert len(names) == 3
    keys = ["method", "seed", "client", "round", "point", "split", "metric"]
    full = whole.table[whole.table["client"].isin(names)]
    order = [table.sort_values(keys, ignore_index=True) for table in (full, some.table)]
    pd.testing.assert_frame_equal(*order, check_exact=True)
    assert [*some.scores().index] == [*names]
    assert "3 of 6 clients" in repr(some)
    assert "3 of 6 clients" in repr(some["fedaghn"])
    assert any("evaluated on 3 of 6 clients" in line for line in some.warnings)
    assert some.test("fedaghn", "local").clients == 3
    assert {*some.controls()["clients"]} == {3}
    learners = pd.read_csv(some["fedaghn"].run.folder / "edges.csv")["learner"]
    assert {*learners} == {*some["fedaghn"].run.evaluated_clients}


@pytest.mark.acceptance
def test_metrics_figures_page_and_models_are_those_of_the_sample(some: fw.Comparison, tmp_path: Path) -> None:
    other = some.with_metric("balanced_accuracy")
    assert [*other["fedaghn"].scores.index] == [*some["fedaghn"].evaluated_clients]
    assert other["fedaghn"].scores.notna().all()
    assert some["fedaghn"].graphs().weights.shape[-1] == 6
    assert some.plot.clients().svg
    assert "3 of 6 clients" in some.report().read_text(encoding="utf-8")
    inside = some["local"].evaluated_clients[0]
    outside = next(n for n in some.clients if n not in some["local"].evaluated_clients)
    guess, truth = some["local"].predict(X[NAMES == inside], inside), Y[NAMES == inside]
    assert len(guess) == len(truth)
    assert some["local"].export(tmp_path / "model", inside).is_dir()
    with pytest.raises(fw.BadInput, match=r"none of the 3 clients that were evaluated .* larger evaluate\.clients"):
        some["local"].predict(X[:2], outside)


@pytest.mark.acceptance
def test_predictions_and_models_are_those_of_the_same_clients(whole: fw.Comparison, some: fw.Comparison) -> None:
    """The stored values of a client are those of a full evaluation."""
    mine, theirs = (results.rescoring.predictions(done["fedaghn"].run, 0) for done in (some, whole))
    assert mine is not None
    assert theirs is not None
    is_evaluated = np.isin(theirs.client, some["fedaghn"].run.evaluated_clients)
    for field, values in mine._asdict().items():
        np.testing.assert_array_equal(values, getattr(theirs, field)[is_evaluated])
    name = some["local"].evaluated_clients[1]
    for method in METHODS:
        assert (some[method].predict(X, name) == whole[method].predict(X, name)).all()


def test_each_model_has_the_name_of_its_client(whole: fw.Comparison, some: fw.Comparison) -> None:
    """The models are those of the sample, with the tensors of a full evaluation."""
    mine, theirs = (done["local"].models(seed=0) for done in (some, whole))
    assert [*mine] == [*some["local"].evaluated_clients]
    for name, tensors in mine.items():
        assert all(tensors[key].equal(theirs[name][key]) for key in theirs[name])


def test_a_sample_of_all_clients_is_a_full_evaluation(federation: fw.Federation) -> None:
    """The bits are those without the setting. Without it the specification is unchanged."""
    plain = fw.fit("fedavg", federation, **QUIET)
    assert "clients" not in plain.settings["evaluate"]
    for count in (6, 100):
        sampled = fw.fit("fedavg", federation, evaluate={"clients": count}, **QUIET)
        pd.testing.assert_frame_equal(sampled.history, plain.history)


@pytest.mark.parametrize("value", [-1, 1.5, "all", None, True])
def test_bad_numbers_of_clients_are_refused(federation: fw.Federation, value: Any) -> None:
    """One line names the setting."""
    with pytest.raises(fw.BadInput, match=r"evaluate\.clients: .*") as caught:
        fw.fit("fedavg", federation, evaluate={"clients": value}, **QUIET)
    assert "\n" not in str(caught.value)


@pytest.mark.acceptance
def test_newcomers_are_evaluated_with_the_sample(some: fw.Comparison) -> None:
    """Their score is on their own test rows."""
    joined = some["fedaghn"].join(X[:40], client=np.array(["late"] * 40), label=Y[:40], rounds=1)
    assert joined.evaluated_clients == (*some["fedaghn"].evaluated_clients, "late")
    assert joined.scores.notna().all()
