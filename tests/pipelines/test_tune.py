"""A killed search continues: no trial is lost, none counts twice, and the declared values stay the first trial."""

import itertools
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import psutil
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from optuna.trial import TrialState, create_trial
from scipy.stats import wilcoxon

from fedweave import data
from fedweave.data import Dataset
from fedweave.engine.records import Report
from fedweave.engine.schedule import evaluation_sample
from fedweave.errors import BadInput
from fedweave.pipelines import paths
from fedweave.pipelines import search_dashboard as dashboard
from fedweave.pipelines.commands import records
from fedweave.pipelines.stages import train, tune
from fedweave.runs import repetition
from fedweave.search import search, trials
from fedweave.study import search_spaces, validate
from tests.servers import until

ROOT = Path(__file__).resolve().parents[2]
RUN, DECLARED, TRIALS = "toy-fedprox", {"mu": 0.25, "train.lr": 0.05}, 12
JOURNAL = paths.STATE / "tune" / "toy" / f"{RUN}.journal"
PROGRAM = (
    "from fedweave.search import search; from fedweave.study import validate; "
    f"search.run_search(validate.load(), {RUN!r})"
)
JOIN = [sys.executable, "-c", PROGRAM]
# It kills itself when the third trial has reported its first round.
KILLED = f"""
import os, signal
from optuna.trial import Trial
report = Trial.report
def report_and_die(trial, value, step):
    report(trial, value, step)
    if trial.number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
Trial.report = report_and_die
{PROGRAM}
"""
STUDY = {
    "study": "toy",
    "seeds": [0],
    "tasks": {
        "toy": {
            "dataset": "digits",
            "setting": "iid",
            "partition": {"name": "dirichlet", "clients": 3, "seed": 0, "beta": 10.0},
            "model": {"name": "mlp", "hidden": 4},
            "train": {"rounds": 9, "epochs": 4, "lr": 0.05, "batch_size": 0, "executor": "loop"},
        }
    },
    "runs": {
        RUN: {"task": "toy", "method": "fedprox"},
        "toy-strong": {"task": "toy", "method": "fedprox", "set": {"mu": 2.0}},
    },
    "methods": {"fedprox": {"mu": 0.25}},
    "tune": {
        "trials": TRIALS,
        "seeds": [1000, 1001],
        "spaces": {"fedprox": {"mu": {"low": 0.01, "high": 1.0}, "train.lr": {"low": 1e-5, "high": 0.2, "log": True}}},
    },
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with partitioned data whose search has not begun; it is the current folder."""
    return prepare(tmp_path, monkeypatch)


def prepare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Partition generated data in `folder` and make it the current folder."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT / "src"), str(ROOT)]))
    Path("params.yaml").write_text(yaml.safe_dump(STUDY))
    g = np.random.default_rng(0)
    y = g.integers(0, 4, 120)
    x = (g.normal(size=(120, 1, 4, 4)) + 2 * np.eye(4)[y][:, None, :, None]).astype(np.float32)
    dataset = Dataset("digits", "images", x, y, 4)
    data.save_dataset(paths.FEATURES / "digits", dataset)
    data.save_partition(
        paths.PARTITIONS / "toy" / "partition.npz", data.partition(dataset, **STUDY["tasks"]["toy"]["partition"])
    )
    return folder


def change(tune: Mapping[str, Any], **blocks: Any) -> None:
    """Write the study with other blocks, and with other values in its block `tune`."""
    Path("params.yaml").write_text(yaml.safe_dump({**STUDY, **blocks, "tune": {**STUDY["tune"], **tune}}))


def states() -> list[TrialState]:
    """The states of all trials in the journal, in the order of their start."""
    return [trial.state for trial in search.open_search(validate.load(), RUN).optuna_study.trials]


def ended_trials() -> list[tuple[dict[str, float], float | None, dict[int, float]]]:
    """The parameters, the value and the intermediate values of every ended trial, in the order of their start."""
    done = search.open_search(validate.load(), RUN).optuna_study.get_trials(states=search.DONE)
    return [
        (trial.params, trial.value if trial.state == TrialState.COMPLETE else None, trial.intermediate_values)
        for trial in done
    ]


@pytest.fixture(scope="module")
def uninterrupted(
    tmp_path_factory: pytest.TempPathFactory,
) -> list[tuple[dict[str, float], float | None, dict[int, float]]]:
    """The trials of one process that is not killed."""
    with pytest.MonkeyPatch.context() as patch:
        prepare(tmp_path_factory.mktemp("alone"), patch)
        search.run_search(validate.load(), RUN)
        return ended_trials()


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Raises TimeoutError if the block takes longer."""

    def stop(*_: object) -> None:
        raise TimeoutError

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


STAGE = [sys.executable, "-m", "fedweave.pipelines.stages.tune", "toy"]
COMMAND = [sys.executable, "-m", "fedweave.pipelines.commands.main", "search", "toy"]


@pytest.mark.acceptance
@pytest.mark.parametrize(
    ("command", "number"),
    [(STAGE, signal.SIGINT), (STAGE, signal.SIGTERM), (COMMAND, signal.SIGINT)],
    ids=["stage-int", "stage-term", "command-int"],
)
def test_a_signal_ends_a_search_without_a_traceback(project: Path, command: list[str], number: signal.Signals) -> None:
    """Ctrl-C or SIGTERM goes to the whole group. A search of two processes ends and prints nothing."""
    change({"trials": 1000})
    process = subprocess.Popen(
        command, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    journals = [JOURNAL, JOURNAL.with_name("toy-strong.journal")]
    assert until(lambda: all(file.is_file() and '"step"' in file.read_text() for file in journals), 120)
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has just ended by itself
            child.send_signal(number)  # before its parent, which would end it
    os.killpg(process.pid, number)
    output, _ = process.communicate(timeout=60)
    assert process.returncode not in (0, 1, 2)
    assert "Traceback" not in output
    assert "Error" not in output


@pytest.mark.acceptance
def test_a_search_killed_in_a_trial_has_the_trials_of_an_uninterrupted_one(project: Path, uninterrupted: list) -> None:
    """SIGKILL after a later trial has reported a round: trials and values are the same, and none occurs twice."""
    killed = subprocess.run([sys.executable, "-c", KILLED], check=False)
    assert killed.returncode == -signal.SIGKILL
    before = states()
    assert TrialState.RUNNING in before
    search.run_search(validate.load(), RUN)
    assert states().count(TrialState.FAIL) == 1
    assert states()[before.index(TrialState.RUNNING)] == TrialState.FAIL
    assert ended_trials() == uninterrupted


@pytest.mark.acceptance
def test_two_processes_share_a_search(project: Path) -> None:
    """Together they make each trial once, and the declared values come first."""
    other = subprocess.Popen(JOIN)
    while not JOURNAL.is_file():
        assert other.poll() is None, "the other process ended before it began"
        time.sleep(0.001)
    search.run_search(validate.load(), RUN)
    assert other.wait(60) == 0
    assert {*states()} <= {*search.DONE}
    assert len(ended_trials()) == TRIALS
    assert [params for params, _, _ in ended_trials()].count(DECLARED) == 1
    assert search.open_search(validate.load(), RUN).optuna_study.trials[0].params == DECLARED


def test_budget_first_trial_and_pruning_by_rounds(uninterrupted: list) -> None:
    """The declared number of trials, with the declared values first. A pruned trial was below the median after a third
    of its rounds.
    """
    rounds = STUDY["tasks"]["toy"]["train"]["rounds"]
    assert len(uninterrupted) == TRIALS
    assert uninterrupted[0][0] == DECLARED
    pruned = [curve for _, value, curve in uninterrupted if value is None]
    assert pruned
    assert all(rounds // 3 <= max(curve) < rounds for curve in pruned)
    assert all([*curve] == [*range(1, 2 * rounds + 1)] for _, value, curve in uninterrupted if value is not None)


def test_tpe_leaves_its_random_start(project: Path, uninterrupted: list) -> None:
    """After a third of the trials, the declared one among them, values depend on the trials before."""
    space, drawn = search.distributions(validate.load(), RUN), []
    for number in range(TRIALS):
        sampler = optuna.samplers.RandomSampler(seed=search.sampler_seed(RUN, number))
        drawn.append(optuna.create_study(sampler=sampler).ask(space).params)
    is_random = [params == drawn[number] for number, (params, *_) in enumerate(uninterrupted)]
    assert is_random == [False, *[True] * 3, *[False] * 8]


@pytest.mark.parametrize(("budget", "start"), [(1, 2), (6, 2), (9, 3), (20, 6), (30, 10), (500, 10)])
def test_the_random_start_follows_the_budget(budget: int, start: int) -> None:
    """The values of a search are those of its settings, also where a former one had another start."""
    assert search.random_trials(budget) == start
    study = validate.load(ROOT / "params.yaml")
    key = next(iter(study.runs))

    def digest(trials: int, sampler: str = "tpe") -> str:
        return search.digest(replace(study, tune=replace(study.tune, trials=trials, sampler=sampler)), key, False)

    assert (digest(budget) == digest(30)) == (start == 10)
    assert digest(budget, "random") == digest(30, "random")


def best_of(val: np.ndarray, rule: str) -> float:
    """The mean over clients of `rule`'s report on validation scores [R, N]. NaN where there is no report."""
    finite = np.isfinite(val)
    judged = val[:, finite.any(0)]
    whole = judged[np.isfinite(judged).all(1)]
    if rule == "last" and judged.size:
        return judged[-1].mean()
    if rule == "best_val_round" and whole.size:
        return whole.mean(1).max()
    if rule == "per_client_best_val" and (whole.size or finite.any(0).all()):
        return np.where(np.isfinite(judged), judged, -np.inf).max(0).mean()
    return math.nan


@pytest.mark.parametrize("rule", ["best_val_round", "per_client_best_val", "last"])
def test_a_trial_has_the_score_that_training_would_report(
    project: Path, monkeypatch: pytest.MonkeyPatch, rule: str
) -> None:
    """The run's own rule applies, also where a client lacks a finite score in some rounds. The same holds for the
    values for pruning.
    """
    study, generator = validate.load(), np.random.default_rng(0)
    prepared, once = search._prepare_trial(search.open_search(study, RUN), {}), replace(study.tune, seeds=[1000])
    prepared = replace(prepared, run=replace(prepared.run, evaluate=replace(prepared.run.evaluate, select=rule)))
    ends = set()
    for _ in range(40):
        val = np.where(generator.random((4, 3)) < 0.5, generator.choice([np.nan, np.inf]), generator.random((4, 3)))
        rounds = [
            Report(i, 1, 1, 0.0, 1.0, (), {prepared.point: {"val": torch.from_numpy(row)}}, {}, {}, None, None)
            for i, row in enumerate(val, 1)
        ]
        monkeypatch.setattr(repetition, "iterate_reports", lambda prepared, seed, rounds=rounds: iter(rounds))
        trial, means = optuna.create_study(direction="maximize").ask(), [best_of(val[:i], rule) for i in range(1, 5)]
        ends.add(math.isfinite(means[-1]))
        if math.isfinite(means[-1]):
            assert trials.evaluate(prepared, once, trial) == pytest.approx([means[-1]])
        else:
            with pytest.raises(optuna.TrialPruned):
                trials.evaluate(prepared, once, trial)
        reported = trial.study.get_trials()[0].intermediate_values
        assert reported == pytest.approx({i: mean for i, mean in enumerate(means, 1) if math.isfinite(mean)})
    assert ends == {True, False}


def test_clients_that_join_late_do_so_in_a_trial_after_the_same_share_of_its_rounds(project: Path) -> None:
    """A trial that ends before the round of the join would be refused."""
    study = validate.load()
    task = replace(study.tasks["toy"], train={**study.tasks["toy"].train, "newcomers": 1, "join_round": 6})
    late = replace(study, tasks={"toy": task}, tune=replace(study.tune, share=0.5))
    train = search._prepare_trial(search.open_search(late, RUN), {}).run.train
    assert (train.rounds, train.join_round) == (5, 3)


def study_of(*finished: tuple[float, list[list[float]]], directions: tuple[str, ...] = ("maximize",)) -> optuna.Study:
    """A search whose finished trials have these values. The last one is a list of scores by seed and client."""
    opened = optuna.create_study(directions=list(directions))
    for *values, clients in finished:
        opened.add_trial(create_trial(values=values, user_attrs={trials.CLIENTS: clients}))
    return opened


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**31), shift=st.floats(-3, 3), higher=st.booleans())
def test_a_trial_is_pruned_where_scipys_test_finds_it_worse_than_the_best(
    seed: int, shift: float, higher: bool
) -> None:
    """The pairs are seeds and clients. Clients without a score are left out. Nothing is pruned before a first trial."""
    generator = np.random.default_rng(seed)
    best, worst = generator.normal(size=(2, 3, 8))
    mine = best[:2] + shift + generator.normal(size=(2, 8))
    mine[0, 0] = np.nan
    sign = 1.0 if higher else -1.0
    opened = study_of(
        (sign * 9.0, best.tolist()), (-sign * 9.0, worst.tolist()), directions=("maximize" if higher else "minimize",)
    )
    pairs = sign * (mine - best[:2]).ravel()[1:]
    p = wilcoxon(pairs, alternative="less", zero_method="zsplit").pvalue
    assert trials.is_significantly_worse(opened, mine.tolist()) == (p < trials.THRESHOLD and pairs.mean() < 0)
    assert not trials.is_significantly_worse(study_of(), mine.tolist())


def test_a_worse_trial_ends_after_its_first_seed(project: Path) -> None:
    """The paired test between two seeds ends the later trials, whose learning rates are far too small."""
    partition = {**STUDY["tasks"]["toy"]["partition"], "clients": 8}
    whole = data.load_dataset(paths.FEATURES / "digits")
    data.save_partition(paths.PARTITIONS / "toy" / "partition.npz", data.partition(whole, **partition))
    spaces = {"fedprox": {"train.lr": {"choices": [0.05, 1e-6, 2e-6, 3e-6]}}}
    task = {**STUDY["tasks"]["toy"], "partition": partition}
    change({"trials": 4, "sampler": "random", "spaces": spaces}, tasks={"toy": task})
    search.run_search(validate.load(), RUN)
    rounds = STUDY["tasks"]["toy"]["train"]["rounds"]
    ends = {(params["train.lr"] == 0.05, value is None, max(curve)) for params, value, curve in ended_trials()}
    assert ends == {(True, False, 2 * rounds), (False, True, rounds)}


def test_two_objectives_take_the_fewest_bytes_near_the_best_score(project: Path) -> None:
    """HeurpFedLA sends fewer layers if it retains more. The record has the bytes of every trial, and no trial is
    pruned. A stopped search continues with the same trials.
    """
    spaces = {"heurpfedla": {"retain": {"low": 1, "high": 3}}}
    block = {"share": 0.5, "objectives": ["score", "bytes"], "spaces": spaces}
    runs, methods = {RUN: {"task": "toy", "method": "heurpfedla"}}, {"heurpfedla": {"retain": 1}}
    for count in (2, 4):
        change({**block, "trials": count}, runs=runs, methods=methods)
        tune.main("toy")
    record = json.loads(paths.trials("toy", "toy", RUN).read_text())
    assert len(record["trials"]) == 4
    assert all(trial["value"] is not None and len(trial["curve"]) == 10 for trial in record["trials"])
    by_layers = {trial["params"]["retain"]: trial["bytes"] for trial in record["trials"]}
    assert len(by_layers) > 1
    assert sorted(by_layers.values(), reverse=True) == [by_layers[count] for count in sorted(by_layers)]
    mirror = dashboard.SearchReplica(validate.load())
    mirror.update()
    assert [*optuna.load_study(study_name=RUN, storage=mirror.storage).metric_names] == [
        "validation score",
        "bytes of a repetition",
    ]


def test_the_rule_of_one_standard_error() -> None:
    """The best score wins unless a trial of the front with fewer bytes loses at most its standard error."""
    best = (80.0, 100.0, [[70.0, 80.0, 90.0]])
    near = (79.0, 10.0, [[72.0, 76.0, 89.0]])  # differences -2, 4, 1: mean 1, standard error 1.73
    cheap = (78.0, 5.0, [[68.0, 78.0, 88.0]])  # differences 2, 2, 2: standard error 0
    dominated = (78.5, 50.0, [[69.5, 75.0, 91.0]])
    opened = study_of(best, near, cheap, dominated, directions=("maximize", "minimize"))
    finished = opened.get_trials()
    assert trials.choose_trial(opened, finished).number == 1
    assert trials.choose_trial(opened, [finished[0], finished[2]]).number == 0
    assert [trial.number for trial in trials.pareto_front(opened, finished)] == [0, 1, 2]
    assert {trial.number for trial in opened.best_trials} == {0, 1, 2}
    errors = study_of(
        *((-score, sent, (-np.array(clients)).tolist()) for score, sent, clients in (best, near, cheap)),
        directions=("minimize", "minimize"),
    )
    assert trials.choose_trial(errors, errors.get_trials()).number == 1


@pytest.mark.parametrize("queued", [0, 1, 4])
def test_a_grid_has_every_point_once(project: Path, queued: int) -> None:
    """No trial is pruned. No point is lost if a kill left only `queued` of them in the journal."""
    choices = {"mu": {"choices": [0.1, 0.25, 1.0]}, "train.lr": {"choices": [0.01, 0.05]}}
    task = {**STUDY["tasks"]["toy"], "train": {**STUDY["tasks"]["toy"]["train"], "epochs": 1}}
    block = {"sampler": "grid", "trials": 6, "spaces": {"fedprox": choices}, "seeds": [1000]}
    change(block, tasks={"toy": task})
    for point in search.initial_points(validate.load(), RUN)[:queued]:
        search.open_search(validate.load(), RUN).optuna_study.enqueue_trial(point)
    search.run_search(validate.load(), RUN)
    assert sorted(tuple(params.values()) for params, _, _ in ended_trials()) == sorted(
        itertools.product([0.1, 0.25, 1.0], [0.01, 0.05])
    )
    assert all(value is not None for _, value, _ in ended_trials())


def test_two_searches_do_not_draw_the_same_points(project: Path) -> None:
    """Only the declared point, with which both begin, is the same. Otherwise one lucky learning rate would decide for
    all methods.
    """
    runs = {key: {"task": "toy", "method": "fedprox"} for key in ("toy-a", "toy-b")}
    change({"trials": 4, "seeds": [1000]}, runs=runs)
    drawn = []
    for key in runs:
        search.run_search(validate.load(), key)
        drawn.append(
            [tuple(trial.params.values()) for trial in search.open_search(validate.load(), key).optuna_study.trials]
        )
    assert drawn[0][0] == drawn[1][0]
    assert len({*drawn[0], *drawn[1]}) == 7


def test_a_search_uses_validation_data_only(project: Path, uninterrupted: list) -> None:
    """With other test rows, trials and values are the same."""
    file = paths.PARTITIONS / "toy" / "partition.npz"
    partition = data.load_partition(file)
    data.save_partition(file, replace(partition, test=partition.test[1:] + partition.test[:1]))
    search.run_search(validate.load(), RUN)
    assert ended_trials() == uninterrupted


def test_a_setting_of_the_run_itself_is_not_searched(project: Path) -> None:
    """It would override the value of every trial."""
    study = validate.load()
    assert search.distributions(study, RUN).keys() == {"mu", "train.lr"}
    assert search.distributions(study, "toy-strong").keys() == {"train.lr"}


def test_a_learned_graph_and_its_controls_differ_only_in_the_graph(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A control uses the values of the search for the learned graph. A control with its own setting is searched."""
    pair = {"task": "toy", "method": "pfedgraph"}
    runs = {
        "toy-pfedgraph": pair,
        "toy-shuffled": {**pair, "set": {"graph": "shuffled"}},
        "toy-other": {**pair, "set": {"graph": "shuffled", "alpha": 0.1}},
    }
    spaces = {"pfedgraph": {"alpha": {"low": 0.1, "high": 1.0}, "train.lr": {"low": 0.01, "high": 0.2}}}
    block = {"trials": 3, "seeds": [1000], "share": 0.3, "spaces": spaces}
    change(block, methods={"pfedgraph": {}}, runs=runs)
    study = validate.load()
    assert [*search.distributions(study, "toy-other")] == ["train.lr"]
    tune.main("toy")
    best = {key: json.loads(paths.tuning_result("toy", "toy", key).read_text())["best"] for key in runs}
    assert best["toy-shuffled"] == best["toy-pfedgraph"]
    assert best["toy-pfedgraph"].keys() == {"alpha", "train.lr"}
    assert not paths.trials("toy", "toy", "toy-shuffled").exists()
    learned, shuffled = (study.run(key, best[key]) for key in ("toy-pfedgraph", "toy-shuffled"))
    assert (learned.train, learned.options["alpha"]) == (shuffled.train, shuffled.options["alpha"])
    assert shuffled.options["graph"] == "shuffled"
    line = "toy-shuffled: no trial, it takes the values of toy-pfedgraph, from which it differs in the graph alone"
    assert line in capsys.readouterr().out


def test_the_stage_writes_the_best_values_and_the_trials_to_separate_files(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If a longer search finds nothing better, the file that training depends on is unchanged.

    The terminal has the rounded numbers.
    """
    written = []
    for count in (3, 14):
        change({"trials": count, "seeds": [1000], "share": 0.3}, runs={RUN: STUDY["runs"][RUN]})
        tune.main("toy")
        record = json.loads(paths.trials("toy", "toy", RUN).read_text())
        assert len(record["trials"]) == count
        assert record["trials"][0]["params"] == DECLARED
        values = [trial["value"] for trial in record["trials"] if trial["value"] is not None]
        best = next(trial["params"] for trial in record["trials"] if trial["value"] == max(values))
        assert record["best"] == best
        line = rf"{RUN}: {count} trials, best (\S+) with mu=(\S+), train\.lr=(\S+)\n"
        assert (shown := re.search(line, capsys.readouterr().out))
        assert [*map(float, shown.groups())] == pytest.approx([max(values), best["mu"], best["train.lr"]], rel=1e-3)
        assert all(len(number) < 10 for number in shown.groups())
        assert bool(record["importance"]) == (len(values) >= 10)
        written.append(json.loads(paths.tuning_result("toy", "toy", RUN).read_text()))
        assert written[-1] == {"run": RUN, "best": best}
    assert len(ended_trials()) == 14


def test_training_reports_that_no_client_has_a_finite_score(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An area under the ROC curve needs two classes, which two clients have. The evaluated one has a single class."""
    task = {**STUDY["tasks"]["toy"], "metric": "roc_auc", "evaluate": {"select": "last", "clients": 1}}
    task["partition"] = {"name": "classes", "clients": 4, "classes": 1, "seed": 0}
    change({"trials": 0}, tasks={"toy": task})
    one_class = data.partition(data.load_dataset(paths.FEATURES / "digits"), **task["partition"])
    data.save_partition(paths.PARTITIONS / "toy" / "partition.npz", one_class)
    tune.main("toy")
    with pytest.raises(BadInput, match=r"tasks\.toy\.metric: roc_auc is not a number for the test rows of any client"):
        train.main(RUN)
    evaluated = evaluation_sample(0, torch.arange(4), 1)
    assert evaluated is not None
    first, second, *_ = (~evaluated).nonzero().flatten().tolist()
    test = [*one_class.test]
    test[first], test[second] = (np.concatenate([test[first][i::2], test[second][i::2]]) for i in (0, 1))
    data.save_partition(paths.PARTITIONS / "toy" / "partition.npz", replace(one_class, test=tuple(test)))
    train.main(RUN)
    assert capsys.readouterr().out.endswith(f"{RUN}, seed 0: no client has a finite test roc_auc\n")


def test_a_process_killed_while_it_writes_the_journal_leaves_no_lock(project: Path) -> None:
    assert states() == []
    reader, writer = os.pipe()
    holder = os.fork()
    if not holder:
        search.KernelLock(str(JOURNAL)).acquire()
        os.write(writer, b"!")
        signal.pause()
    os.read(reader, 1)
    with pytest.raises(TimeoutError), within(0.2):
        search.KernelLock(str(JOURNAL)).acquire()
    os.kill(holder, signal.SIGKILL)
    os.waitpid(holder, 0)
    with within(20):
        assert states() == []


def test_a_search_killed_before_its_first_trial_has_values_continues(project: Path) -> None:
    """Such a kill leaves a running trial that has only its queued values."""
    study = validate.load()
    opened = search.open_search(study, RUN).optuna_study
    opened.enqueue_trial(search_spaces.declared_values(study, RUN))
    opened.ask()
    search.run_search(study, RUN)
    done = search.open_search(study, RUN).optuna_study.get_trials(states=search.DONE)
    assert len(done) == TRIALS
    assert done[0].params == DECLARED


def test_trials_of_other_data_are_not_reused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same data keep their trials when written again. A corrected data set or partition starts a new search."""
    study, digest_file = validate.load(), paths.PARTITIONS / "toy" / "dataset.json"
    digest_file.write_text('{"sha256": "before"}')
    opened = search.open_search(study, RUN)
    opened.optuna_study.tell(opened.optuna_study.ask(), 50.0)
    prepare(project, monkeypatch)
    assert search.open_search(study, RUN).remaining_trials == TRIALS - 1
    digest_file.write_text('{"sha256": "after"}')
    assert search.open_search(study, RUN).remaining_trials == TRIALS
    digest_file.write_text('{"sha256": "before"}')
    stored = paths.PARTITIONS / "toy" / "partition.npz"
    rows = data.load_partition(stored)
    data.save_partition(stored, replace(rows, test=rows.val, val=rows.test))
    assert search.open_search(study, RUN).remaining_trials == TRIALS


def test_the_longest_searches_begin_first(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """First rounds over the pooled rows of all clients, then methods with more rounds, so that all searches end
    together.
    """
    spaces = {name: {"train.lr": {"low": 0.01, "high": 0.1}} for name in ("fedprox", "ghn", "central")}
    runs = {f"toy-{name}": {"task": "toy", "method": name} for name in spaces}
    tuned = {"trials": 1, "share": 0.2, "workers": 1, "spaces": spaces}
    methods = {"ghn": {"stage1_rounds": 2, "graph": "knn", "k": 1}}
    Path("params.yaml").write_text(yaml.safe_dump({**STUDY, "runs": runs, "methods": methods, "tune": tuned}))
    records.search("toy")
    assert capsys.readouterr().out == "toy: 3 searches are complete; next: dvc repro\n"
    study = validate.load()
    starts = {name: search.open_search(study, f"toy-{name}").optuna_study.trials[0].datetime_start for name in spaces}
    assert sorted(starts, key=lambda name: starts[name]) == ["central", "ghn", "fedprox"]
