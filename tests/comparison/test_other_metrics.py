"""Runs with another metric: at training, from stored predictions, and next to controls without a model."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import (
    average_precision_score,
    brier_score_loss,
    fbeta_score,
    get_scorer,
    make_scorer,
    matthews_corrcoef,
    mean_absolute_error,
    mean_absolute_percentage_error,
    mean_poisson_deviance,
    r2_score,
    roc_auc_score,
)

import fedweave as fw
from fedweave import report, results
from fedweave.comparison.user_metrics import TorchmetricsFunction, register_metric
from fedweave.metrics import METRICS, probabilities
from fedweave.pipelines.stages import leaderboard
from fedweave.report.summary import summary
from fedweave.results.rescoring import predictions as stored_by
from fedweave.runs import predictions
from fedweave.tensors.torchvision import declare_operators
from tests.fake_results import leaders_line

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
DRAWS = np.random.default_rng(8)
OWNER = np.repeat(["Ann", "Bob", "Cy", "Dan"], 60)
X = DRAWS.normal(size=(240, 3)).astype(np.float32)
Y = np.where(X[:, 0] + DRAWS.normal(size=240) > 1.0, "yes", "no")
Y[OWNER == "Dan"] = "no"
QUIET = {"rounds": 4, "progress": False, "device": "cpu"}


def people() -> fw.Federation:
    return fw.Federation.from_arrays(X, Y, client=OWNER, name="people")


def compare(metric: object = None, **options: object) -> fw.Comparison:
    return fw.compare(people(), ["local", "fedavg"], seeds=2, metric=metric, **QUIET, **options, tune=0)


@pytest.fixture(scope="module")
def plain() -> fw.Comparison:
    return compare()


@pytest.fixture(scope="module")
def ranked() -> fw.Comparison:
    return compare("roc_auc")


def compute_by_hand(done: fw.Comparison, name: str, seed: int) -> dict[str, float]:
    """The area under the curve of each client, from the stored predictions."""
    table = stored_by(done[name].run, seed)
    areas = {}
    for i, client in enumerate(done.clients):
        mine = table.test & (table.client == i)
        score = probabilities(table.outputs[mine].astype(float))[:, 1]
        areas[client] = roc_auc_score(table.targets[mine], score) if len({*table.targets[mine]}) > 1 else np.nan
    return areas


def test_stored_predictions_give_the_scores_of_training(plain: fw.Comparison) -> None:
    again = plain.with_metric("f1").with_metric("accuracy")
    for name in plain:
        pd.testing.assert_series_equal(again[name].scores, plain[name].scores, rtol=1e-6)
        assert again[name].run.info["pooled"].keys() == {0, 1}


def test_another_metric_does_not_change_the_selected_round(plain: fw.Comparison) -> None:
    other = plain.with_metric("roc_auc")
    for name in plain:
        chosen = plain[name].select_scores().groupby("seed")["round"].first()
        assert other[name].select_scores().groupby("seed")["round"].first().to_dict() == chosen.to_dict()
        expected = pd.DataFrame([compute_by_hand(plain, name, seed) for seed in (0, 1)]).mean()
        assert other[name].scores.to_numpy()[:3] == pytest.approx(expected.to_numpy()[:3], rel=1e-9)
    assert other.metric == "roc_auc"
    assert other.leaderboard()["mean"].is_monotonic_decreasing


@pytest.mark.usefixtures("undrawn")
def test_another_metric_does_not_hide_that_training_was_too_short(plain: fw.Comparison) -> None:
    """The rounds are those of the run's own metric, so a run that improved until its end did so by any metric."""
    board = results.compute_tables(plain.study).board.set_index("method")
    assert board["at_last"].any()
    for done in (plain.with_metric("log_loss"), plain.with_metric("f1").with_metric("log_loss")):
        other = results.compute_tables(done.study).board.set_index("method")
        for column in ("at_last", "best_round"):
            pd.testing.assert_series_equal(other[column].sort_index(), board[column].sort_index())
        assert any("the best validation round is the last one for" in line for line in done.warnings)
        lines = {line.topic: line.sentences for line in summary(done.study, results.compute_tables(done.study))}
        assert lines["Convergence"][0].startswith("Not converged")


def test_report_and_copy_of_another_metric(plain: fw.Comparison, tmp_path: Path) -> None:
    """The page shows the requested metric. A copy would show the metric of the training, so it is refused."""
    other = plain.with_metric("log_loss")
    page = other.report()
    assert page.name == "report-log_loss.html"
    best = results.format_score(other.leaderboard()["mean"].iloc[0], np.nan, "log_loss")
    assert best in page.read_text(encoding="utf-8")
    with pytest.raises(fw.BadInput, match=r"save: scores by log_loss .* again after fw\.load"):
        other.save(tmp_path / "copy")
    assert not (tmp_path / "copy").exists()


@pytest.mark.usefixtures("undrawn")
def test_page_and_terminal_by_another_metric(plain: fw.Comparison, capsys: pytest.CaptureFixture[str]) -> None:
    folder = plain.study.folder
    page = report.build(folder, folder / "partitions", metric="roc_auc")
    assert page.name == "report-roc_auc.html"
    text = page.read_text(encoding="utf-8")
    assert "Scores by roc_auc are at the rounds that accuracy chose on validation data." in text
    assert "1 of 4 clients has no roc_auc" in text
    leaderboard.show(results.rescore(results.load_study(folder), "roc_auc"))
    printed = capsys.readouterr().out
    assert "people own, roc_auc" in printed
    assert "Majority class" in printed.split("[control]")[1]
    assert "0.5000" in printed


def test_rounds_are_selected_by_the_metric_of_the_run(ranked: fw.Comparison) -> None:
    for name in ranked:
        run = ranked[name].run
        val = run.evaluations[(run.evaluations["split"] == "val") & (run.evaluations["point"] == run.info["point"])]
        mean = val.groupby(["seed", "round"])["value"].mean().unstack("seed")
        chosen = ranked[name].select_scores().groupby("seed")["round"].first()
        assert chosen.to_dict() == mean.idxmax().to_dict()
        expected = pd.DataFrame([compute_by_hand(ranked, name, seed) for seed in (0, 1)]).mean()
        assert ranked[name].scores.to_numpy()[:3] == pytest.approx(expected.to_numpy()[:3], rel=1e-9)


def test_a_client_of_one_class_has_no_area_and_is_named(ranked: fw.Comparison) -> None:
    scores = ranked["local"].scores
    assert np.isnan(scores["Dan"])
    assert scores.drop("Dan").notna().all()
    board = ranked.leaderboard().set_index("method")
    assert board.loc["local", "mean"] == pytest.approx(scores.drop("Dan").mean())
    study = ranked.study
    text = leaders_line(study, results.compute_tables(study)).text
    assert "1 of 4 clients has no roc_auc, which needs rows of at least two classes: Dan." in text
    with pytest.warns(UserWarning, match="1 of 4 clients has no roc_auc"):
        fw.compare(people(), ["local"], seeds=1, metric="roc_auc", **QUIET, tune=0)


def test_a_client_without_a_score_by_a_users_metric_is_named(plain: fw.Comparison) -> None:
    scorer = plain.with_metric(get_scorer("roc_auc"))
    assert np.isnan(scorer["local"].scores["Dan"])
    text = leaders_line(scorer.study, results.compute_tables(scorer.study)).text
    assert "1 of 4 clients has no sklearn_roc_auc_score: Dan. No mean" in text
    del METRICS[scorer.metric]


def test_a_metric_that_no_client_defines_is_refused_before_training(tmp_path: Path) -> None:
    """Every client has one class. So would every method be without a score, as if it had diverged."""
    draws = np.random.default_rng(0)
    owner = np.arange(120) % 3
    names = [f"client {i}" for i in owner]
    one_class = fw.Federation.from_arrays(draws.normal(size=(120, 2)), owner % 2, client=names)
    no_number = "is not a number for the test rows of any client"
    with pytest.raises(fw.BadInput, match=f"^metric: roc_auc {no_number}, as it needs rows of at least two classes"):
        fw.compare(one_class, ["local"], metric="roc_auc", out=tmp_path / "out", **QUIET, tune=0)
    with pytest.raises(fw.BadInput, match=f"metric: never {no_number}; choose another"):
        fw.compare(people(), ["local"], metric=fw.Metric("never", lambda targets, outputs: np.nan), **QUIET, tune=0)
    del METRICS["never"]
    assert not (tmp_path / "out" / "runs").exists()
    same = fw.Federation.from_arrays(draws.normal(size=(120, 2)), 0.5 + owner, client=names)
    with pytest.raises(fw.BadInput, match=f"r2 {no_number}, as it needs targets that differ"):
        fw.fit("local", same, metric="r2", **QUIET)


def test_validation_rows_must_define_a_metric_that_chooses_the_round() -> None:
    """The last round needs no validation rows."""
    draws = np.random.default_rng(0)
    part = np.resize(["train", "train", "val", "test"], 120)
    labels = np.where(part == "val", 0, np.arange(120) // 4 % 2)
    x, client = draws.normal(size=(120, 2)), np.repeat(["a", "b", "c"], 40)
    federation = fw.Federation.from_arrays(x, labels, client=client, split=part)
    with pytest.raises(fw.BadInput, match="roc_auc is not a number for the val rows of any client"):
        fw.fit("local", federation, metric="roc_auc", **QUIET)
    run = fw.fit("local", federation, metric="roc_auc", evaluate={"select": "last"}, **QUIET)
    assert run.scores.notna().all()


def test_the_pooled_value_is_over_all_rows(ranked: fw.Comparison) -> None:
    whole = []
    for seed in (0, 1):
        table = stored_by(ranked["fedavg"].run, seed)
        score = probabilities(table.outputs.astype(float))[table.test, 1]
        whole.append(roc_auc_score(table.targets[table.test], score))
    pooled = ranked.leaderboard().set_index("method").loc["fedavg", "pooled"]
    assert pooled == pytest.approx(np.mean(whole))


def test_predictions_change_no_score(plain: fw.Comparison, tmp_path: Path) -> None:
    without = compare(evaluate={"predictions": False}, out=tmp_path)
    for name in plain:
        pd.testing.assert_frame_equal(without[name].run.evaluations, plain[name].run.evaluations)
    assert not [*tmp_path.rglob("predictions-*.npz"), *tmp_path.rglob("controls.npz")]
    with pytest.raises(fw.BadInput, match=r"no predictions are stored \(evaluate.predictions is off\), which f1 needs"):
        without.with_metric("f1")


def test_the_name_of_the_tasks_metric_changes_nothing(plain: fw.Comparison) -> None:
    named = compare("accuracy")
    for name in plain:
        pd.testing.assert_frame_equal(named[name].run.evaluations, plain[name].run.evaluations)


@pytest.mark.parametrize(("share", "dtype"), [(1.0, "float32"), (0.5, "float16"), (0.4, "none")])
def test_the_size_of_predictions_is_bounded(
    share: float, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluated_rows = sum(len(rows) for part in ("val", "test") for rows in getattr(people().partition, part))
    monkeypatch.setattr(predictions, "LARGEST", int(share * evaluated_rows * 2 * 4))
    run = fw.fit("local", people(), out=tmp_path, **QUIET).run
    assert run.info["predictions"].startswith(dtype)
    stored = stored_by(run, 0)
    assert (stored is None) if dtype == "none" else stored.outputs.dtype == dtype


@pytest.mark.usefixtures("undrawn")
def test_the_most_frequent_class_is_in_every_board(plain: fw.Comparison) -> None:
    table = plain.controls()
    rules = table.set_index("control")
    assert rules["kind"]["Majority class"] == "control"
    assert rules["mean"]["Majority class"] == pytest.approx(people().majority().mean())
    assert "Majority class [control]" in plain._repr_html_()
    assert plain.with_metric("roc_auc").controls().set_index("control")["mean"]["Majority class"] == 0.5
    page = plain.report().read_text(encoding="utf-8")
    assert "Majority class [control]" in page.split("<tfoot>")[1].split("</tfoot>")[0]


def test_a_method_below_a_control_is_named_first() -> None:
    labels = DRAWS.permutation(np.where(np.arange(240) % 6 == 0, "late", "on time"))
    noise = fw.Federation.from_arrays(X, labels, client=OWNER)
    with pytest.warns(UserWarning, match="no method is better than the control 'Majority class'"):
        done = fw.compare(noise, ["local"], seeds=1, lr=1.0, **{**QUIET, "rounds": 60}, evaluate={"select": "last"})
    line = leaders_line(done.study, results.compute_tables(done.study))
    assert line.warning
    assert line.sentences[0].startswith("own-data: no method is better than the control Majority class (")


def test_forecasts_have_the_last_value_and_the_mean_as_controls() -> None:
    options = {"window": 5, "horizon": 5, "gap": 4, "split": {"train": 0.5, "val": 0.2, "test": 0.3}}
    series = fw.Federation.from_dataset("us-income", "natural", clients=48, normalize="standard", **options)
    done = fw.compare(series, ["local"], model="tpt_mlp", seeds=1, **{**QUIET, "rounds": 1}, tune=0)
    rules = done.controls().set_index("control")["mean"]
    assert rules["Last value"] == pytest.approx(0.0093, abs=5e-5)  # as docs/datasets/us-income.md says
    assert done.with_metric("rmse").controls().set_index("control")["mean"]["Last value"] < rules["Last value"] ** 0.5
    with pytest.raises(fw.BadInput, match="metric: accuracy does not fit forecasts; choices: mae, mse, r2, rmse"):
        done.with_metric("accuracy")


def test_functions_and_scorers(plain: fw.Comparison) -> None:
    declare_operators()
    from torchmetrics.classification import BinaryAUROC, MulticlassAccuracy  # seconds

    def correlation(targets: np.ndarray, outputs: np.ndarray) -> float:
        return float(matthews_corrcoef(targets, outputs.argmax(1)))

    mine = plain.with_metric(correlation)
    scorer = plain.with_metric(get_scorer("matthews_corrcoef"))
    assert mine.metric == "correlation"
    assert scorer.metric == "sklearn_matthews_corrcoef"
    pd.testing.assert_frame_equal(mine.scores(), scorer.scores())
    loss = plain.with_metric(get_scorer("neg_log_loss"))["local"].scores
    assert loss[:3].to_numpy() == pytest.approx(-plain.with_metric("log_loss")["local"].scores[:3].to_numpy())
    tensors = plain.with_metric(MulticlassAccuracy(num_classes=2, average="micro"))
    np.testing.assert_allclose(tensors.scores(), plain.with_metric(get_scorer("accuracy")).scores(), atol=1e-6)
    areas = plain.with_metric(BinaryAUROC())["local"].scores
    assert areas[:3].to_numpy() == pytest.approx(plain.with_metric("roc_auc")["local"].scores[:3].to_numpy(), abs=1e-6)
    with pytest.raises(fw.BadInput, match="'torchmetrics_MulticlassAccuracy_average_micro' is the name of another"):
        plain.with_metric(MulticlassAccuracy(num_classes=3, average="micro"))
    weighted = [make_scorer(fbeta_score, beta=beta) for beta in (0.5, 2)]
    betas = [plain.with_metric(scorer) for scorer in weighted]
    assert [one.metric for one in betas] == ["sklearn_fbeta_score_beta_0_5", "sklearn_fbeta_score_beta_2"]
    names = ("correlation", "sklearn_matthews_corrcoef", "sklearn_log_loss", "torchmetrics_BinaryAUROC")
    for name in (*names, tensors.metric, *(one.metric for one in betas)):
        del METRICS[name]


def test_a_scorer_of_probabilities_has_none_of_numbers() -> None:
    """It would take numbers for probabilities without a word."""
    numbers = fw.Federation.from_arrays(X, X[:, 0], client=OWNER)
    scorer = make_scorer(mean_absolute_error, response_method="predict_proba")
    with pytest.raises(fw.BadInput, match=r"metric sklearn_mean_absolute_error: fails .*predict_proba"):
        fw.fit("local", numbers, metric=scorer, **QUIET)


def test_a_function_of_a_notebook_may_be_corrected(plain: fw.Comparison) -> None:
    """Each version of a cell has a file name of its own, which no file has."""
    means = []
    for number, factor in enumerate((2, 1)):
        cell = f"def share(targets, outputs):\n    return float({factor} * (outputs.argmax(1) == targets).mean())\n"
        names: dict[str, Any] = {"__name__": "__main__"}
        exec(compile(cell, f"/tmp/ipykernel_1/{number}.py", "exec"), names)
        means.append(plain.with_metric(names["share"])["local"].scores.mean())
    assert means[0] == 2 * means[1] > 0
    del METRICS["share"]


def test_functions_that_scikit_learn_calls_losses_are_lower_where_they_are_better(plain: fw.Comparison) -> None:
    """So are a user's whose names end so; a name cannot tell of the others."""

    def brier_loss(targets: np.ndarray, outputs: np.ndarray) -> float:
        return float(np.mean((outputs[:, 1] - targets) ** 2))

    board = plain.with_metric(brier_loss).leaderboard()
    assert board["mean"].is_monotonic_increasing
    assert board["mean"].nunique() == 2
    for function in (brier_score_loss, mean_absolute_percentage_error, mean_poisson_deviance):
        assert not METRICS[str(register_metric(function))].higher_is_better
        del METRICS[function.__name__]
    assert METRICS[str(register_metric(r2_score))].higher_is_better
    for name in ("brier_loss", "r2_score"):
        del METRICS[name]


def brier(targets: np.ndarray, outputs: np.ndarray) -> float:
    return float(np.mean((outputs[np.arange(len(targets)), targets] - 1) ** 2))


def neg_brier_loss(targets: np.ndarray, outputs: np.ndarray) -> float:
    return -brier(targets, outputs)


def share_of_first(targets: np.ndarray, outputs: np.ndarray) -> float:
    return float((outputs.argmax(1) == 0).mean())


def test_a_function_whose_name_gives_the_wrong_direction_is_refused(plain: fw.Comparison) -> None:
    """It would select the worst rounds, and rank the worst method first. A direction that is given counts."""
    words = r"metric brier: is 0\.0025 for right outputs and 0\.9025 for wrong ones, but by its name higher is better; "
    way = r"give fw\.Metric\('brier', brier, higher_is_better=False\)"
    with pytest.raises(fw.BadInput, match=words + way):
        plain.with_metric(brier)
    with pytest.raises(fw.BadInput, match=words + way):
        fw.fit("local", plain.federation, metric=brier, **QUIET)
    with pytest.raises(fw.BadInput, match=r"by its name lower is better; give .*higher_is_better=True"):
        plain.with_metric(neg_brier_loss)
    board = plain.with_metric(fw.Metric("brier", brier, higher_is_better=False)).leaderboard()
    assert board["mean"].is_monotonic_increasing
    assert plain.with_metric(share_of_first).scores().notna().any(axis=None)
    for name in ("brier", "neg_brier_loss", "share_of_first"):
        del METRICS[name]


def mape(targets: np.ndarray, outputs: np.ndarray) -> float:
    return float(np.mean(np.abs(outputs - targets) / np.abs(targets)))


def explained(targets: np.ndarray, outputs: np.ndarray) -> float:
    return float(1 - np.var(targets - outputs) / np.var(targets))


@pytest.mark.parametrize(("kind", "width"), [("numbers", 1), ("forecasts", 3)])
def test_the_direction_of_errors_of_numbers_is_tried(kind: str, width: int) -> None:
    for function, refused in ((mape, True), (explained, False)):
        entry = METRICS.pop(str(register_metric(function)))
        with pytest.raises(fw.BadInput, match="higher is better; give") if refused else nullcontext():
            entry.check(kind, width)


def test_macro_averages_of_torchmetrics_are_over_the_classes_of_the_targets() -> None:
    """A class that a client lacks would count as 0, whatever the model is."""
    declare_operators()
    from torchmetrics.classification import (
        BinaryAUROC,
        BinaryRecall,
        MulticlassAccuracy,
        MulticlassAUROC,
        MulticlassAveragePrecision,
        MulticlassF1Score,
    )

    targets = np.repeat([1, 3], 20)
    outputs = probabilities(DRAWS.normal(size=(40, 5)) + 2 * np.eye(5)[targets])
    assert {*outputs.argmax(1)} > {1, 3}

    def value(metric: object, of: np.ndarray = targets) -> float:
        return TorchmetricsFunction(metric)(of, outputs)

    assert value(MulticlassAUROC(5)) == pytest.approx(METRICS["roc_auc"].function(targets, outputs), abs=1e-6)
    recall = METRICS["balanced_accuracy"].function(targets, outputs) / 100
    assert value(MulticlassAccuracy(5)) == pytest.approx(recall, abs=1e-6)
    precision = [average_precision_score(targets == label, outputs[:, label]) for label in (1, 3)]
    assert value(MulticlassAveragePrecision(5)) == pytest.approx(np.mean(precision), abs=1e-6)
    f1 = METRICS["f1_macro"].function(targets, outputs)  # a class that is only predicted counts as 0
    assert value(MulticlassF1Score(5)) == pytest.approx(f1, abs=1e-6)
    two, one_class = outputs[:, :2], np.zeros(40, dtype=np.int64)
    assert np.isnan([value(MulticlassAUROC(5), one_class), TorchmetricsFunction(BinaryAUROC())(one_class, two)]).all()
    assert np.isnan(TorchmetricsFunction(BinaryRecall())(one_class, two))


def test_bad_metrics_are_refused_before_any_work(tmp_path: Path) -> None:
    def broken(targets: np.ndarray, outputs: np.ndarray) -> float:
        raise ValueError("no")

    for bad, message in (
        ("r2", "metric: r2 does not fit classes; choices: accuracy"),
        ("auc_roc", "metric: 'auc_roc' is unknown"),
        (3, "metric: 3 is not a metric; give a name"),
        (broken, r"metric broken: fails on targets \[8\] and outputs \[8, 2\] \(no\)"),
    ):
        with pytest.raises(fw.BadInput, match=message):
            compare(bad, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    METRICS.pop("broken", None)


def test_probabilities_in_half_precision_are_no_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their sums differ from one by rounding. Other metrics see the same values as of all digits, nearly."""
    digits = fw.Federation.from_dataset("digits", "dirichlet", clients=4, beta=0.5)
    whole = fw.compare(digits, ["knn_per"], seeds=1, tune=0, **QUIET, out=tmp_path / "whole")
    monkeypatch.setattr(predictions, "LARGEST", stored_by(whole["knn_per"].run, 0).outputs.nbytes - 1)
    half = fw.compare(digits, ["knn_per"], seeds=1, tune=0, **QUIET, out=tmp_path / "half")
    assert half["knn_per"].run.info["predictions"] == "float16"
    for metric in ("log_loss", "calibration_error"):
        scores = [done.with_metric(metric)["knn_per"].scores.to_numpy() for done in (half, whole)]
        np.testing.assert_allclose(*scores, rtol=0.02)


def test_numbers_are_stored_with_seven_digits_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a pressure such as 1013.2 the three digits of float16 would leave an error of a half."""
    sites = fw.Federation.from_arrays(X, 1000 + X[:, 0], client=OWNER)
    monkeypatch.setattr(predictions, "LARGEST", 2 * sum(map(len, sites.partition.val + sites.partition.test)))
    assert fw.fit("local", sites, out=tmp_path, **QUIET).run.info["predictions"].startswith("none: ")


@pytest.mark.parametrize(("names", "told"), [(["churned", "stayed"], True), ([0, 1], False), ([False, True], False)])
def test_a_warning_names_the_class_of_f1(names: list[Any], told: bool, tmp_path: Path) -> None:
    """The second of two names may be the class that nobody looks for. Of numbers and truth values it is clear."""
    draws = np.random.default_rng(0)
    x, client = draws.normal(size=(120, 3)), ["a", "b", "c"] * 40
    federation = fw.Federation.from_arrays(x, np.array(names)[(x[:, 0] > -1).astype(int)], client=client)
    options: dict[str, Any] = {"rounds": 1, "seeds": 1, "tune": 0, "progress": False, "central": False}
    done = fw.compare(federation, ["local"], **options, metric="f1", out=tmp_path / "out")
    line = "f1 is that of 'stayed'; for that of 'churned', use a label of true and false, or f1_macro for both"
    assert (line in done.warnings) == told
    assert any("f1 is that of" in one for one in fw.load(tmp_path / "out").warnings) == told
    assert line not in done.with_metric("accuracy").warnings
