"""A second call in the folder of a recommendation: equal requests, and the changes by a larger budget."""

import importlib.util
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import nn

import fedweave as fw
from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.recommendation import costs, recommend
from fedweave.recommendation.candidates import Candidate
from fedweave.recommendation.finals import compare_finalists
from fedweave.recommendation.journal import Journal

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
DRAWS = np.random.default_rng(0)
X = DRAWS.normal(size=(120, 4)).astype(np.float32)
FEDERATION = fw.Federation.from_arrays(X, X.sum(1) > 0, client=[f"site {i % 4}" for i in range(120)])
DEFAULTS = {name: argument.default for name, argument in signature(fw.recommend).parameters.items()}
ARGUMENTS: dict[str, Any] = {**DEFAULTS, "methods": ["ditto"], "budget": "2h", "seeds": 2, "train": {}}
MODEL = """
from torch import nn

def mine(shape, outputs):
    return nn.Sequential(nn.Linear(shape[0], 3), nn.{layer}(), nn.Linear(3, outputs))
"""


def build_recommender(folder: Path, **arguments: Any) -> recommend.Recommender:
    """A call that has not begun."""
    request = recommend._check_arguments({**ARGUMENTS, "federation": FEDERATION, **arguments})
    return recommend.Recommender(FEDERATION, request, folder, False, ())


def import_maker(folder: Path, layer: str) -> Callable[..., nn.Module]:
    """A user's function, as another process imports it."""
    folder.mkdir()
    (folder / "mine.py").write_text(MODEL.format(layer=layer))
    spec = importlib.util.spec_from_file_location("mine", folder / "mine.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model: Callable[..., nn.Module] = module.mine
    return model


def test_another_process_resumes_only_with_the_same_model(tmp_path: Path) -> None:
    first, again, changed = (import_maker(tmp_path / f"{i}", layer) for i, layer in enumerate(("ReLU", "ReLU", "Tanh")))
    assert first is not again

    def resume(**arguments: Any) -> Journal:
        return Journal.open(tmp_path, build_recommender(tmp_path, **arguments)._identity())

    resume(model=first).add_seconds(1.0)
    assert resume(model=again).spent_seconds == resume(model=again, budget="1h").spent_seconds == 1.0
    for arguments in ({"model": changed}, {"model": first, "rounds": 51}, {"model": first, "methods": ["fedper"]}):
        with pytest.raises(BadInput, match="other data, methods or settings, or by other code"):
            resume(**arguments)


def test_a_larger_budget_repeats_decisions_only_if_it_allows_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the decisions of a race with fewer rounds do not count."""
    monkeypatch.setattr(costs, "measure", lambda plan, entries: costs.Costs(entries, dict.fromkeys(entries, 1.0), 2))

    def decide(budget: str) -> tuple[int, int]:
        schedule: costs.Schedule = build_recommender(tmp_path, budget=budget)._decide_schedule(
            FEDERATION, journal, notes := []
        )
        assert bool(notes) == (schedule.size != (50, 5))
        return schedule.size

    journal = Journal(tmp_path / "journal.json", "")
    small = decide("5min")
    assert small < (50, 5)
    journal.record_rung(1, [], pd.DataFrame({"candidate": ["local"]}))
    assert decide("4min") == decide("5min") == decide("301s") == small
    assert journal.rung_outcome(1) is not None
    assert decide("10h") == (50, 5)
    assert journal.rung_outcome(1) is None
    journal.record_rung(1, [], pd.DataFrame({"candidate": ["local"]}))
    assert decide("20h") == decide("5min") == (50, 5)
    assert journal.rung_outcome(1) is not None


ADVICE: dict[str, Any] = {"rounds": 4, "seeds": 1, "settings": 1, "budget": None, "progress": False}


def list_files(folder: Path) -> set[Path]:
    """All files below a folder."""
    return {path for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """The folder of a comparison on the terms of the last comparison of `ADVICE`."""
    options = {"rounds": 4, "seeds": 1, "tune": 0, "evaluate": {"every": 1}, "central": False, "progress": False}
    fw.compare(FEDERATION, ["fedper"], out=tmp_path, **options)
    return tmp_path


@pytest.mark.parametrize(
    ("terms", "difference"),
    [
        ({"rounds": 8}, "rounds: 4 there, 8 here"),
        ({"seeds": 2}, r"seeds: \[0\] there, \[0, 1\] here"),
        ({"lr": 0.3}, "lr: 0.05 there, 0.3 here"),
    ],
)
def test_runs_on_other_terms_are_refused_before_the_race(trained: Path, terms: dict[str, Any], difference: str) -> None:
    """Nothing is trained or written."""
    before = list_files(trained)
    words = rf"its run 'own-data-fedper' was made with other settings .*: {difference}; all"
    with pytest.raises(BadInput, match=words):
        fw.recommend(FEDERATION, ["ditto"], out=trained, **{**ADVICE, **terms})
    assert list_files(trained) == before


def test_other_data_are_refused_before_the_race(trained: Path) -> None:
    other = fw.Federation.from_arrays(X, X.sum(1) > 1, client=[f"site {i % 4}" for i in range(120)])
    before = list_files(trained)
    with pytest.raises(BadInput, match="holds results of other data"):
        fw.recommend(other, ["ditto"], out=trained, **ADVICE)
    assert list_files(trained) == before


def test_a_schedule_that_the_budget_shortens_is_compared_too(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rounds of the last comparison count, not those that were wanted. The race does not begin."""
    monkeypatch.setattr(costs, "measure", lambda plan, entries: costs.Costs(entries, dict.fromkeys(entries, 1.0), 2))
    shutil.rmtree(trained / "runs")
    terms: dict[str, Any] = {"rounds": 10, "seeds": 1, "progress": False, "out": trained}
    fw.compare(FEDERATION, ["fedper"], evaluate={"every": 1}, central=False, **terms, tune=0)
    with pytest.raises(BadInput, match=r"rounds: 10 there, [5-9] here"):
        fw.recommend(FEDERATION, ["ditto"], settings=1, budget=100, **terms)
    assert not [*(trained / "recommendation").glob("rung-*")]


def test_runs_on_equal_terms_stay(trained: Path) -> None:
    fw.recommend(FEDERATION, ["ditto"], out=trained, **ADVICE)
    assert {"fedper", "ditto", "local"} <= {*fw.load(trained).methods}


def test_finalists_of_a_smaller_budget_are_removed(tmp_path: Path) -> None:
    """Else the folder has runs of two numbers of rounds."""
    named = {name: Candidate(name, name, name) for name in ("local", "fedavg", "fedper", "ditto")}
    options = {"name": "recommendation", "seeds": [0]}
    for rounds, finalists in ((1, ("local", "fedavg", "fedper")), (2, ("local", "fedavg", "ditto"))):
        trained = [named[name] for name in finalists]
        compare_finalists(FEDERATION, trained, {**options, "train": {"rounds": rounds}}, tmp_path, False, ())
    loaded = fw.load(tmp_path)
    assert {*loaded.methods} == {"local", "fedavg", "ditto"}
    assert {run.trained_rounds for run in loaded.study.all_runs} == {2}


def test_a_method_without_a_default_takes_its_value(tmp_path: Path) -> None:
    """A setting that an unregistered class gives no default is given with the method."""
    hooks = {"label": "Mine", "point": "pre", "__annotations__": {"step": float}}
    method = dataclass(frozen=True, kw_only=True)(type("Mine", (METHODS["fedavg"],), hooks))
    try:
        request = build_recommender(tmp_path, methods=[method(step=0.5)]).request
    finally:
        METHODS.pop("mine", None)
    assert request.entries["mine"].settings == {"step": 0.5}
