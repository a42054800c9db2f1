"""Metrics compared with their definitions; where they are undefined; refused input."""

import warnings
from itertools import product

import numpy as np
import pytest
from sklearn.metrics import f1_score, mean_poisson_deviance, recall_score, roc_auc_score, roc_curve
from sklearn.metrics import log_loss as mean_log_loss

from fedweave.errors import BadInput
from fedweave.metrics import KINDS, METRICS, Metric, check_fit, metric, probabilities, row_values

DRAWS = np.random.default_rng(3)
TARGETS = DRAWS.integers(3, size=60)
LOGITS = np.round(DRAWS.normal(size=(60, 3)) + 1.5 * np.eye(3)[TARGETS], 1)  # rounded: some are equal
SHARES = probabilities(LOGITS)
VALUES, PREDICTIONS = DRAWS.normal(size=(20, 4)), DRAWS.normal(size=(20, 4))


def chance(positive: np.ndarray, negative: np.ndarray) -> float:
    """The probability that a positive row has the larger score. Ties count half."""
    return float(np.mean([(a > b) + 0.5 * (a == b) for a, b in product(positive, negative)]))


def f1_of(label: int) -> float:
    answers = LOGITS.argmax(1) == label
    right = (answers & (TARGETS == label)).sum()
    return float(2 * right / (answers.sum() + (TARGETS == label).sum()))


def calibration() -> float:
    total = 0.0
    for low in range(15):
        held = (SHARES.max(1) > low / 15) & (SHARES.max(1) <= (low + 1) / 15)
        if held.any():
            right = (SHARES.argmax(1) == TARGETS)[held].mean()
            total += held.mean() * abs(right - SHARES.max(1)[held].mean())
    return float(total)


OF_CLASSES = {
    "accuracy": lambda: 100 * (LOGITS.argmax(1) == TARGETS).mean(),
    "balanced_accuracy": lambda: 100 * np.mean([(LOGITS.argmax(1) == c)[TARGETS == c].mean() for c in range(3)]),
    "roc_auc": lambda: np.mean([chance(SHARES[TARGETS == c, c], SHARES[TARGETS != c, c]) for c in range(3)]),
    "f1": lambda: np.mean([f1_of(c) for c in range(3)]),
    "f1_macro": lambda: np.mean([f1_of(c) for c in range(3)]),
    "log_loss": lambda: -np.log(SHARES[np.arange(60), TARGETS]).mean(),
    "calibration_error": calibration,
}
OF_VALUES = {
    "mae": lambda: np.abs(VALUES - PREDICTIONS).mean(),
    "mse": lambda: ((VALUES - PREDICTIONS) ** 2).mean(),
    "rmse": lambda: ((VALUES - PREDICTIONS) ** 2).mean() ** 0.5,
    "r2": lambda: 1 - ((VALUES - PREDICTIONS) ** 2).sum() / ((VALUES - VALUES.mean()) ** 2).sum(),
}


@pytest.mark.parametrize("name", OF_CLASSES)
def test_metrics_of_classes(name: str) -> None:
    expected = OF_CLASSES[name]()
    assert METRICS[name].value("classes", TARGETS, LOGITS) == pytest.approx(expected, rel=1e-9)
    assert METRICS[name].value("classes", TARGETS, SHARES) == pytest.approx(expected, rel=1e-9)  # as kNN-Per predicts


def test_the_area_under_the_curve_has_the_bits_of_scikit_learn() -> None:
    """For rows with and without equal scores, few and many, and classes of any share."""
    for rows, digits in product((2, 3, 7, 40, 500), (0, 1, 9)):
        for share in (0.1, 0.5, 0.9):
            targets = DRAWS.permutation(np.append([0, 1], DRAWS.uniform(size=rows - 2) < share)).astype(int)
            scores = np.round(DRAWS.uniform(size=rows), digits)
            area = METRICS["roc_auc"].function(targets, np.stack([1 - scores, scores], 1))
            assert area == roc_auc_score(targets, scores)


@pytest.mark.parametrize("classes", [2, 3, 7])
@pytest.mark.filterwarnings("ignore")
def test_metrics_of_counts_and_log_loss_are_those_of_scikit_learn(classes: int) -> None:
    """For few and many rows, classes that the targets or the predictions lack, and chances of 0 and 1."""
    for rows, sharpness in product((1, 2, 5, 60, 700), (0, 1, 60, 2000)):
        targets, scores = DRAWS.integers(classes, size=rows), sharpness * DRAWS.normal(size=(rows, classes))
        chances, present = probabilities(scores), np.unique(targets)
        found = chances.argmax(1)
        expected = {
            "balanced_accuracy": 100.0 * recall_score(targets, found, labels=present, average="macro"),
            "f1_macro": f1_score(targets, found, average="macro"),
        }
        if classes == 2 and 1 in present:
            expected["f1"] = f1_score(targets, found)
        assert {name: METRICS[name].function(targets, chances) for name in expected} == expected
        loss = mean_log_loss(targets, chances / chances.sum(1, keepdims=True), labels=range(classes))
        assert METRICS["log_loss"].function(targets, chances) == pytest.approx(loss, rel=1e-15, abs=0)


def test_values_of_rows_have_the_metric_as_their_mean() -> None:
    for name, one in METRICS.items():
        kind = one.kinds[0] if "forecasts" not in one.kinds else "forecasts"
        targets, outputs = (TARGETS, LOGITS) if kind == "classes" else (VALUES, PREDICTIONS)
        values = row_values(name, targets, outputs)
        assert (values is None) == (name not in ("accuracy", "log_loss", "mae", "mse"))
        if values is not None:
            assert values.shape == (len(targets),)
            assert values.mean() == pytest.approx(one.value(kind, targets, outputs), rel=1e-12)


@pytest.mark.parametrize("name", OF_VALUES)
def test_metrics_of_values(name: str) -> None:
    assert METRICS[name].value("forecasts", VALUES, PREDICTIONS) == pytest.approx(OF_VALUES[name](), rel=1e-9)
    flat = METRICS[name].value("numbers", VALUES.ravel(), PREDICTIONS.reshape(-1, 1))
    assert flat == pytest.approx(OF_VALUES[name](), rel=1e-9)


def test_every_metric_is_tested_and_names_its_targets() -> None:
    own = {name for name, one in METRICS.items() if one.function.__module__ == "fedweave.metrics"}
    assert own == {*OF_CLASSES, *OF_VALUES}
    assert all(one.kinds and {*one.kinds} <= {*KINDS} for one in METRICS.values())


def test_two_classes_have_one_positive_class() -> None:
    targets, shares = np.array([0, 0, 0, 1]), np.array([[0.9, 0.1], [0.4, 0.6], [0.8, 0.2], [0.3, 0.7]])
    assert METRICS["roc_auc"].value("classes", targets, shares) == chance(shares[3:, 1], shares[:3, 1])
    assert METRICS["f1"].value("classes", targets, shares) == pytest.approx(2 / 3)
    assert METRICS["f1_macro"].value("classes", targets, shares) == pytest.approx((2 / 3 + 0.8) / 2)


@pytest.mark.parametrize("name", ["roc_auc", "f1"])
def test_a_metric_is_undefined_on_rows_of_one_class(name: str) -> None:
    for answers in ([[0.9, 0.1]] * 4, [[0.1, 0.9]] * 4):
        assert np.isnan(METRICS[name].value("classes", np.zeros(4, dtype=int), np.array(answers)))
    assert np.isfinite(METRICS["log_loss"].value("classes", np.zeros(4, dtype=int), np.full((4, 2), 0.5)))


def test_equal_targets_leave_r2_undefined() -> None:
    assert np.isnan(METRICS["r2"].value("numbers", np.ones(5), np.arange(5.0)))


def test_no_rows_and_broken_outputs_have_no_value() -> None:
    assert np.isnan(METRICS["accuracy"].value("classes", TARGETS[:0], LOGITS[:0]))
    assert np.isnan(METRICS["accuracy"].value("classes", TARGETS, np.where(LOGITS > 1, np.nan, LOGITS)))


def test_a_metric_must_fit_the_targets() -> None:
    with pytest.raises(BadInput, match=r"here: r2 does not fit classes; choices: accuracy, .*roc_auc"):
        check_fit("r2", "classes", "here")
    with pytest.raises(BadInput, match="'roc_acu' is unknown; did you mean 'roc_auc'"):
        check_fit("roc_acu", "classes", "here")


def test_a_metric_of_the_user_is_used() -> None:
    @metric("share-of-zeros", kinds=("classes",), higher_is_better=False, unit="%")
    def zeros(targets: np.ndarray, outputs: np.ndarray) -> float:
        return 100 * float((outputs.argmax(1) == 0).mean())

    assert METRICS["share-of-zeros"].value("classes", TARGETS, LOGITS) == 100 * (LOGITS.argmax(1) == 0).mean()
    with pytest.raises(BadInput, match="metric 'accuracy' is defined twice"):
        metric("accuracy")(zeros)
    with pytest.raises(BadInput, match="'F 1' is not a name"):
        Metric("F 1", zeros)
    del METRICS["share-of-zeros"]


def test_a_failing_function_is_named_in_one_line() -> None:
    broken = Metric("broken", lambda targets, outputs: outputs[:, 99].mean())
    with pytest.raises(BadInput, match=r"metric broken: fails on targets \[60\] and outputs \[60, 3\] \(index 99"):
        broken.value("classes", TARGETS, LOGITS)
    with pytest.raises(BadInput, match="metric broken: fails"):
        broken.check("classes", 3)


def test_rows_of_one_class_give_no_warning_of_a_users_function() -> None:
    """At every evaluation of every such client; the summary names these clients once. Other warnings stay."""

    def sensitivity(targets: np.ndarray, outputs: np.ndarray) -> float:
        false, true, _ = roc_curve(targets, outputs[:, 1])
        return float(true[false <= 0.1].max())

    own, outputs = Metric("sensitivity", sensitivity), np.eye(2)[[0, 1, 1, 0]]
    with warnings.catch_warnings(record=True) as caught:
        assert np.isnan(own.value("classes", np.zeros(4, int), outputs))
        assert own.value("classes", np.array([0, 1, 1, 0]), outputs) == 1
    assert not caught
    divided = Metric("divided", lambda targets, outputs: np.float64(1) / (targets.sum() - 2))
    with warnings.catch_warnings(record=True, action="default") as caught:
        for _ in range(3):
            divided.value("classes", np.array([0, 1, 1, 0]), outputs)
    assert [str(one.message) for one in caught] == ["divide by zero encountered in scalar divide"]


@pytest.mark.parametrize("kind", ["numbers", "forecasts"])
def test_a_metric_of_counts_can_be_used(kind: str) -> None:
    """Made-up targets, on which a function is tried, are above 0."""
    deviance = Metric("deviance", lambda targets, outputs: mean_poisson_deviance(targets.ravel(), outputs.ravel()))
    deviance.check(kind, 1 if kind == "numbers" else 3)
