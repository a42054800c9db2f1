"""A folder with results of earlier calls: equal terms for all runs, or one line and no work."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedweave as fw
from fedweave.comparison import results_folder as folder
from fedweave.data import Dataset, Partition
from fedweave.errors import Busy
from fedweave.pipelines.commands import own_data

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
TERMS: dict[str, Any] = {"rounds": 2, "seeds": 2, "lr": 0.1, "progress": False}


def people(**options: Any) -> fw.Federation:
    """Three clients with two classes."""
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(120, 4)), draws.integers(2, size=120)
    return fw.Federation.from_arrays(x, y, client=["Ann", "Bob", "Cy"] * 40, name="people", **options)


@pytest.fixture(scope="module")
def earlier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a comparison of two methods."""
    folder = tmp_path_factory.mktemp("reused") / "out"
    fw.compare(people(), ["local", "fedavg"], out=folder, **TERMS)
    return folder


def record_files(folder: Path) -> dict[Path, int]:
    """Every file and when it was written."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


def test_a_method_joins_an_earlier_comparison(earlier: Path, tmp_path: Path) -> None:
    """On the same terms, with settings of its own. The runs that are there stay as they are."""
    folder = Path(shutil.copytree(earlier, tmp_path / "out"))
    before = record_files(folder / "runs")
    fw.compare(people(), [fw.methods.Ditto(lam=0.5)], out=folder, **TERMS)
    fw.compare(people(), ["fedavg_ft"], out=folder, evaluate={"models": False}, executor="loop", **TERMS)
    assert {*fw.load(folder).methods} == {"local", "fedavg", "ditto", "fedavg_ft"}
    kept = [path for path in before if "central" not in str(path)]  # the second call trains it without its models
    assert {path: path.stat().st_mtime_ns for path in kept} == {path: before[path] for path in kept}


def test_further_seeds_are_trained_alone(tmp_path: Path) -> None:
    """The results are those of one call with all seeds, and clients can join every repetition. Another order of calls,
    the same seeds again and a run that the user has removed train what is not there.
    """
    out, method, terms = tmp_path / "out", "pfedhn", TERMS | {"central": False}
    seen: set[int] = set()

    def compare(seeds: list[int], **options: Any) -> set[int]:
        """The seeds that a call has trained."""
        seen.clear()
        call = terms | {"seeds": seeds, "out": out} | options
        fw.compare(people(), [method], callbacks=[lambda progress: seen.add(progress.seed)], **call)
        return {*seen}

    run = out / "runs" / f"people-{method}"
    assert compare([0, 1]) == {0, 1}
    assert compare([0, 1, 2]) == {2}
    assert compare([0, 1, 2], out=tmp_path / "all") == {0, 1, 2}
    for name in ("evaluations.parquet", "predictions-0.npz", *(f"state-{seed}.pt" for seed in range(3))):
        assert (run / name).read_bytes() == (tmp_path / "all" / "runs" / run.name / name).read_bytes(), name
    rows, labels = np.ones((12, 4)), [0, 1] * 6
    joined = fw.load(out)[method].join(rows, client=["Dan"] * 12, label=labels, federation=people(), rounds=1)
    assert {*joined.history["seed"]} == {0, 1, 2}
    assert compare([2]) == set()
    assert compare([0, 2]) == {0}  # whose state, which clients can join, was that of a run with its seed
    assert {path.name for path in run.glob("state-*")} == {"state-0.pt", "state-2.pt"}
    assert compare([0, 1, 2], resume=False) == {0, 1, 2}
    shutil.rmtree(run)
    assert compare([0, 1, 2, 3]) == {0, 1, 2, 3}


DIFFERENT = {
    "rounds: 2 there, 3 here": {"rounds": 3},
    "seeds: [0, 1] there, [0] here": {"seeds": 1},
    "seeds: [0, 1] there, [4, 5] here": {"seeds": [4, 5]},
    "lr: 0.1 there, 0.2 here": {"lr": 0.2},
    "participation: 1.0 there, 0.5 here": {"participation": 0.5},
    "model.hidden: its default there, 3 here": {"model": {"name": "mlp", "hidden": 3}},
    "metric: its default there, 'f1_macro' here": {"metric": "f1_macro"},
    "evaluate.every: 1 there, 2 here": {"evaluate": {"every": 2}},
    "evaluate.select: 'best_val_round' there, 'last' here": {"evaluate": {"select": "last"}},
}


@pytest.mark.parametrize("difference", DIFFERENT)
def test_other_terms_are_refused_before_any_work(earlier: Path, difference: str) -> None:
    """One line names the folder, the run, both values and the ways out."""
    before = record_files(earlier)
    with pytest.raises(fw.BadInput) as caught:
        fw.compare(people(), ["ditto"], out=earlier, central=False, **{**TERMS, **DIFFERENT[difference]})
    message = str(caught.value)
    assert message.startswith(f"{earlier}: its run 'people-central' (and 2 other runs) was made with other settings")
    assert f" than this call: {difference}; all runs" in message
    assert "choose another folder (out=, on the command line --out or --output)" in message
    assert message.endswith(f"or remove {earlier / 'runs' / 'people-central'}")
    assert "\n" not in message
    assert record_files(earlier) == before


@pytest.mark.parametrize(("difference", "terms"), [("rounds: 2 there, 3 here", {"rounds": 3}), ("", {"seed": 1})])
def test_one_run_on_other_terms_is_refused(earlier: Path, difference: str, terms: dict[str, Any]) -> None:
    """`fw.fit` trains one seed, so that the two of the folder are another term."""
    before = record_files(earlier)
    call = {"rounds": 2, "seed": 0, "lr": 0.1, **terms}
    with pytest.raises(fw.BadInput, match=r"its run 'people-central' \(and 2 other runs\) was made") as caught:
        fw.fit("ditto", people(), out=earlier, progress=False, **call)
    assert difference in str(caught.value)
    assert f"seeds: [0, 1] there, [{call['seed']}] here" in str(caught.value)
    assert record_files(earlier) == before


def test_one_run_joins_those_of_equal_terms(tmp_path: Path) -> None:
    for method in ("local", "ditto"):
        fw.fit(method, people(), rounds=2, seed=3, lr=0.1, out=tmp_path, progress=False)
    assert {*fw.load(tmp_path).methods} == {"local", "ditto"}


def test_two_differences_are_both_named(earlier: Path) -> None:
    with pytest.raises(fw.BadInput, match=r"rounds: 2 there, 3 here; seeds: \[0, 1\] there, \[0\] here; all"):
        fw.compare(people(), ["ditto"], out=earlier, central=False, **{**TERMS, "rounds": 3, "seeds": 1})


def test_other_data_are_refused_with_what_differs(earlier: Path) -> None:
    """Another split of the same rows has other scaling and content."""
    before = record_files(earlier)
    with pytest.raises(fw.BadInput, match=r"holds results of other data .*; what differs: .*content"):
        fw.compare(people(seed=1), ["ditto"], out=earlier, **TERMS)
    assert record_files(earlier) == before


def test_all_runs_may_be_replaced(earlier: Path, tmp_path: Path) -> None:
    """Nothing of other terms is left, so nothing is mixed."""
    folder = Path(shutil.copytree(earlier, tmp_path / "out"))
    again = fw.compare(people(), ["local", "fedavg"], out=folder, **{**TERMS, "rounds": 1})
    assert {run.trained_rounds for run in fw.load(folder).study.all_runs} == {1}
    assert again.methods == ("fedavg", "local")


def test_a_removed_run_is_no_obstacle(earlier: Path, tmp_path: Path) -> None:
    """The message's way out works: the named run is removed, and then the next."""
    folder = Path(shutil.copytree(earlier, tmp_path / "out"))
    for name in ("people-central", "people-fedavg", "people-local"):
        with pytest.raises(fw.BadInput, match=name):
            fw.compare(people(), ["ditto"], out=folder, central=False, **{**TERMS, "seeds": 1})
        shutil.rmtree(folder / "runs" / name)
    fw.compare(people(), ["ditto"], out=folder, central=False, **{**TERMS, "seeds": 1})
    assert fw.load(folder).methods == ("ditto",)


def test_searches_of_one_budget_may_choose_different_values(tmp_path: Path) -> None:
    """A search of another budget, or none, is another term."""
    pytest.importorskip("optuna")
    tune = {"trials": 2, "spaces": {name: {"train.lr": {"choices": [0.01, 0.1]}} for name in ("local", "fedavg")}}
    call = {**TERMS, "central": False, "out": tmp_path}
    fw.compare(people(), ["local"], tune=tune, **call)
    file = tmp_path / "runs" / "people-local" / "run.json"
    info = json.loads(file.read_text(encoding="utf-8"))
    info["spec"]["train"]["lr"] = best = 0.01  # whatever the search has chosen
    file.write_text(json.dumps(info), encoding="utf-8")
    tuned = tmp_path / "tuned" / "people" / "people-local.json"
    tuned.write_text(json.dumps({"run": "people-local", "best": {"train.lr": best}}), encoding="utf-8")
    fw.compare(people(), ["fedavg"], tune=tune, **call)
    with pytest.raises(fw.BadInput, match=r"tune\.trials: 2 there, 3 here"):
        fw.compare(people(), ["ditto"], tune={**tune, "trials": 3}, **call)
    with pytest.raises(fw.BadInput, match=r"call: tune\.trials: 2 there, 0 here; all"):
        fw.compare(people(), ["ditto"], **call, tune=0)


def test_runs_of_other_data_may_be_there(earlier: Path, tmp_path: Path) -> None:
    """A folder may have several tasks, each with terms of its own."""
    folder = Path(shutil.copytree(earlier, tmp_path / "out"))
    other = fw.Federation.from_dataset("digits", "dirichlet", clients=4, beta=0.5)
    fw.compare(other, ["local"], rounds=1, seeds=1, central=False, out=folder, progress=False, tune=0)
    assert {run.task for run in fw.load(folder).study.runs} == {"people", "digits"}


def test_the_command_refuses_other_terms(tmp_path: Path) -> None:
    """`fedweave compare` with a folder of another budget."""
    rows = "".join(f"{name},{i % 7},{i % 2}\n" for name in ("a", "b", "c") for i in range(30))
    (tmp_path / "rows.csv").write_text("who,x,y\n" + rows, encoding="utf-8")
    call: dict[str, Any] = {"client": "who", "label": "y", "out": tmp_path / "out", "seeds": 1}
    own_data.compare(tmp_path / "rows.csv", methods=["local"], rounds=2, **call, tune=0)
    with pytest.raises(fw.BadInput, match=r"its run 'rows-local' was made .* rounds: 2 there, 3 here"):
        own_data.compare(tmp_path / "rows.csv", methods=["fedavg"], rounds=3, **call, tune=0)
    own_data.compare(tmp_path / "rows.csv", methods=["fedavg"], rounds=2, **call, tune=0)
    assert fw.load(tmp_path / "out").methods == ("fedavg", "local")


def test_the_data_are_hashed_once(earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the comparison with those of the folder, and for their description."""
    place, hashed = Path(shutil.copytree(earlier, tmp_path / "out")), []
    compute = folder.hash_content

    def count(dataset: Dataset, partition: Partition) -> str:
        hashed.append(dataset.name)
        return compute(dataset, partition)

    monkeypatch.setattr(folder, "hash_content", count)
    fw.compare(people(), ["ditto"], central=False, out=place, **TERMS)
    assert hashed == ["people"]


def test_a_second_call_at_the_same_time_is_refused(tmp_path: Path) -> None:
    """Both would write the same files. Another folder is free, and so is this one when the first call has ended."""
    lines: list[str] = []
    terms = {**TERMS, "seeds": 1}

    def call_again(_: fw.Progress) -> None:
        with pytest.raises(Busy) as refused:
            fw.fit("fedavg", people(), out=tmp_path / "out", rounds=1, progress=False)
        lines.append(str(refused.value))
        fw.fit("fedavg", people(), out=tmp_path / "other", rounds=1, progress=False)

    fw.compare(people(), ["local"], out=tmp_path / "out", callbacks=[call_again], **terms)
    assert lines[0].startswith(f"{tmp_path / 'out'}: another process writes results there; ")
    fw.compare(people(), ["local"], out=tmp_path / "out", **terms)
