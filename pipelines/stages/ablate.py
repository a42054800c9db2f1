"""Stage `ablate`: the declared run, with one thing changed at a time, or with every combination of several."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import pandas as pd

from fedweave import plots, results
from fedweave.errors import choose
from fedweave.files.atomic import write_table
from fedweave.metrics import Margin, margin_of, parse_margins
from fedweave.report import optional_files
from fedweave.results import statistics
from fedweave.runs import archive, repetition, selection
from fedweave.runs import checkpoints as checkpoint_files
from fedweave.runs.dependencies import of_partition
from fedweave.runs.inputs import load_inputs, partition_inputs
from fedweave.study import objects, validate
from fedweave.study.spec import RunSpec, StudySpec

from .. import paths
from ..processes import run_main
from . import params_entries
from .train import TrainingResult, train
from .train import tuned_values as tuned

DECLARED = "as declared"
VALUES = ["seed", "client", "value"]
COMPARED = ("difference", "low", "high", "p_adjusted", "margin", "seeds_needed", "over", "verdict")


class VariantResult(NamedTuple):
    """One variant: the reported value of every seed and client, and what it cost, averaged over seeds."""

    settings: Mapping[str, Any]
    values: pd.DataFrame  # seed, client, value
    bytes: float
    seconds: float
    declared: bool = False
    has_other_partition: bool = False  # its clients differ from those of the run, so that no test pairs them


def main(name: str) -> None:
    """Train every variant of the ablation `name`; write table.csv, values.csv and plot.svg to its results folder."""
    check = params_entries.create_check()
    study = validate.load()
    block = study.ablate[choose(name, study.ablate, "params.yaml: ablate")]
    outcomes, trained_runs = run_variants(study, name, block["run"], block["variants"])
    folder, run = paths.RESULTS / study.name / "ablations" / name, results.load_run(paths.run(study.name, block["run"]))
    margin = margin_of(str(run.info["metric"]), parse_margins(study.margins, "params.yaml: margins."))
    write_table(folder / "table.csv", optional_files.ABLATION_COLUMNS, table(name, run, outcomes, margin))
    columns = ["run", "seed", "client", "value"]
    values = scores(outcomes)[columns].itertuples(index=False, name=None)
    write_table(folder / "values.csv", ("variant", *columns[1:]), values)
    plots.save(folder / "plot.svg", plots.ablation(optional_files.ablation(folder / "table.csv")))
    item = study.runs[block["run"]]
    check(("ablate", name), ("margins",), *params_entries.run_entries(item.task, item.method, block["run"]))
    for trained in trained_runs:
        checkpoint_files.record_written(trained.checkpoints, trained.prepared)


def run_variants(
    study: StudySpec, name: str, key: str, variants: Mapping[str, Mapping[str, Any]]
) -> tuple[dict[str, VariantResult], list[TrainingResult]]:
    """Variant -> its result, with the declared run, and each training.

    A variant that equals the declared run is read from its results and not trained again.
    """
    best = tuned(study, key)
    declared, outcomes, trained_runs = study.run(key, best), {}, []
    for variant, settings in variants.items():
        run, title = validate.build_variant(study, key, best, settings), f"{name}, {variant}"
        if _is_same_run(run, declared):
            outcomes[variant] = _read_result(study, key, settings)
            continue
        has_other_partition = run.task.partition != declared.task.partition
        partition_code = of_partition(run.task.partition["name"]) if has_other_partition else ()
        trained = train(run, partition_inputs(run) if has_other_partition else load_inputs(run), title, partition_code)
        outcomes[variant] = _training_result(trained.prepared, trained.histories, settings)._replace(
            has_other_partition=has_other_partition
        )
        trained_runs.append(trained)
        mean = outcomes[variant].values["value"].mean()
        print(f"{title}: {trained.prepared.method.task.score_metric.name} {mean:.4g}", flush=True)
    if not any(outcome.declared for outcome in outcomes.values()):
        outcomes = {DECLARED: _read_result(study, key, {}), **outcomes}
    return outcomes, trained_runs


def _is_same_run(first: RunSpec, second: RunSpec) -> bool:
    """Whether two runs compute the same; settings may be given or left at their defaults."""
    methods = [dict(objects.hyperparameters(validate.check_run(run, "params.yaml"))) for run in (first, second)]
    specifications = [run.specification() | {"method": run.method} for run in (first, second)]
    return methods[0] == methods[1] and specifications[0] == specifications[1]


def _read_result(study: StudySpec, key: str, settings: Mapping[str, Any]) -> VariantResult:
    run = results.load_run(paths.run(study.name, key))
    values = results.select_scores(run)[VALUES]
    values = values[values["seed"].isin(study.seeds)]
    sent = run.totals["bytes_up"] + run.totals["bytes_down"]
    return VariantResult(settings, values, sent, run.totals["seconds"], declared=True)


def _training_result(
    prepared: repetition.PreparedRun, histories: Mapping[int, repetition.History], settings: Mapping[str, Any]
) -> VariantResult:
    clients = prepared.federation.sample.tolist()
    parts = [(seed, archive.select_scores(prepared, history)) for seed, history in histories.items()]
    values = pd.concat(
        pd.DataFrame({"seed": seed, "client": clients, "value": client_scores}) for seed, client_scores in parts
    )
    rows = [row for history in histories.values() for row in history.ledger]
    sent = sum(row.bytes_down + row.bytes_up for row in rows) / len(histories)
    return VariantResult(settings, values, sent, sum(row.seconds for row in rows) / len(histories))


def scores(outcomes: Mapping[str, VariantResult]) -> pd.DataFrame:
    """The values of every variant (column `run`); a variant with another partition is a task alone."""
    parts = {variant: variant if outcome.has_other_partition else "" for variant, outcome in outcomes.items()}
    rows = [outcomes[variant].values.assign(run=variant, task=task) for variant, task in parts.items()]
    return pd.concat(rows, ignore_index=True)


def table(
    name: str, run: results.Run, outcomes: Mapping[str, VariantResult], margin: Margin
) -> Iterator[tuple[Any, ...]]:
    """A row per variant; if its clients are those of the declared run, with a paired test against it.

    The tests are corrected over variants; `margin` is that of practical equivalence.
    """
    base = next(variant for variant, outcome in outcomes.items() if outcome.declared)
    paired = [variant for variant, outcome in outcomes.items() if variant != base and not outcome.has_other_partition]
    every = scores(outcomes)
    measured = results.drop_unscored_clients(every, {*every["task"]} if run.has_splits else ())
    frames = {variant: results.score_matrix(measured, variant) for variant in outcomes}
    values = results.average_parts(
        {variant: frames[variant] for variant in (base, *paired)}, results.part_numbers([run])
    )
    pairs = [(variant, base) for variant in paired]
    tests = {c.method: c for c in statistics.compare_pairs(values, pairs, run.higher_is_better, margin)}
    for variant, outcome in outcomes.items():
        score, test = selection.summarise_run(frames[variant].to_numpy(), run.higher_is_better), tests.get(variant)
        compared = [getattr(test, column) if test else "" for column in COMPARED]
        yield (
            name,
            variant,
            run.name,
            run.task,
            run.label,
            run.info["metric"],
            json.dumps(dict(outcome.settings)),
            int(outcome.declared),
            *score,
            outcome.bytes,
            outcome.seconds,
            *compared,
        )


if __name__ == "__main__":
    run_main(main)
