"""The candidates of a race: methods with settings, as the runs of a plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedweave.api.federation import Federation
from fedweave.api.plan import Methods, Plan, plan, resolve_methods
from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.runs import assembly
from fedweave.study.spec import RunEntry, nest

# Simple controls first, then one method of each family: private heads, a personal model with a penalty, weaving.
DEFAULT = "local fedavg fedavg_ft fedper ditto pfedgraph heurfedamp"
CONTROLS = ("local", *DEFAULT.split()[1:3])  # always there, in the race and in the end
GRAPH = "graph"  # a method's setting that replaces the graph it learns
GRAPHS = ("uniform", "shuffled")  # what a learned graph is compared with


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
    """What races, with its declared settings; the controls are always there.

    Raises:
        BadInput: a method is unknown, is there twice, or trains on pooled rows.
    """
    named = resolve_methods(DEFAULT.split() if methods is None else methods)
    missing = [name for name in CONTROLS if name not in {method for method, _ in named.values()}]
    named = {**resolve_methods(missing), **named} if missing else named
    for name, (method, _) in named.items():
        if METHODS[method].pools:
            raise BadInput(f"methods: {name!r} is a control that is always there in the end; leave it out")
    return {name: Candidate(name, name, method, options) for name, (method, options) in named.items()}


def incompatible_entries(
    federation: Federation, entered: Mapping[str, Candidate], options: Mapping[str, Any]
) -> dict[str, str]:
    """Entry -> why its method does not fit the federation; empty where all do.

    Raises:
        BadInput: no fault of a method, but of the arguments: what the plan of local training alone refuses.
    """
    refused: dict[str, str] = {}
    build_plan(federation, [entered[name] for name in entered if entered[name].method == CONTROLS[0]], options)
    for name, candidate in entered.items():
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
    methods: Methods = {one.name: one.method for one in candidates}
    made = plan(federation, methods, title="recommend()", central=central, **options)
    settings = {f"{federation.name}-{one.name}": one.settings for one in candidates}
    runs = {key: _add_settings(item, settings.get(key, {})) for key, item in made.study.runs.items()}
    study = replace(made.study, runs=runs)
    assembly.check(study, made.title, made.inputs)
    return replace(made, study=study)


def _add_settings(item: RunEntry, settings: Mapping[str, Any]) -> RunEntry:
    return replace(item, set={**item.set, **nest(settings)})


def propose(made: Plan, entered: Sequence[Candidate], count: int) -> list[Candidate]:
    """`count` candidates of every entry: its declared settings, and others that Optuna draws from the search space.

    Every entry has the same number of candidates and the same learning rates.

    Raises:
        BadInput: more than one is wanted and Optuna is not installed.
    """
    if count == 1:
        return [*entered]
    try:
        from fedweave.pipelines.searching.proposals import points
    except ImportError as error:
        way = "pip install 'fedweave[pipeline]', or use settings=1"
        raise BadInput(f"settings: {count} for each method need Optuna ({error}); {way}") from error
    proposals: list[Candidate] = []
    for one in entered:
        drawn = points(made.study, f"{made.federation.name}-{one.name}", count - 1)
        others = ({**one.settings, **point} for point in drawn)
        proposals += [one, *(replace(one, name=f"{one.name}-s{i}", settings=s) for i, s in enumerate(others, 2))]
    return proposals


def graph_controls(candidate: Candidate) -> list[Candidate]:
    """The candidate with a uniform and with a shuffled graph in place of the one it learns; empty if it has no such
    setting.
    """
    cls = METHODS[candidate.method]
    # Without own_graphs, the setting names the graph between clients that a hypernetwork starts from.
    if not hasattr(cls, "own_graphs") or GRAPH in candidate.settings:
        return []
    return [
        replace(candidate, name=f"{candidate.entry}-{graph}", settings={**candidate.settings, GRAPH: graph})
        for graph in GRAPHS
    ]
