"""The stale stages of DVC's graph, in an order in which they can run."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import networkx

from fedweave.errors import BadInput, Busy, choose, format_count
from fedweave.graphs import setting
from fedweave.study.spec import PARAMS, load, read_yaml

from ..launching import locking
from ..project import repository


class StaleStage(NamedTuple):
    """A stage to run: its address, the stale stages that it waits for, and whether it uses a GPU."""

    name: str
    needs: tuple[str, ...]
    gpu: bool


class StagePlan(NamedTuple):
    """The stages to run, and the number of all stages, with the unchanged ones."""

    stale: list[StaleStage]
    total: int

    def summary(self, updates: int) -> str:
        """The message after `updates` stages were brought up to date."""
        if not updates:
            return f"{format_count(self.total, 'stage')} unchanged"
        rest = f", {self.total - updates} unchanged" if updates < self.total else ""
        return f"{format_count(updates, 'stage')} brought up to date{rest}"


def stale_stages(targets: Sequence[str] = ()) -> list[StaleStage]:
    """The stages of `plan` that have to run."""
    return plan(targets).stale


def plan(targets: Sequence[str] = ()) -> StagePlan:
    """The stages that changed, or depend on one that did, in an order in which they can run.

    It waits while another command of DVC holds the lock of the project, as the stages of a flow do.

    Args:
        targets: only these stages, or groups such as `train`, and what they depend on; default: the whole graph.

    Raises:
        BadInput: DVC cannot read the project, a target is not a stage of dvc.yaml, or a run replays one that is not
            trained before it.
        Busy: another run is active in the project.
    """
    with repository(wait=True) as repo, _readable():
        graph = networkx.relabel_nodes(repo.index.graph, lambda stage: stage.addressing)
        gpu = {stage.addressing for stage in repo.index.stages if (stage.meta or {}).get("gpu")}
        changed = repo.status()
    content = read_yaml(PARAMS) if PARAMS.is_file() else {}
    if setting.stored_graphs(content):  # DVC's graph has no edge for them, only the order of stages
        from ..stages import graphs  # not above: it loads torch

        sources = graphs.replayed_runs(load(), str(PARAMS))
        graph.add_edges_from((f"train@{run}", f"train@{source}") for run, source in sources.items())
    if targets:
        selected = _check_targets(targets, graph)
        roots = [name for name in graph if selected & {name, _group(name)}]
        graph = graph.subgraph(set(roots).union(*(networkx.descendants(graph, name) for name in roots)))
    stale: dict[str, StaleStage] = {}
    for name in reversed(list(networkx.topological_sort(graph))):
        needs = tuple(sorted(stale.keys() & set(graph.successors(name))))
        if needs or name in changed:
            stale[name] = StaleStage(name, needs, name in gpu)
    return StagePlan(list(stale.values()), len(graph))


def check(targets: Sequence[str] = ()) -> None:
    """Refuse a project whose stages DVC cannot make from params.yaml and dvc.yaml, and unknown targets of `plan`."""
    read_yaml(PARAMS)
    with repository() as repo, _readable():
        names = [stage.addressing for stage in repo.index.graph]
    _check_targets(targets, names)


def check_groups(targets: Sequence[str]) -> None:
    """Refuse targets of a study that params.yaml does not hold yet, so that only the groups of its stages are known."""
    if targets:
        _check_targets([*map(_group, targets)], read_yaml(Path("dvc.yaml"))["stages"])


def _check_targets(targets: Sequence[str], stages: Collection[str]) -> set[str]:
    """The targets, each of which must be a stage or a group of stages."""
    return {choose(name, {*stages, *map(_group, stages)}, "targets") for name in targets}


@contextmanager
def _readable() -> Iterator[None]:
    """Turn DVC's errors about its files into a one-line BadInput."""
    from dvc.exceptions import DvcException
    from dvc.lock import LockError

    try:
        yield
    except LockError as error:  # a stage runs, which has a lock of its own, besides that of the project
        raise Busy(locking.busy_line()) from error
    except DvcException as error:
        files = "params.yaml (write it again: fedweave study use NAME --force), dvc.yaml or dvc.lock"
        raise BadInput(f"{Path.cwd()}: DVC cannot read the project: {error}; correct {files}") from error


def _group(name: str) -> str:
    """`train` of `train@digits-ditto`."""
    return name.partition("@")[0]
