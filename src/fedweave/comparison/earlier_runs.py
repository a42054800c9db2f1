"""A folder of results that has runs of earlier calls: they must have been trained under the conditions of this call."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from fedweave.comparison.plan import Plan
from fedweave.errors import BadInput, format_count, format_value
from fedweave.files.atomic import read_json
from fedweave.study.spec import flatten

EVALUATION = ("every", "select", "point", "clients")  # settings of the evaluation that change scores
MOST_DIFFERENCES = 3  # that a message names
ABSENT = "its default"
REMEDY = "remove the folder of this run"


def check_earlier_runs(plan: Plan, folder: Path) -> None:
    """Refuse a folder with runs of other methods that were trained with other settings than those of `plan`.

    The runs of the plan itself do not count: they are reused if they are the same, and else replaced. A method's own
    settings may differ, and so may values that searches of the same budget chose.
    `results_folder.check_description` refuses other data.

    Raises:
        BadInput: naming the folder, a run, what it was made with, and what this call has.
    """
    records = read_earlier_runs(plan, folder)
    differences_of = {key: [*_differences(plan, folder, key, info)] for key, info in records.items()}
    differing = {key: differences for key, differences in differences_of.items() if differences}
    if not differing:
        return
    first, differences = next(iter(differing.items()))
    others = f" (and {format_count(len(differing) - 1, 'other run')})" if len(differing) > 1 else ""
    raise BadInput(
        f"{folder}: its run {first!r}{others} was made with other settings than this call: "
        f"{'; '.join(differences[:MOST_DIFFERENCES])}; all runs of a folder need equal conditions: choose "
        "another folder (out=, on the command line --out or --output), give the same settings, or remove "
        f"{folder / 'runs' / first}"
    )


def read_earlier_runs(plan: Plan, folder: Path) -> dict[str, dict[str, Any]]:
    """Key -> record of each finished run of the same task that the plan does not have."""
    files = {file.parent.name: file for file in sorted((folder / "runs").glob("*/run.json"))}
    records = {key: read_json(file, REMEDY) for key, file in files.items() if key not in plan.study.runs}
    return {key: info for key, info in records.items() if info.get("task") == plan.federation.name}


def _differences(plan: Plan, folder: Path, key: str, info: Mapping[str, Any]) -> Iterator[str]:
    """What differs between a stored run and the runs of the plan, each with both values."""
    spec = info.get("spec") or {}
    record = _read_tuning(folder / "tuned" / plan.federation.name, key, spec)
    before = {**_settings(spec), "seeds": info.get("seeds"), **record.get("budget", {})}
    now = {**_settings(plan.study.run(next(iter(plan.study.runs))).specification()), "seeds": [*plan.study.seeds]}
    now |= _tuning(plan.study.tune.budget if plan.study.tune.trials else None) if "budget" in record else {}
    for name in dict.fromkeys([*now, *before]):
        old, new = (_plain(values.get(name)) for values in (before, now))
        one_is_untuned = name.startswith("tune.") and not (name in before and name in now)
        if old != new and name not in record["tuned"] and not one_is_untuned:
            yield f"{name}: {_show(old)} there, {_show(new)} here"
    code_file = folder / "runs" / key / "code.json"
    code = read_json(code_file, REMEDY).get("metric") if code_file.is_file() else None
    if code and before.get("metric") == now.get("metric") and code != plan.metric_hash:
        yield f"metric: the code of {now['metric']}, or a value that it reads, was another there"


def _settings(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that all runs of a comparison share, by the names of the arguments of `fw.compare`."""
    evaluation = {key: value for key, value in (spec.get("evaluate") or {}).items() if key in EVALUATION}
    return flatten({**(spec.get("train") or {}), **(spec.get("task") or {}), "evaluate": evaluation})


def _read_tuning(folder: Path, key: str, spec: Mapping[str, Any]) -> dict[str, Any]:
    """`tuned`: names of the run's settings of the training that a search chose; `budget`: of the search.

    Without `budget` the run's method has nothing to search for.
    """
    best_file, trials_file = folder / f"{key}.json", folder / "trials" / f"{key}.json"
    best = read_json(best_file, "remove it")["best"] if best_file.is_file() else None
    stored = flatten({"train": spec.get("train") or {}, **(spec.get("method") or {})})
    if best is None or any(stored.get(name) != value for name, value in best.items()):
        return {"tuned": (), "budget": _tuning(None)}  # a file of a search that this run has not used
    tuned = [name.removeprefix("train.") for name in best if name.startswith("train.")]
    if not trials_file.is_file():
        return {"tuned": tuned}
    return {"tuned": tuned, "budget": _tuning(read_json(trials_file, "remove it").get("budget"))}


def _tuning(budget: Mapping[str, Any] | None) -> dict[str, Any]:
    return flatten({"tune": budget or {"trials": 0}})


def _plain(value: Any) -> Any:
    """`value` as it comes back from a file of JSON."""
    return json.loads(json.dumps(value, default=str))


def _show(value: Any) -> str:
    return ABSENT if value is None else format_value(value)
