"""Train methods on one federation, on equal terms, into a folder that the report and the other tools read."""

import json
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from fedweave import results
from fedweave.api import newcomers
from fedweave.api.arguments import check_callbacks, check_folder
from fedweave.api.central_control import check_methods
from fedweave.api.comparison import Comparison, MethodResult
from fedweave.api.federation import Federation
from fedweave.api.folder import results_folder
from fedweave.api.folder import write_description as describe
from fedweave.api.plan import Methods, Plan, plan
from fedweave.api.progress import Callback, ProgressBar, build_reporter, estimate, heading
from fedweave.api.tuning import tune_runs
from fedweave.errors import Diverged
from fedweave.federation.protocol import Method
from fedweave.federation.records import Report
from fedweave.files import write_atomic
from fedweave.methods import METHODS
from fedweave.runs import archive, repetition
from fedweave.runs import checkpoints as checkpoint_files
from fedweave.study import search_spaces
from fedweave.study.spec import Run

WORTH_AN_ESTIMATE = 20  # rounds of all runs together, above which some more of them for an estimate do not matter


def compare(
    federation: Federation,
    methods: Methods,
    *,
    model: Any = None,
    head: str | None = None,
    rounds: int = 50,
    seeds: int | Sequence[int] = 3,
    tune: int | Mapping[str, Any] = 0,
    metric: Any = None,
    evaluate: Mapping[str, Any] | None = None,
    central: bool = True,
    out: Path | str | None = None,
    resume: bool = True,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    name: str = "comparison",
    **train: Any,
) -> Comparison:
    """Train every method with every seed, choose rounds by validation, and compare by test.

    Args:
        federation: the clients and their data.
        methods: names, methods with settings such as `fedweave.methods.Ditto(lam=0.5)`, or {name: one of these}.
        model: of the clients: a name, {"name": ..., option: ...}, a callable (shape, outputs) -> nn.Module, a class of
            modules, or a module, from whose values every repetition starts. Default: "mlp", of graphs "gcn".
        head: name of the layer of a model of one's own that gives the outputs; default: its last layer.
        rounds: of training.
        seeds: how many repetitions, or a list of seeds.
        tune: trials of a search for each method's settings, or a mapping as the block `tune` of params.yaml.
        metric: of the scores: a name as in `fedweave.metrics.METRICS`, a `fw.Metric`, a function (targets, outputs), or
            a scorer of scikit-learn. Default: accuracy for classes, mse for forecasts.
        evaluate: every, select, point: see `fedweave.study.schema.EvaluateSpec`.
        central: also train one model on the training rows of all clients together, where rows can be pooled: a control
            that is not federated. `Comparison.controls` has its score; it has no rank and no test.
        out: folder for the results; default: one that goes with the returned object, see `Comparison.save`.
        resume: take finished runs from `out` where the settings and the code are the same.
        progress: show a bar and an estimate.
        callbacks: called with a `Progress` after every evaluated round.
        name: of the study in tables.
        train: other settings of training, such as lr=0.1 or participation=0.5: see `fedweave.study.schema.TrainSpec`.

    Raises:
        BadInput: one line that names what is wrong, before any work.
        Diverged: no method got anywhere.

    >>> import numpy as np
    >>> draws = np.random.default_rng(0)
    >>> x, y = draws.normal(size=(120, 4)), draws.integers(2, size=120)
    >>> federation = Federation.from_arrays(x, y, client=["Ann", "Bob", "Cy"] * 40)
    >>> compare(federation, ["local", "fedavg"], rounds=2, seeds=1, progress=False)
    Comparison of 2 methods on 'own-data': 3 clients, 1 seed
    """
    chosen = plan(
        federation,
        methods,
        model=model,
        head=head,
        seeds=seeds,
        tune=tune,
        metric=metric,
        evaluate=evaluate,
        central=central,
        name=name,
        train={"rounds": rounds, **train},
    )
    check_methods(chosen.study)
    folder, lost, temporary = _perform_in_folder(chosen, out, resume, progress, callbacks)
    study = results.load_study(folder, chosen.study.runs)
    done = Comparison(study, tuple(lost), temporary, chosen.inputs.model, federation)
    for line in done.warnings:
        warnings.warn(line, stacklevel=2)
    return done


def fit(
    method: str | Method | type[Method],
    federation: Federation,
    *,
    model: Any = None,
    head: str | None = None,
    rounds: int = 50,
    seed: int = 0,
    metric: Any = None,
    evaluate: Mapping[str, Any] | None = None,
    out: Path | str | None = None,
    resume: bool = True,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    name: str = "fit",
    **train: Any,
) -> MethodResult:
    """Train one method once; arguments as in `compare`.

    Returns:
        its result: `history` is a table of all scores, `graph()` says who learned from whom, `predict` answers with
        the models of the clients.

    >>> federation = Federation.from_dataset("digits", "dirichlet", clients=4, beta=0.5)
    >>> run = fit("fedavg", federation, rounds=2, progress=False)
    >>> run.history.columns.tolist()
    ['method', 'seed', 'client', 'round', 'point', 'split', 'metric', 'value']
    """
    settings = {"rounds": rounds, **train}
    chosen = plan(
        federation,
        [method],
        model=model,
        head=head,
        seeds=[seed],
        metric=metric,
        evaluate=evaluate,
        name=name,
        title="fit()",
        train=settings,
    )
    folder, _, temporary = _perform_in_folder(chosen, out, resume, progress, callbacks)
    run = results.load_run(folder / "runs" / next(iter(chosen.study.runs)))
    alone = results.Study(name, folder, (run,), ())
    done = Comparison(alone, (), temporary, chosen.inputs.model, federation)
    return done[next(iter(done.methods))]


def load(folder: Path | str) -> Comparison:
    """Open a folder of results, whoever wrote it: `compare`, `fit`, the command line or `dvc repro`.

    Raises:
        BadInput: it has no finished run, or a damaged one.
    """
    check_folder(folder, "folder")
    return Comparison(results.load_study(folder))


def _perform_in_folder(
    chosen: Plan, out: Path | str | None, resume: bool, progress: bool, callbacks: Sequence[Callback]
) -> tuple[Path, list[str], Any]:
    """(folder of the results of a plan, what the user must know, the folder as an object that removes itself)."""
    check_callbacks(callbacks)
    with results_folder(out) as (folder, temporary):
        return folder, perform(chosen, folder, resume, progress, callbacks), temporary


def perform(
    chosen: Plan,
    folder: Path,
    resume: bool = True,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    drawn: bool = True,
) -> list[str]:
    """Bring every run of a plan to its end in `folder`; returns what happened on the way that the user must know.

    Args:
        drawn: whether the folder also gets pictures of its data.

    Raises:
        Diverged: no run got anywhere.
    """
    describe(chosen.federation, folder, drawn)
    keys = [key for key in chosen.study.runs if not (resume and is_finished(chosen, key, folder))]
    if not resume:
        _remove_partial_results(chosen, folder)
    lost: list[str] = []
    left = {key for key, item in chosen.study.runs.items() if not METHODS[item.method].pools} or {*chosen.study.runs}
    if not keys:
        return lost
    planned = sum(chosen.study.run(key).train.rounds for key in keys) * len(chosen.study.seeds)
    bar, threads = ProgressBar(progress, planned, callbacks), torch.get_num_threads()
    try:
        if progress and planned >= WORTH_AN_ESTIMATE:
            first = repetition.prepare(chosen.study.run(keys[0]), *chosen.inputs)
            bar.write(heading(chosen.study, estimate(first, chosen.study) * len(keys) / len(chosen.study.runs)))
        best = tune_runs(chosen, folder, bar.show_tuning)
        for key in keys:
            try:
                _train_run(chosen, chosen.study.run(key, best[key]), folder, bar)
            except Diverged as error:
                # An earlier result of this name has other settings: it must not stand in this one's place.
                (folder / "runs" / key / "run.json").unlink(missing_ok=True)
                lost.append(str(error))
                left.discard(key)
    finally:
        bar.close()
        torch.set_num_threads(threads)
    if not left:
        raise Diverged(lost[0])
    return lost


def _train_run(chosen: Plan, run: Run, folder: Path, bar: ProgressBar) -> None:
    """Train a run and write its folder."""
    bench = repetition.prepare(run, *chosen.inputs)
    short = run.key.removeprefix(f"{run.name}-")
    bar.start_method(short, (bench.rounds - run.train.rounds) * len(run.seeds))
    code = chosen.hash_code(run.key)  # before training: a file of a graph may change meanwhile
    checkpoints = folder / ".fedweave" / code / "checkpoints"
    place, report = folder / "runs" / run.key, build_reporter(short, bench)

    def note(seed: int, progress: Report) -> Any:
        if progress.round == bench.rounds and run.evaluate.models:
            newcomers.store_state(checkpoints, run, seed, progress.state)
        return report(seed, progress)

    histories = repetition.run_repetitions(bench, checkpoints, note, bar.receive, most_threads=1)
    (place / "run.json").unlink(missing_ok=True)
    write_atomic(place / "code.json", json.dumps({"code": code}) + "\n")
    archive.write(place, bench, histories, others=newcomers.find_stored_states(checkpoints, run))
    checkpoint_files.remove(checkpoints, run)


def is_finished(chosen: Plan, key: str, folder: Path) -> bool:
    """Whether `folder` holds the run `key` as the plan wants it, trained by the same code."""
    place = folder / "runs" / key
    if not (place / "run.json").is_file():
        return False
    try:
        info = json.loads((place / "run.json").read_text(encoding="utf-8"))
        code = json.loads((place / "code.json").read_text(encoding="utf-8"))["code"]
        best = _read_best_values(chosen, key, folder)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if best is None:
        return False
    run = chosen.study.run(key, best)
    return bool(
        info.get("spec_hash") == run.fingerprint()
        and info.get("seeds") == [*run.seeds]
        and code == chosen.hash_code(key)
    )


def _read_best_values(chosen: Plan, key: str, folder: Path) -> dict[str, Any] | None:
    """What an earlier search of the same space has found for a run; None where one is wanted and has not ended."""
    study = chosen.study
    source = search_spaces.find_source_run(study, key)
    if not study.tune.trials or not (spaces := search_spaces.describe_search(study, source)):
        return {}
    place = folder / "tuned" / study.runs[key].task
    record = json.loads((place / "trials" / f"{source}.json").read_text(encoding="utf-8"))
    if record["budget"] != study.tune.budget or record["spaces"] != json.loads(json.dumps(spaces)):
        return None
    return search_spaces.select_values(study, key, {source: record["best"]})


def _remove_partial_results(chosen: Plan, folder: Path) -> None:
    """Remove what earlier calls have begun: searches, and checkpoints of the same runs."""
    for key in chosen.study.runs:
        place = folder / ".fedweave" / chosen.hash_code(key)
        if chosen.study.tune.trials:
            shutil.rmtree(place, ignore_errors=True)
        checkpoint_files.remove(place / "checkpoints", chosen.study.run(key))
