"""Search spaces: the parameters of a search and their values, checked before any trial."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fedweave.errors import BadInput, choose, format_value
from fedweave.graphs.setting import is_control
from fedweave.methods import METHODS
from fedweave.settings import Choices, Setting, describe
from fedweave.study.config import construct
from fedweave.study.schema import TrainSpec
from fedweave.study.spec import RunSpec, StudySpec

RATE = "train.lr"
RATES = "rates"  # the sampler that searches the learning rate alone
# One value in so many is above the declared one. The best rate of sgd grows with the inverse of the loss's curvature,
# which depends on the scales of inputs and models: it may be ten times larger or smaller. Adam divides by the size of
# the gradient, so that a step is about the rate itself: rates far above usual ones fail on all data, and a rate that is
# usual for sgd is far too large for Adam. So its grid goes down rather than up.
ABOVE = {"sgd": 2, "adam": 4}
RATE_COUNT = 5  # of a call that names no search
FORMS = "give either low and high (with log or step, if needed), or choices"


@dataclass(frozen=True, kw_only=True)
class Range:
    """Numbers from `low` to `high`, both included; `log` spreads them by magnitude, `step` keeps multiples only."""

    low: float
    high: float
    log: bool = False
    step: float | None = None


def derive_space(method: str) -> dict[str, dict[str, Any]]:
    """The space of a method as its class and the local solver's describe it: name -> entry of `tune.spaces`."""
    return {name: setting.space.entry() for name, setting in _parameters(method).items() if setting.space}


def entries(study: StudySpec, key: str) -> dict[str, Any]:
    """The declared entries for a run, without the settings that the run itself fixes.

    Empty if the search of another run gives the values (`find_source_run`).
    """
    if find_source_run(study, key) != key:
        return {}
    item = study.runs[key]
    fixed = {f"train.{name}" for name in item.set.get("train", {})} | {*item.set}
    if study.tune.sampler == RATES:
        searched = RATE not in fixed and has_rate(item.method)
        return {RATE: {"choices": rates(study.run(key).train, study.tune.trials)}} if searched else {}
    return {name: entry for name, entry in (study.tune.spaces.get(item.method) or {}).items() if name not in fixed}


def has_search(study: StudySpec, key: str) -> bool:
    """Whether settings of a run are searched for."""
    return bool(study.tune.trials and entries(study, key))


def has_rate(method: str) -> bool:
    """Whether the clients of a method have a learning rate: not where they draw no minibatches. A method whose code is
    not loaded, as where results are read, is taken to have one.
    """
    return method not in METHODS or METHODS[method].epochs != 0


def rates(train: TrainSpec, count: int) -> list[float]:
    """`count` learning rates on a logarithmic grid around the declared one, which is the first; near ones come first.

    >>> from types import SimpleNamespace
    >>> rates(SimpleNamespace(lr=0.05, optimizer="sgd"), 5)
    [0.05, 0.158114, 0.0158114, 0.5, 0.005]
    """
    if train.lr <= 0:
        return [train.lr]
    above = count // ABOVE[train.optimizer]
    halves = sorted(range(above + 1 - count, above + 1), key=lambda half: (abs(half), -half))  # of a decade
    return [float(f"{train.lr * 10 ** (half / 2):.6g}") if half else train.lr for half in halves]


def find_source_run(study: StudySpec, key: str) -> str:
    """The run whose search gives the values of the run `key`, by default itself.

    For a control of the graph, it is the run with the same settings and a graph of the method itself. So a learned
    graph and its controls differ in the graph alone.
    """
    run = study.run(key)
    if not _has_control(run):
        return key
    for other_key, item in study.runs.items():
        if (item.task, item.method) == (study.runs[key].task, run.method):
            other = study.run(other_key)
            if not _has_control(other) and _settings_without_graph(other) == _settings_without_graph(run):
                return other_key
    return key


def select_values(study: StudySpec, key: str, best: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The tuned values of a run; `best` has the best values of the searches, by run."""
    source = find_source_run(study, key)
    return {name: value for name, value in best.get(source, {}).items() if source == key or name != "graph"}


def _has_control(run: RunSpec) -> bool:
    return is_control(str(run.options.get("graph", "")))


def _settings_without_graph(run: RunSpec) -> tuple[Any, ...]:
    return run.train, {name: value for name, value in run.options.items() if name != "graph"}


def declared_values(study: StudySpec, key: str) -> dict[str, Any]:
    """The values of a run without tuning, for the parameters of its space. They are always the first trial."""
    run = study.run(key)
    settings = METHODS[run.method].__dataclass_fields__
    values = {name: run.options.get(name, getattr(settings.get(name), "default", None)) for name in entries(study, key)}
    return values | {
        name: getattr(run.train, name.removeprefix("train.")) for name in values if name.startswith("train.")
    }


def describe_search(study: StudySpec, key: str) -> dict[str, Any]:
    """The settings of a run's search besides its budget: each parameter's entry and its value without tuning."""
    values = declared_values(study, key)
    return {name: {"entry": entry, "declared": values[name]} for name, entry in entries(study, key).items()}


def check(study: StudySpec, where: str) -> None:
    """Refuse spaces of unknown methods and parameters, without any value, or without the declared value."""
    if study.tune.sampler == RATES and any(study.tune.spaces.values()):
        method = next(method for method, space in study.tune.spaces.items() if space)
        raise BadInput(
            f"{where}: tune.spaces.{method}: {RATES} searches the learning rate alone; leave the space out, or choose "
            "another tune.sampler"
        )
    for method, space in study.tune.spaces.items():
        choose(method, METHODS, f"{where}: tune.spaces")
        check_space(method, space, f"{where}: tune.spaces.{method}", study.tune.sampler)
    for key in study.runs if study.tune.trials else ():
        _check_ranges(study, key, where)


def check_space(method: str, space: object, where: str, sampler: str = "tpe") -> None:
    """Refuse a space of `method` with an unknown parameter, or with a value that its parameter cannot have."""
    space = {} if space is None else space
    if not isinstance(space, Mapping):
        raise BadInput(where, f"{format_value(space)} is not a mapping of parameters to ranges")
    parameters = _parameters(method)
    for name, entry in space.items():
        setting = parameters[choose(name, parameters, where)]
        for value in _values(entry, f"{where}.{name}", sampler):
            setting.check(value, f"{where}.{name}")
        if setting.is_whole and isinstance(step := entry.get("step"), float):
            raise BadInput(f"{where}.{name}.step", f"{step!r} is not a whole number, as the values are; change it")


def takes_whole_numbers(method: str, name: str) -> bool:
    """Whether the numbers of a parameter are whole ones, however the ends of its range are written."""
    return _parameters(method)[name].is_whole


def _parameters(method: str) -> dict[str, Setting]:
    """The settings that a search may vary: all but the rounds, of which a trial trains the declared share."""
    solver = {f"train.{setting.name}": setting for setting in describe(TrainSpec) if setting.name != "rounds"}
    solver = solver if METHODS[method].has_models else {}
    return solver | {setting.name: setting for setting in METHODS[method].settings()}


def _values(entry: Any, where: str, sampler: str) -> list[Any]:
    """The values that an entry names: its choices, or the ends of its range."""
    if not isinstance(entry, Mapping) or ("choices" in entry) == bool({"low", "high"} & {*entry}):
        raise BadInput(where, f"{entry!r} is not a space; {FORMS}")
    if "choices" in entry:
        values = list(construct(Choices, entry, where).choices)
        if not values or not all(value is None or isinstance(value, bool | int | float | str) for value in values):
            raise BadInput(f"{where}.choices", f"{values!r} must be numbers, texts, true, false or null, at least one")
        return values
    bounds = construct(Range, entry, where)
    if bounds.low > bounds.high:
        raise BadInput(where, f"low {bounds.low:g} is above high {bounds.high:g}; swap them")
    if bounds.log and bounds.low <= 0:
        raise BadInput(where, f"log needs numbers above 0, and low is {bounds.low:g}; raise it, or leave log out")
    if bounds.step is not None and (bounds.log or bounds.step <= 0):
        raise BadInput(where, f"step {bounds.step:g} must be above 0 and without log; change it, or leave it out")
    if sampler == "grid":
        raise BadInput(where, f"{entry!r} is a range, and tune.sampler grid takes choices; give some, or use tpe")
    return [entry["low"], entry["high"]]


def _check_ranges(study: StudySpec, key: str, where: str) -> None:
    """Refuse ranges that cannot contain the value without tuning; the search widens a range to contain that value."""
    values = declared_values(study, key)
    for name, entry in entries(study, key).items():
        value = values[name]
        where_space = f"{where}: tune.spaces.{study.runs[key].method}.{name}"
        if "choices" not in entry and (not isinstance(value, int | float) or (entry.get("log") and value <= 0)):
            raise BadInput(
                where_space, f"{entry!r} cannot hold {value!r}, which runs.{key} has without tuning; change one of them"
            )
        if (step := entry.get("step")) and not _is_multiple(value - entry["low"], step):
            raise BadInput(
                where_space,
                f"steps of {step:g} from {entry['low']:g} do not reach {value!r}, which runs.{key} has without tuning; "
                "change one of them, or give choices",
            )


def _is_multiple(distance: float, step: float) -> bool:
    return abs(distance / step - round(distance / step)) < 1e-6
