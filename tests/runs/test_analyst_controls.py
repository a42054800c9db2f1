"""Controls that an analyst would fit: what they compute, where they are, and the sentence that names them."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression, Ridge

import fedweave as fw
from fedweave import data, results
from fedweave.data import Dataset
from fedweave.runs import analyst_controls as fitted
from fedweave.runs.analyst_controls import ClientTable
from fedweave.runs.control_names import BASE_RATE, BOOSTED, LINEAR, PARTIAL
from fedweave.runs.control_names import POOLED_BOOSTING as POOLED
from tests.fake_results import leaders_line

QUIET: dict[str, Any] = {"progress": False, "rounds": 1, "seeds": 1, "central": False}
ROWS, CLIENTS = 360, 6
DRAWS = np.random.default_rng(0)
X, OWNER = DRAWS.normal(size=(ROWS, 3)), np.arange(ROWS) % CLIENTS
SCORE = X[:, 0] + 0.7 * (OWNER - 2.5) + 0.3 * DRAWS.normal(size=ROWS)


def table(classes: int = 0, rows: int = 40, columns: int = 4, seed: int = 0) -> ClientTable:
    draws = np.random.default_rng(seed)
    x = draws.normal(size=(rows + 60, columns))
    score = x[:, :1] + 0.5 * draws.normal(size=(rows + 60, 1))
    y = np.digitize(score[:, 0], [-0.5, 0.5][: classes - 1]) if classes else score
    return ClientTable(x[:rows], y[:rows], x[rows : rows + 30], y[rows : rows + 30], x[rows + 30 :])


def compare(targets: np.ndarray, **options: Any) -> fw.Comparison:
    with pytest.warns(UserWarning, match="no method is better than the control"):
        return fw.compare(
            fw.Federation.from_arrays(X, targets, client=OWNER), ["local", "fedavg"], **QUIET, **options, tune=0
        )


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> fw.Comparison:
    return compare(SCORE, out=tmp_path_factory.mktemp("numbers") / "out")


def test_a_ridge_is_that_of_scikit_learn() -> None:
    one = table()
    losses, outputs = [], []
    for penalty in fitted.PENALTIES:
        model = Ridge(alpha=penalty).fit(one.train, one.targets[:, 0])
        losses.append(np.square(model.predict(one.val) - one.val_targets[:, 0]).mean())
        outputs.append(model.predict(one.rest))
    np.testing.assert_allclose(fitted.fit_ridge(one)[:, 0], outputs[int(np.argmin(losses))], atol=1e-9)


def test_the_span_of_the_rows_is_enough_for_a_penalised_model() -> None:
    """Also for more columns than rows, where the span of the rows is smaller."""
    one = table(classes=2, rows=12, columns=30)
    outputs = fitted.fit_logistic(one, 2)
    direct = [LogisticRegression(C=1 / p, tol=1e-6).fit(one.train, one.targets) for p in fitted.PENALTIES]
    gaps = [np.abs(model.predict_proba(one.rest) - outputs).max() for model in direct]
    assert min(gaps) < 0.02


def test_partial_pooling_is_the_method() -> None:
    """The same coefficients as by the rounds of `PartialPooling`."""
    federation = fw.Federation.from_arrays(X, SCORE, client=OWNER)
    done = fw.compare(federation, ["partial_pooling", "local"], **QUIET, tune=0)
    means = done.leaderboard().set_index("method")["mean"]
    control = np.mean(done["local"].run.info["controls"][PARTIAL])
    assert means["partial_pooling"] == pytest.approx(control, rel=1e-4)
    assert PARTIAL not in [*done.controls()["control"]]  # it is a method of this board


@pytest.mark.parametrize("classes", [2, 3])
def test_classes_are_probabilities_that_learn(classes: int) -> None:
    tables = [table(classes, seed=seed) for seed in range(4)]
    outputs = fitted.fit_tables(tables, classes)
    assert [*outputs] == [BASE_RATE, LINEAR, BOOSTED, POOLED, PARTIAL]
    truth = np.concatenate([one.val_targets for one in tables])
    losses = {}
    for name, parts in outputs.items():
        values = np.concatenate([part[:30] for part in parts])
        np.testing.assert_allclose(values.sum(1), 1, atol=1e-9)
        assert values.min() > 0
        losses[name] = -np.log(values[np.arange(len(truth)), truth]).mean()
    assert max(losses, key=lambda name: losses[name]) == BASE_RATE
    assert losses[PARTIAL] < 0.8 * losses[BASE_RATE]


def test_a_class_that_a_client_lacks_is_not_impossible() -> None:
    one, other = table(2), table(2, seed=1)
    alone = one._replace(targets=np.zeros_like(one.targets))
    outputs = fitted.fit_tables([alone, other], 2)
    assert 0 < outputs[LINEAR][0][:, 1].max() < 0.05


def test_controls_have_the_class_weights_of_the_methods() -> None:
    """Otherwise a rare class that all methods look for is hardly ever predicted by what they have to beat."""
    draws = np.random.default_rng(0)
    x, owner = draws.normal(size=(1200, 3)), np.arange(1200) % CLIENTS
    score = x[:, 0] + 0.5 * draws.normal(size=1200)
    federation = fw.Federation.from_arrays(x, score > np.quantile(score, 0.9), client=owner)
    recall = {}
    for weights in (None, "balanced"):
        done = fw.compare(
            federation, ["local"], **QUIET, tune=0, metric="balanced_accuracy", class_weights=weights, device="cpu"
        )
        recall[weights] = done.controls().set_index("control")["mean"]
    for name in (LINEAR, BOOSTED, POOLED, PARTIAL):
        assert recall["balanced"][name] > recall[None][name] + 5
    assert recall["balanced"][BASE_RATE] == recall[None][BASE_RATE] == 50


def test_clients_that_cannot_be_split_are_not_boosted() -> None:
    assert BOOSTED not in fitted.fit_tables([table(rows=39), table(rows=39, seed=1)], 0)
    assert BOOSTED in fitted.fit_tables([table(rows=40), table(rows=40, seed=1)], 0)


def test_several_numbers_are_one_boosted_model() -> None:
    """With the position of the number as a column: without it, both would get the mean of both."""
    one = table(rows=100)
    both = one._replace(
        targets=np.column_stack([one.targets, 9 + one.targets]), val_targets=one.val_targets @ [[1.0, 1.0]] + [0.0, 9.0]
    )
    outputs = fitted.boost([both], 0)[0]
    assert outputs.shape == (60, 2)
    assert np.abs(outputs[:30] - both.val_targets).mean() < 1


def test_a_board_has_them_and_its_first_sentence_names_the_best(numbers: fw.Comparison) -> None:
    controls = numbers.controls().set_index("control")
    assert {*controls.index} == {"Training mean", LINEAR, POOLED, PARTIAL}
    assert controls["kind"].to_dict() == {
        "Training mean": "control",
        LINEAR: "control",
        PARTIAL: "control",
        POOLED: "not federated",
    }
    assert str(numbers).splitlines()[1].startswith("No method is better than the control ")
    assert numbers.warnings[0].startswith("no method is better than the control ")
    assert f"{PARTIAL} [control]" in str(numbers)
    line = leaders_line(numbers.study, results.compute_tables(numbers.study))
    assert line.warning
    assert line.sentences[0].startswith("own-data: no method is better than the control ")


def test_a_control_of_some_splits_alone_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """In one split, clients are too small for boosting of their own; a mean over both would be of one of them."""
    y = (X[:, 0] > 0).astype(np.int64)
    rows = Dataset("split-rows", "images", X.astype(np.float32)[:, :, None, None], y, 2)
    monkeypatch.setitem(data.DATASETS, "split-rows", lambda folder: rows)
    block = {"name": "dirichlet", "clients": CLIENTS, "beta": 0.5}
    sizes = {seed: np.median([*map(len, data.partition(rows, **block, seed=seed).train)]) for seed in range(20)}
    few, many = (choose(sizes, key=lambda seed: sizes[seed]) for choose in (min, max))
    assert sizes[few] < 2 * fitted.SMALLEST_LEAF <= sizes[many]
    for order in ([few, many], [many, few]):
        task = {**block, "seeds": order}
        federation = fw.Federation.from_dataset("split-rows", task, normalize="none", setting="own")
        with warnings.catch_warnings(action="ignore"):
            done = fw.compare(federation, ["local"], **{**QUIET, "seeds": 2}, tune=0)
        assert BOOSTED not in done["local"].run.info["controls"]
        assert {LINEAR, POOLED, PARTIAL} <= {*done["local"].run.info["controls"]}


def test_all_runs_of_a_task_share_one_fit(numbers: fw.Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = numbers.study.folder / ".fedweave" / "controls"
    assert len([*folder.glob("*.npz")]) == 1
    first, second = (run.info["controls"] for run in numbers.study.runs)
    assert first == second
    monkeypatch.setattr(fitted, "fit_tables", lambda *_: pytest.fail("fitted again"))
    monkeypatch.setattr(fitted, "_RECENT", {})
    federation = fw.Federation.from_arrays(X, SCORE, client=OWNER)
    fw.compare(federation, ["fedper"], model="mlp", **QUIET, out=numbers.study.folder, tune=0)


def test_a_process_fits_the_same_rows_once(
    numbers: fw.Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call with another folder keeps them there, too."""
    federation = fw.Federation.from_arrays(X, SCORE, client=OWNER)
    monkeypatch.setattr(fitted, "_RECENT", {})
    fw.compare(federation, ["local"], model="mlp", **QUIET, out=tmp_path / "first", tune=0)
    with monkeypatch.context() as patch:
        patch.setattr(fitted, "fit_tables", lambda *_: pytest.fail("fitted again"))
        again = fw.compare(federation, ["local"], model="mlp", **QUIET, out=tmp_path / "second", tune=0)
    (earlier,), (copied,) = ([*(tmp_path / name / ".fedweave" / "controls").iterdir()] for name in ("first", "second"))
    assert copied.name == earlier.name
    assert again.study.runs[0].info["controls"] == numbers.study.runs[0].info["controls"]


def test_probabilities_are_compared_with_the_shares_of_all_clients() -> None:
    """Small clients' own shares have a larger log-loss."""
    done = compare((SCORE > 1).astype(int), metric="log_loss")
    losses = done.controls().set_index("control")["mean"]
    labels = np.concatenate([(SCORE > 1)[part] for part in done.federation.partition.train])
    share = (labels.sum() + 1) / (len(labels) + 2)
    tests = [(SCORE > 1)[part] for part in done.federation.partition.test]
    expected = np.mean([-np.log(np.where(part, share, 1 - share)).mean() for part in tests])
    assert losses[BASE_RATE] == pytest.approx(expected, rel=1e-5)


def test_many_rows_have_the_base_rate_alone_and_their_inputs_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fitted, "MOST_ROWS", 100)
    shapes, client_tables = [], fitted.client_tables

    def record(*arguments: Any) -> list[ClientTable]:
        tables = client_tables(*arguments)
        shapes.extend(one.train.shape[1] for one in tables)
        return tables

    monkeypatch.setattr(fitted, "client_tables", record)
    controls = compare((SCORE > 0.5).astype(int), metric="log_loss").controls()
    assert {*controls["control"]} == {"Majority class", BASE_RATE}
    assert {*shapes} == {0}


def test_images_and_single_methods_have_none(tmp_path: Path) -> None:
    images = fw.Federation.from_dataset("digits", "iid", clients=4)
    done = fw.compare(images, ["local", "fedavg"], model="linear", **QUIET, out=tmp_path / "images", tune=0)
    assert done.controls()["control"].tolist() == ["Majority class"]
    assert not [*(tmp_path / "images" / ".fedweave").glob("controls/*")]
    run = fw.fit("local", fw.Federation.from_arrays(X, SCORE, client=OWNER), rounds=1, progress=False)
    assert run.comparison.controls()["control"].tolist() == ["Training mean"]
