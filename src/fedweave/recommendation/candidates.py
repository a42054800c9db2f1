"""The candidates of a race: methods with settings, as the runs of a plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from fedweave.comparison.plan import Methods, Plan, plan, resolve_methods
from fedweave.engine.protocol import Method
from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.own_data.federation import Federation
from fedweave.runs.build import check_on_data
from fedweave.study import search_spaces, validate
from fedweave.study.spec import nest

# First the simple controls. Then one or two methods of each family: private heads, personal models, learned graphs.
DEFAULT = "local fedavg fedavg_ft fedper ditto pfedgraph heurfedamp"
CONTROLS = ("local", *DEFAULT.split()[1:3])  # part of every race and every last comparison
GRAPH = "graph"  # a method's setting that replaces the graph it learns
GRAPHS = ("uniform", "shuffled")  # graphs with which a learned one is compared


@dataclass(frozen=True)
class Candidate:
    """A method with settings.

    Attributes:
        name: of its run.
        entry: the method as the user listed it; candidates of one entry differ in settings alone.
        method: its name in `METHODS`.
        settings: as `set` of a run: the method's own, and those of training as "train.lr".
    """

    name: str
    entry: str
    method: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def entries(methods: Methods | None) -> dict[str, Candidate]:
    """The methods of the race with their declared settings; the controls are always among them.

    Raises:
        BadInput: a method is unknown, is listed twice, or trains on pooled rows.
    """
    resolved = resolve_methods(DEFAULT.split() if methods is None else methods)
    missing = [name for name in CONTROLS if name not in {method for method, _ in resolved.values()}]
    resolved = {**resolve_methods(missing), **resolved} if missing else resolved
    for name, (method, _) in resolved.items():
        if METHODS[method].pools:
            raise BadInput(f"methods: {name!r} is a control that is always there in the end; leave it out")
    return {name: Candidate(name, name, method, options) for name, (method, options) in resolved.items()}


def incompatible_entries(
    federation: Federation, entries: Mapping[str, Candidate], options: Mapping[str, Any]
) -> dict[str, str]:
    """Entry -> why its method does not fit the federation; empty if all of them fit.

    Raises:
        BadInput: the arguments are wrong for every method: the plan of local training alone is refused.
    """
    refused: dict[str, str] = {}
    build_plan(federation, [entries[name] for name in entries if entries[name].method == CONTROLS[0]], options)
    for name, candidate in entries.items():
        try:
            build_plan(federation, [candidate], options)
        except BadInput as error:
            refused[name] = str(error)
    return refused


def build_plan(
    federation: Federation, candidates: Sequence[Candidate], options: Mapping[str, Any], central: bool = False
) -> Plan:
    """The plan that trains `candidates`; `options` are those of `plan`.

    Raises:
        BadInput: as `plan`.
    """
    methods: Methods = {candidate.name: _build_method(candidate) for candidate in candidates}
    declared = plan(federation, methods, title="recommend()", central=central, **options)
    settings = {f"{federation.name}-{candidate.name}": candidate.settings for candidate in candidates}
    runs = {
        key: replace(item, set={**item.set, **nest(settings.get(key, {}))}) for key, item in declared.study.runs.items()
    }
    study = replace(declared.study, runs=runs)
    validate.check(study, declared.title, partial(check_on_data, inputs=declared.inputs))
    return replace(declared, study=study)


def _build_method(candidate: Candidate) -> Method:
    """The method with those of its settings that have no default; `build_plan` adds the others."""
    cls = METHODS[candidate.method]
    return cls(**{name: candidate.settings[name] for name in cls.required_settings() if name in candidate.settings})


def propose_rates(declared: Plan, entries: Sequence[Candidate], count: int) -> list[Candidate]:
    """Candidates of every entry with `count` learning rates, the declared one first and near ones before others.

    Args:
        declared: a plan with a run for each entry.
        entries: the methods.
        count: candidates of each that has a learning rate.
    """
    if count == 1:
        return [*entries]
    proposals: list[Candidate] = []
    for candidate in entries:
        train = declared.study.run(f"{declared.federation.name}-{candidate.name}").train
        has_rate = search_spaces.has_rate(candidate.method)
        values = search_spaces.rates(train, search_spaces.RATE_COUNT)[:count] if has_rate else []
        named = [candidate.name, *(f"{candidate.name}-s{number}" for number in range(2, len(values) + 1))]
        settings = [{**candidate.settings, search_spaces.RATE: value} for value in values] or [{**candidate.settings}]
        proposals += [replace(candidate, name=n, settings=s) for n, s in zip(named, settings, strict=True)]
    return proposals


def propose(declared: Plan, entries: Sequence[Candidate], count: int) -> list[Candidate]:
    """`count` candidates of every entry: its declared settings, and others that Optuna draws from the search space.

    Every entry has the same number of candidates and the same learning rates.

    Args:
        declared: a plan with a run for each entry.
        entries: the methods.
        count: candidates of each.

    Raises:
        BadInput: more than one is wanted and Optuna is not installed.
    """
    if count == 1:
        return [*entries]
    try:
        from fedweave.search.proposals import points
    except ImportError as error:
        remedy = "pip install 'fedweave[search]', or use settings=1"
        raise BadInput(f"settings: {count} for each method need Optuna ({error}); {remedy}") from error
    proposals: list[Candidate] = []
    for candidate in entries:
        proposals.append(candidate)
        others = points(declared.study, f"{declared.federation.name}-{candidate.name}", count - 1)
        for number, point in enumerate(others, 2):
            settings = {**candidate.settings, **point}
            proposals.append(replace(candidate, name=f"{candidate.name}-s{number}", settings=settings))
    return proposals


def graph_controls(candidate: Candidate) -> list[Candidate]:
    """The candidate with a uniform and with a shuffled graph in place of the learned one; empty if it learns none."""
    cls = METHODS[candidate.method]
    # Without own_graphs, the setting names the graph between clients that a hypernetwork starts from.
    if not hasattr(cls, "own_graphs") or GRAPH in candidate.settings:
        return []
    return [
        replace(candidate, name=f"{candidate.entry}-{graph}", settings={**candidate.settings, GRAPH: graph})
        for graph in GRAPHS
    ]
