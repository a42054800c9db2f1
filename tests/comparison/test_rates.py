"""The default search of the learning rate: its grid, its choice, and what it changes in a comparison."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave.comparison.plan import plan
from fedweave.comparison.progress import heading
from fedweave.report.tuning import describe_rates
from fedweave.search.rates import _choose
from fedweave.study.search_spaces import rates

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
QUIET: dict[str, Any] = {"progress": False, "device": "cpu", "executor": "loop", "central": False}
GOOD, BAD = ["great", "lovely", "perfect", "fresh"], ["awful", "broken", "late", "stale"]


def shops(flipped_tests: bool = False) -> fw.Federation:
    """Six shops with texts whose words tell the two labels apart."""
    draws, rows = np.random.default_rng(0), []
    for shop in range(6):
        for number in range(40):
            good = number % 2 == 1
            part = "train" if number < 20 else "val" if number < 30 else "test"
            words = [*draws.choice(GOOD if good else BAD, 2), *draws.choice(["the", "a", "it", "was", "and"], 2)]
            label = "good" if good != (flipped_tests and part == "test") else "bad"
            rows.append((f"shop {shop}", " ".join(draws.permutation(words)), label, part))
    table = pd.DataFrame(rows, columns=["shop", "text", "label", "part"])
    split = table.pop("part").to_numpy()
    return fw.Federation.from_pandas(table, client="shop", label="label", text="text", split=split, name="shops")


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("count", [1, 2, 5, 8])
def test_the_grid_begins_with_the_declared_value_and_adds_near_ones_first(optimizer: Any, count: int) -> None:
    values = rates(SimpleNamespace(lr=0.02, optimizer=optimizer), count)  # type: ignore[arg-type]
    assert len({*values}) == count
    assert values[0] == 0.02
    distances = np.abs(np.log10(np.array(values) / 0.02))
    assert (np.diff(distances) > -1e-4).all()
    assert np.allclose(np.diff(np.sort(np.log10(values))), 0.5, atol=1e-4)


@pytest.mark.parametrize(
    ("fixed", "searches"),
    [((), ", 5 learning rates each"), (("local",), ", 5 learning rates for 1 of them"), (("local", "fedavg"), "")],
)
def test_the_line_before_a_comparison_counts_the_searches(fixed: tuple[str, ...], searches: str) -> None:
    """A method whose learning rate is given has none."""
    own = {name: {"lr": 0.1} for name in fixed}
    study = plan(shops(), ["local", "fedavg"], model="mlp", tune=None, train={"rounds": 2}, per_method=own).study
    assert heading(study, 4.0) == f"2 methods x 3 seeds{searches}: a few seconds"


def test_adam_is_searched_below_rather_than_above() -> None:
    by_optimizer = [rates(SimpleNamespace(lr=1.0, optimizer=name), 5) for name in ("sgd", "adam")]  # type: ignore[arg-type]
    assert [(min(values), max(values)) for values in by_optimizer] == [(0.1, 10), (0.0316228, 3.16228)]


@pytest.mark.parametrize("higher", [True, False])
def test_of_values_that_noise_may_part_the_one_nearest_to_the_declared_is_taken(higher: bool) -> None:
    sign = 1 if higher else -1

    def trial(value: float, scores: list[float]) -> Any:
        clients = [[sign * score for score in scores]]
        return SimpleNamespace(value=value, score=float(np.mean(clients)), clients=clients)

    declared = trial(0.05, [60, 70, 80, 90])
    noisy, clear = trial(0.5, [90, 65, 90, 60]), trial(0.5, [75, 84, 96, 99])
    assert noisy.score * sign > declared.score * sign
    assert _choose([declared, noisy], higher).value == 0.05  # type: ignore[union-attr]
    assert _choose([declared, clear], higher).value == 0.5  # type: ignore[union-attr]
    assert _choose([], higher) is None


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> fw.Comparison:
    return compare(shops(), out=tmp_path_factory.mktemp("shops") / "out")


def compare(federation: fw.Federation, **arguments: Any) -> fw.Comparison:
    return fw.compare(federation, ["local", "fedavg"], **{"rounds": 10, **QUIET, **arguments})


def chosen(comparison: fw.Comparison) -> dict[str, float]:
    return {run.name: run.info["spec"]["train"]["lr"] for run in comparison.study.runs}


def test_separable_texts_have_no_gain_that_is_only_the_learning_rate(searched: fw.Comparison) -> None:
    board = searched.leaderboard().set_index("method")
    assert board.loc["local", "mean"] >= 90
    assert board.loc["fedavg", "vs_local"] in ("equivalent", "open")
    assert "learning rates, chosen on validation rows from 0.005 to 0.5: fedavg 0.5, local 0.5" in str(searched)
    assert chosen(searched) == {"shops-local": 0.5, "shops-fedavg": 0.5}


def test_a_method_without_a_learning_rate_is_not_among_the_rates() -> None:
    x = np.random.default_rng(0).normal(size=(120, 2))
    federation = fw.Federation.from_arrays(x, x.sum(1), client=["Ann", "Bob", "Cy"] * 40)
    for tune, line in ((None, "to 0.5: local "), (0, "untuned: lr=0.05 for all")):
        comparison = fw.compare(federation, ["local", "partial_pooling"], rounds=2, seeds=1, tune=tune, **QUIET)
        words = describe_rates(comparison.study)
        assert line in words
        assert "partial" not in words


def test_every_method_has_the_same_grid_and_number_of_trials(searched: fw.Comparison) -> None:
    files = sorted((searched.study.folder / "tuned" / "shops" / "trials").iterdir())
    records = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    assert [record["run"] for record in records] == ["shops-fedavg", "shops-local"]
    first, second = ([trial["params"]["train.lr"] for trial in record["trials"]] for record in records)
    assert first == second == rates(SimpleNamespace(lr=0.05, optimizer="sgd"), 5)  # type: ignore[arg-type]
    for record in records:
        rounds = [trial["rounds"] for trial in record["trials"]]
        assert sorted(rounds) == [3, 3, 5, 5, 5]  # the worse ones end after half of the half
        assert [trial["value"] is not None for trial in record["trials"]] == [count == 5 for count in rounds]


def test_a_second_call_trains_nothing_and_an_interrupted_one_has_the_same_values(
    searched: fw.Comparison, tmp_path: Path
) -> None:
    calls: list[fw.Progress] = []
    assert chosen(compare(shops(), out=searched.study.folder, callbacks=[calls.append])) == chosen(searched)
    assert not calls

    def stop(progress: fw.Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compare(shops(), out=tmp_path, callbacks=[stop])
    again = compare(shops(), out=tmp_path)
    pd.testing.assert_frame_equal(again.table, searched.table)


def test_test_rows_decide_nothing(searched: fw.Comparison) -> None:
    flipped = compare(shops(flipped_tests=True))
    assert chosen(flipped) == chosen(searched)
    assert flipped.leaderboard()["mean"].max() < 50


@pytest.mark.parametrize(
    ("arguments", "line"),
    [({"tune": 0}, "untuned: lr=0.05 for all"), ({"lr": 0.1}, "untuned: lr=0.1 for all")],
    ids=["off", "given"],
)
def test_without_a_search_the_board_names_the_one_rate(arguments: dict[str, Any], line: str) -> None:
    done = compare(shops(), rounds=1, seeds=1, **arguments)
    assert str(done).endswith(line)
    assert not (done.study.folder / "tuned").exists()


def test_without_validation_rows_there_is_no_search() -> None:
    data = shops()
    bare = replace(data, partition=replace(data.partition, val=tuple(rows[:0] for rows in data.partition.val)))
    done = compare(bare, rounds=1, seeds=1, evaluate={"select": "last"})
    assert str(done).endswith("untuned: lr=0.05 for all, as there are no validation rows")


def test_the_search_needs_no_optuna(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "optuna"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert "learning rates, chosen" in str(compare(shops(), rounds=1, seeds=1))
    advice = fw.recommend(shops(), ["fedavg"], rounds=2, seeds=1, budget=None, out=tmp_path, progress=False)
    assert {settings.split("=")[0] for settings in advice.race["settings"]} == {"lr"}
    first = advice.race[advice.race["rung"] == 1]
    assert (first.groupby("method")["settings"].nunique() == 5).all()
    assert [*json.loads((tmp_path / "tuned" / "shops" / "shops-central.json").read_text())["best"]] == ["train.lr"]


def test_after_few_rounds_at_chance_nothing_is_said_about_collaboration() -> None:
    done = compare(shops(), rounds=3, tune=0)
    assert done.leaderboard()["mean"].max() < 60
    assert not any("does not pay" in line for line in done.warnings)
    assert any(line.startswith("under-trained: no statement about collaboration") for line in done.warnings)
    assert any(line.startswith("Under-trained: no statement") for line in str(done).splitlines()[1:3])


def test_spaces_of_other_settings_are_refused() -> None:
    tune = {"trials": 5, "sampler": "rates", "spaces": {"local": {"train.lr": {"choices": [0.1]}}}}
    with pytest.raises(fw.BadInput, match=r"tune\.spaces\.local: rates searches the learning rate alone"):
        compare(shops(), tune=tune)
