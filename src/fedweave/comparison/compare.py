"""Train methods on one federation, on equal terms, into a folder that the report and the other tools read."""

import json
import shutil
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedweave import results
from fedweave.comparison import further_rounds
from fedweave.comparison.call_arguments import check_callbacks
from fedweave.comparison.central_control import check_methods
from fedweave.comparison.comparison import Comparison, MethodResult
from fedweave.comparison.earlier_runs import check_earlier_runs
from fedweave.comparison.margins import check_margin, declare_margin, store_margin
from fedweave.comparison.plan import Methods, Plan
from fedweave.comparison.plan import plan as make_plan
from fedweave.comparison.progress import Callback, ProgressBar, build_reporter, estimate, heading
from fedweave.comparison.results_folder import check_description, results_folder, write_description
from fedweave.comparison.tuning import tune_runs
from fedweave.engine.protocol import Method
from fedweave.engine.records import Report
from fedweave.errors import BadInput, ContestantFailed, Diverged
from fedweave.files.atomic import write_json
from fedweave.methods import METHODS
from fedweave.metrics import Margin
from fedweave.own_data.argument_checks import check_folder
from fedweave.own_data.federation import Federation
from fedweave.results.runs import read_margins
from fedweave.runs import archive, repetition
from fedweave.runs import checkpoints as checkpoint_files
from fedweave.study import search_spaces
from fedweave.study.spec import STATE, RunSpec

MIN_ROUNDS_FOR_ESTIMATE = 20  # rounds of all runs together; with fewer, the rounds of an estimate would cost too much


def compare(
    federation: Federation,
    methods: Methods,
    *,
    model: Any = None,
    head: str | None = None,
    adapter: str | Mapping[str, Any] | None = None,
    rounds: int = 50,
    seeds: int | Sequence[int] = 3,
    tune: int | Mapping[str, Any] | None = None,
    metric: Any = None,
    margin: float | str | None = None,
    evaluate: Mapping[str, Any] | None = None,
    central: bool = True,
    out: Path | str | None = None,
    resume: bool = True,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    name: str = "comparison",
    per_method: Mapping[str, Mapping[str, Any]] | None = None,
    **train: Any,
) -> Comparison:
    """Train every method with every seed, choose rounds by validation, and compare by test.

    Args:
        federation: the clients and their data.
        methods: names, methods with settings such as `fedweave.methods.Ditto(lam=0.5)`, or {name: one of these}.
        model: of the clients: a name, {"name": ..., option: ...}, a callable (shape, outputs) -> nn.Module, a class of
            modules, or a module, from whose values every repetition starts. Default: "mlp", of graphs "gcn".
        head: name of the layer of a model of one's own that gives the outputs; default: its last layer.
        adapter: what is trained besides the head, while the rest is frozen: "lora", "bias", "norm" or "head" (the head
            alone), or with settings, such as {"name": "lora", "rank": 8}: see `fedweave.models.adapters`. Default: all.
        rounds: of training.
        seeds: how many repetitions, or a list of seeds.
        tune: None: each method has its own learning rate, the best of five on validation rows, unless `lr` is given
            or there are no such rows. 0: no search. A number: trials of a search for each method's settings with
            Optuna, or a mapping as the block `tune` of params.yaml.
        metric: of the scores: a name as in `fedweave.metrics.METRICS`, a `fw.Metric`, a function (targets, outputs), or
            a scorer of scikit-learn. Default: accuracy for classes, mse for forecasts.
        margin: differences up to it are equivalent in practice: a number in the unit of the score, such as 0.5, or a
            share of the mean, such as "5 %". It is stored with the results. Default: that of `out`, else one point of a
            percentage, 0.01 of a share, 5 % of an error.
        evaluate: every, select, point: see `fedweave.study.schema.EvaluateSpec`.
        central: also train one model on the training rows of all clients together, where rows can be pooled: a control
            that is not federated. `Comparison.controls` has its score; it has no rank and no test.
        out: folder for the results; default: one that goes with the returned object, see `Comparison.save`.
            Other methods that are there must have been trained on the same terms: data, model, rounds, seeds, search
            and other settings of the training and the evaluation.
        resume: take finished runs from `out` where the settings and the code are the same. Runs of `methods` with other
            settings are replaced.
        progress: show a bar and an estimate.
        callbacks: called with a `Progress` after every evaluated round.
        name: of the study in tables.
        per_method: settings of training that single methods have of their own, such as {"fedprox": {"epochs": 2}}; a
            warning names them, as terms are not equal then.
        train: other settings of training, such as lr=0.1 or participation=0.5: see `fedweave.study.schema.TrainSpec`.

    Raises:
        BadInput: one line that names what is wrong, before any work.
        Diverged: every method diverged.

    >>> import numpy as np
    >>> draws = np.random.default_rng(0)
    >>> x, y = draws.normal(size=(120, 4)), draws.integers(2, size=120)
    >>> federation = Federation.from_arrays(x, y, client=["Ann", "Bob", "Cy"] * 40)
    >>> compare(federation, ["local", "fedavg"], rounds=2, seeds=1, tune=0, progress=False)
    Comparison of 2 methods on 'own-data': 3 clients, 1 seed
    """
    given_margin = None if margin is None else check_margin(margin, metric)
    plan = make_plan(
        federation,
        methods,
        model=model,
        head=head,
        adapter=adapter,
        seeds=seeds,
        tune=tune,
        metric=metric,
        evaluate=evaluate,
        central=central,
        name=name,
        train={"rounds": rounds, **train},
        per_method=per_method,
    )
    check_methods(plan.study)
    folder, messages, temporary = _perform_in_folder(plan, out, resume, progress, callbacks, given_margin)
    study = results.load_study(folder, plan.study.runs)
    if given_margin is not None:
        study = store_margin(study, given_margin)
    comparison = Comparison(study, tuple(messages), temporary, plan.inputs.model, federation)
    for line in comparison.warnings:
        warnings.warn(line, stacklevel=2)
    return comparison


def fit(
    method: str | Method | type[Method],
    federation: Federation,
    *,
    model: Any = None,
    head: str | None = None,
    adapter: str | Mapping[str, Any] | None = None,
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
        its result: `history` is a table of all scores, `graph()` shows who learned from whom, `predict` uses the
        models of the clients.

    >>> federation = Federation.from_dataset("digits", "dirichlet", clients=4, beta=0.5)
    >>> run = fit("fedavg", federation, rounds=2, progress=False)
    >>> run.history.columns.tolist()
    ['method', 'seed', 'client', 'round', 'point', 'split', 'metric', 'value']
    """
    if isinstance(method, Federation):
        raise BadInput("fit(): the first argument is a federation; give the method first: fit('fedavg', federation)")
    settings = {"rounds": rounds, **train}
    plan = make_plan(
        federation,
        [method],
        model=model,
        head=head,
        adapter=adapter,
        seeds=[seed],
        metric=metric,
        evaluate=evaluate,
        name=name,
        title="fit()",
        train=settings,
    )
    folder, _, temporary = _perform_in_folder(plan, out, resume, progress, callbacks)
    run = results.load_run(folder / "runs" / next(iter(plan.study.runs)))
    study = results.Study(name, folder, (run,), (), margins=read_margins(folder))
    comparison = Comparison(study, (), temporary, plan.inputs.model, federation, refits=False)
    return comparison[next(iter(comparison.methods))]


def load(folder: Path | str) -> Comparison:
    """Open a folder of results, whoever wrote it: `compare`, `fit`, the command line or `dvc repro`.

    Raises:
        BadInput: it has no finished run, or a damaged one.
    """
    check_folder(folder, "folder")
    return Comparison(results.load_study(folder))


def _perform_in_folder(
    plan: Plan,
    out: Path | str | None,
    resume: bool,
    progress: bool,
    callbacks: Sequence[Callback],
    margin: Margin | None = None,
) -> tuple[Path, list[str], Any]:
    """(folder with the results of a plan, messages for the user, the temporary folder or None)."""
    check_callbacks(callbacks)
    with results_folder(out) as (folder, temporary):
        messages = perform(plan, folder, resume, progress, callbacks, stays=temporary is None, margin=margin)
        return folder, messages, temporary


def perform(
    plan: Plan,
    folder: Path,
    resume: bool = True,
    progress: bool = True,
    callbacks: Sequence[Callback] = (),
    figures: bool = True,
    stays: bool = False,
    margin: Margin | None = None,
) -> list[str]:
    """Finish every run of a plan in `folder`; returns a message for each run that diverged.

    Args:
        figures: whether figures of the data are written too.
        stays: whether later calls add to `folder`: its other runs must have been made on the terms of the plan, and
            finished repetitions stay for calls with further seeds.
        margin: of practical equivalence; None: that of the folder, or else the default. The runs record it.

    Raises:
        BadInput: the folder has runs of other data or terms.
        Diverged: every run diverged.
    """
    description = check_description(plan.federation, folder)
    plan = replace(plan, study=declare_margin(plan.study, margin, folder))
    if stays:
        check_earlier_runs(plan, folder)
    write_description(plan.federation, folder, description, figures)
    trained = {key: METHODS[item.method].has_models for key, item in plan.study.runs.items()}
    keys = [key for key in plan.study.runs if not (resume and is_finished(plan, key, folder))]
    keys.sort(key=lambda key: not trained[key])  # code from elsewhere comes last, as its threads could disturb forks
    if not resume:
        _remove_partial_results(plan, folder)
    diverged: list[Diverged] = []
    remaining = {key for key, item in plan.study.runs.items() if not METHODS[item.method].pools} or {*plan.study.runs}
    if not keys:
        return []
    total_rounds = sum(plan.study.run(key).train.rounds for key in keys) * len(plan.study.seeds)
    bar, threads = ProgressBar(progress, total_rounds, callbacks), torch.get_num_threads()
    try:
        if progress and total_rounds >= MIN_ROUNDS_FOR_ESTIMATE and trained[keys[0]]:
            first = repetition.prepare(plan.study.run(keys[0]), *plan.inputs)
            bar.write(heading(plan.study, estimate(first, plan.study) * len(keys) / len(plan.study.runs)))
        best = tune_runs(plan, folder, bar.show_tuning)
        for key in keys:
            run = plan.study.run(key, best[key])
            try:
                _train_run(plan, run, folder, bar, stays)
            except Diverged as error:
                # An earlier result of this name has other settings: it must not be taken for this one.
                (folder / "runs" / key / "run.json").unlink(missing_ok=True)
                diverged.append(_name_run(run, error))
                remaining.discard(key)
    finally:
        bar.close()
        torch.set_num_threads(threads)
    if not remaining:
        raise diverged[0]
    return [str(error) for error in diverged]


def _name_run(run: RunSpec, error: Diverged) -> Diverged:
    """`error` with the name of its run and the way out, in the words of `compare`."""
    if isinstance(error, ContestantFailed):
        return error
    # Here, settings of the training are arguments and have no prefix.
    shown = Diverged(run.key, error.problem, repetition.suggest_change(run, block=""))
    shown.__cause__ = error
    return shown


def _train_run(plan: Plan, run: RunSpec, folder: Path, bar: ProgressBar, stays: bool) -> None:
    """Train a run and write its folder. Of a run that is there with other seeds, only further ones are trained."""
    run_folder = folder / "runs" / run.key
    run = _keep_margins(run, run_folder)
    prepared = repetition.prepare(run, *plan.inputs).with_logs(run_folder)
    name = run.key.removeprefix(f"{run.name}-")
    bar.start_method(name, (prepared.rounds - run.train.rounds) * len(run.seeds))
    code = plan.hash_code(run.key)  # before training, as a file of a graph may change meanwhile
    checkpoints = _checkpoint_folder(folder, code)
    if checkpoint_files.is_written(checkpoints, run):
        _take_up(run, run_folder, code, checkpoints)
    checkpoint_files.forget_repeated(checkpoints, prepared)
    build_progress = build_reporter(name, prepared)

    def report_round(seed: int, report: Report) -> Any:
        if report.round == prepared.rounds and run.evaluate.models and prepared.method.has_models:
            further_rounds.store_state(checkpoints, run, seed, report.state)
        return build_progress(seed, report)

    histories = repetition.run_repetitions(prepared, checkpoints, report_round, bar.receive, most_threads=1)
    bar.end_method(prepared.rounds, run.seeds)
    (run_folder / "run.json").unlink(missing_ok=True)
    metric = {"metric": plan.metric_hash} if plan.metric_hash else {}
    write_json(run_folder / "code.json", {"code": code, **metric}, indent=None)
    others = further_rounds.find_stored_states(checkpoints, run)
    controls = None if plan.title == "fit()" else folder / STATE / "controls"  # one run alone makes no board
    archive.write(run_folder, prepared, histories, others=others, controls=controls)
    if stays:
        checkpoint_files.record_written(checkpoints, prepared)
    else:
        checkpoint_files.remove(checkpoints, run)


def _keep_margins(run: RunSpec, run_folder: Path) -> RunSpec:
    """The run with the margins that it records, if it has scores: further seeds make no margin an earlier one."""
    finished = _read_finished(run_folder)
    if finished is None or finished["spec_hash"] != run.fingerprint():
        return run
    return replace(run, margins=finished.get("margins"))


def _checkpoint_folder(folder: Path, code: str) -> Path:
    """The checkpoints of the runs in `folder` that were trained by the same code."""
    return folder / STATE / "checkpoints" / code


def _take_up(run: RunSpec, run_folder: Path, code: str, checkpoints: Path) -> None:
    """Prepare finished repetitions of a run for use with further seeds."""
    finished = _read_finished(run_folder)
    # Of a run or a seed that the folder has no more, the state is gone that clients could join.
    stored = finished["seeds"] if finished and _identify(finished) == (run.fingerprint(), code) else []
    checkpoint_files.keep_seeds(checkpoints, run, stored)
    if stored:
        further_rounds.keep_states(run_folder, checkpoints, run)


def is_finished(plan: Plan, key: str, folder: Path) -> bool:
    """Whether `folder` holds the run `key` as the plan wants it, trained by the same code."""
    finished = _read_finished(folder / "runs" / key)
    if finished is None:
        return False
    try:
        best = _read_best_values(plan, key, folder)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    if best is None:
        return False
    run = plan.study.run(key, best)
    return _identify(finished) == (run.fingerprint(), plan.hash_code(key)) and finished["seeds"] == [*run.seeds]


def _read_finished(run_folder: Path) -> dict[str, Any] | None:
    """The record of a finished run, with the hash of its code; None if none is there or can be read."""
    try:
        info = json.loads((run_folder / "run.json").read_text(encoding="utf-8"))
        code = json.loads((run_folder / "code.json").read_text(encoding="utf-8"))["code"]
        return {**info, "code": code, "spec_hash": info["spec_hash"], "seeds": info["seeds"]}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _identify(finished: Mapping[str, Any]) -> tuple[str, str]:
    """(hash of the specification, hash of the code) of a finished run."""
    return finished["spec_hash"], finished["code"]


def _read_best_values(plan: Plan, key: str, folder: Path) -> dict[str, Any] | None:
    """The values of a run from an earlier search of the same space; None where a search is needed and has not ended."""
    study = plan.study
    source = search_spaces.find_source_run(study, key)
    if not study.tune.trials or not (spaces := search_spaces.describe_search(study, source)):
        return {}
    tuned_folder = folder / "tuned" / study.runs[key].task
    record = json.loads((tuned_folder / "trials" / f"{source}.json").read_text(encoding="utf-8"))
    if record["budget"] != study.tune.budget or record["spaces"] != json.loads(json.dumps(spaces)):
        return None
    return search_spaces.select_values(study, key, {source: record["best"]})


def _remove_partial_results(plan: Plan, folder: Path) -> None:
    """Remove what earlier calls have begun: searches, and checkpoints of the same runs."""
    for key in plan.study.runs:
        cache = folder / STATE / plan.hash_code(key)
        if plan.study.tune.trials:
            shutil.rmtree(cache, ignore_errors=True)
        checkpoint_files.remove(_checkpoint_folder(folder, plan.hash_code(key)), plan.study.run(key))
