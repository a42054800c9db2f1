"""Clients that join after training: their rows, prepared as those of training were, and the rounds that follow."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from fedweave import data, results
from fedweave.api import arrays, graphs, rows
from fedweave.api.federation import Federation
from fedweave.api.folder import results_folder
from fedweave.api.folder import write_description as describe
from fedweave.api.options import RowOptions, row_options
from fedweave.api.tables import Preprocessing
from fedweave.data import Dataset, Partition
from fedweave.data.partitions.splits import PARTS
from fedweave.errors import BadInput
from fedweave.federation.federation import Federation as Clients
from fedweave.federation.records import State
from fedweave.files import load_tensors, save_tensors
from fedweave.runs import archive, repetition, serving
from fedweave.runs.history import History, record
from fedweave.runs.preparation import PreparedRun
from fedweave.study.spec import Run

if TYPE_CHECKING:
    from fedweave.api.result import MethodResult

LARGEST = 2**28  # bytes of a server and its clients' states that are stored
STATE = "state-{}.pt"


@dataclass(frozen=True)
class NewcomerData:
    """Rows of newcomers, as `Federation.from_pandas`, `from_arrays` or `from_graphs` takes them.

    Attributes:
        rows: a table, features [M, ...], or a graph for each newcomer.
        client: name of a column, or the client of each row; None for graphs without a table.
        label: name of a column, or the target of each row; None for graphs without a table.
        options: such as time, split and shares.
        edges: of a table of nodes.
        node: the column with the names of nodes.
    """

    rows: Any
    client: Any
    label: Any
    options: dict[str, Any]
    edges: Any = None
    node: str = "node"


def store_state(checkpoints: Path, run: Run, seed: int, state: State) -> None:
    """Keep what the server and the clients know after the last round beside the checkpoints, unless it is very large.

    The folder of the run may hold the results of an earlier training until this one is written.
    """
    from fedweave.runs.assembly import to_cpu
    from fedweave.tensors import trees

    if trees.nbytes(state.server) + trees.nbytes(state.clients) <= LARGEST:
        save_tensors(_state_path(checkpoints, run, seed), {"state": to_cpu(tuple(state))})


def find_stored_states(checkpoints: Path, run: Run) -> dict[str, Path]:
    """What `store_state` has kept of a run: name of the file in its results -> where it lies."""
    files = {STATE.format(seed): _state_path(checkpoints, run, seed) for seed in run.seeds}
    return {name: file for name, file in files.items() if file.is_file()}


def _state_path(checkpoints: Path, run: Run, seed: int) -> Path:
    return checkpoints / f"{run.fingerprint()}-{STATE.format(seed)}"


def add_newcomers(federation: Federation, arrivals: NewcomerData) -> Federation:
    """`federation` with more clients behind the others; what was fitted on its training rows stays as it is.

    Raises:
        BadInput: rows of another form, a class that training did not have, or the name of a client that is there.
    """
    if federation.dataset.kind == "series" or federation.partition.test_weight is not None:
        raise BadInput(f"join: {federation.name} holds {federation.dataset.kind}; newcomers need rows of their own")
    graph = federation.dataset.kind == "graph"
    fresh, encoded = (_encode_graphs if graph else _encode_rows)(federation, arrivals)
    twice = [name for name in fresh.names if name in federation.names]
    if twice:
        raise BadInput(f"join: client {twice[0]!r} is there already; give newcomers other names")
    partition = _extend_partition(federation, fresh)
    dataset = _extend_dataset(federation, fresh, encoded)
    return replace(
        federation, dataset=dataset, partition=partition, dealt=arrays.partition_block(dataset, partition),
        normalize=_freeze_scaling(federation), preprocessing=_preprocessing(dataset), notes=(),
    )  # fmt: skip


def _extend_partition(federation: Federation, fresh: Federation) -> Partition:
    """The partition with the newcomers' rows, or nodes, behind the others."""
    count, old, new = len(federation.dataset.x), federation.partition, fresh.partition
    if old.nodes is None:
        parts = {part: getattr(old, part) + tuple(rows + count for rows in getattr(new, part)) for part in PARTS}
    else:  # parts and edges number the nodes of a client
        parts = {part: getattr(old, part) + getattr(new, part) for part in (*PARTS, "edges")}
        parts["nodes"] = old.nodes + tuple(nodes + count for nodes in new.nodes or ())
    units = _units(federation, fresh)
    return Partition(**parts, relation=old.relation, names=federation.names + fresh.names, units=units)


def _units(federation: Federation, fresh: Federation) -> tuple[str, ...]:
    """Units of all clients; a newcomer may be of the unit of another client.

    Raises:
        BadInput: only the newcomers have units, or only the others.
    """
    old, new = federation.partition.units, fresh.partition.units
    if bool(old) != bool(new):
        whose, way = ("training", "give unit= of the newcomers") if old else ("newcomers", "leave unit= out")
        raise BadInput(f"join: only the clients of {whose} have units; {way}")
    return old + new


def _options(federation: Federation, arrivals: NewcomerData) -> RowOptions:
    """How the newcomers' rows are read and split; they need not have every class."""
    return replace(row_options(arrivals.options), name=federation.name, least_classes=1)


def _encode_graphs(federation: Federation, arrivals: NewcomerData) -> tuple[Federation, np.ndarray]:
    """The newcomers' graphs as a federation of their own, and their nodes as those of training were encoded."""
    options = _options(federation, arrivals)
    own = federation.preprocessing
    if (own is None) != (arrivals.edges is None):
        way = "no tables; leave edges= out" if own is None else "a table of nodes; give one, and edges="
        raise BadInput(f"join: {federation.name} was made from {way}")
    if own is None:
        fresh = Federation(**graphs.fields_from_graphs(arrivals.rows, options))
        return fresh, fresh.dataset.x
    used, client, label = (
        [column.name for column in own.columns],
        arrivals.client or "client",
        arrivals.label or "label",
    )
    fresh = Federation(
        **graphs.fields_from_tables(arrivals.rows, arrivals.edges, arrivals.node, client, label, used, options, own)
    )
    return fresh, fresh.dataset.x


def _encode_rows(federation: Federation, arrivals: NewcomerData) -> tuple[Federation, np.ndarray]:
    """The newcomers as a federation of their own, and their rows as those of training were encoded."""
    if arrivals.client is None or arrivals.label is None:
        raise BadInput("join: rows need client= and label=, names of columns or one value for each row")
    task: dict[str, Any] = {"target": "numbers"} if federation.dataset.targets_are == "numbers" else {}
    channels = federation.dataset.channels
    if channels:
        task = {"window": federation.shape[0], "horizon": federation.dataset.outputs // len(channels)}
    options = replace(_options(federation, arrivals), **task)
    if federation.preprocessing is None and not hasattr(arrivals.rows, "columns"):
        fresh = Federation(**rows.fields_from_arrays(arrivals.rows, arrivals.label, arrivals.client, options))
        return fresh, fresh.dataset.x
    used = [column["name"] for column in federation.dataset.columns if column.get("role") != "time"]
    if federation.preprocessing is None:
        others = rows.TableOptions(used[len(channels) :])
        fresh = Federation(**rows.fields_from_table(arrivals.rows, arrivals.client, arrivals.label, others, options))
        return fresh, fresh.dataset.x
    own = federation.preprocessing
    words = {c.name: list(c.words) or c.buckets for c in own.columns if c.is_text}
    coded = any(column.coded for column in own.columns)
    way = rows.TableOptions(used, coded or None, "client", words)
    fresh = Federation(**rows.fields_from_table(arrivals.rows, arrivals.client, arrivals.label, way, options))
    assert fresh.preprocessing is not None
    pairs = zip(own.columns, fresh.preprocessing.columns, strict=True)
    grown = Preprocessing(tuple(replace(old, own=old.own + new.own) if old.own else old for old, new in pairs))
    owner = np.zeros(len(arrivals.rows), dtype=np.int64)
    for i in range(len(fresh)):
        owner[np.concatenate([getattr(fresh.partition, part)[i] for part in PARTS])] = len(federation) + i
    return replace(fresh, preprocessing=grown), arrays.as_images(grown.encode(arrivals.rows, owner))


def _extend_dataset(federation: Federation, fresh: Federation, encoded: np.ndarray) -> Dataset:
    old, new = federation.dataset, fresh.dataset
    if encoded.shape[1:] != old.x.shape[1:] or old.targets_are != new.targets_are or old.channels != new.channels:
        raise BadInput(
            f"join: rows of shape {[*encoded.shape[1:]]} with {new.targets_are}, but training had {[*old.x.shape[1:]]} "
            f"with {old.targets_are}"
        )
    x = np.concatenate([old.x, encoded])
    columns = old.columns if fresh.preprocessing is None else tuple(fresh.preprocessing.as_data())
    if old.targets is not None and new.targets is not None:
        return replace(old, x=x, targets=np.concatenate([old.targets, new.targets]), columns=columns)
    unknown = [name for name in fresh.classes if name not in federation.classes]
    if unknown:
        raise BadInput(f"join: class {unknown[0]!r} was not in training, so no model knows it; drop its rows")
    place = np.array([federation.classes.index(name) for name in fresh.classes])
    edges = None if old.edges is None else np.concatenate([old.links, new.links + len(old.x)], axis=1)
    return replace(old, x=x, y=np.concatenate([old.labels, place[new.labels]]), columns=columns, edges=edges)


def _preprocessing(dataset: Dataset) -> Preprocessing | None:
    return None if not dataset.columns or "role" in dataset.columns[0] else Preprocessing.from_data(dataset.columns)


def _freeze_scaling(federation: Federation) -> Any:
    """The scaling of training with its numbers, so that newcomers change nothing of it."""
    arrivals = federation.normalize
    block = dict(arrivals) if isinstance(arrivals, Mapping) else {"name": arrivals}
    if block["name"] == "standard":
        scaling = data.fit_scaling(federation.dataset, federation.partition, arrivals)
        pair = (part.ravel().astype(float).tolist() for part in (scaling.subtracted, scaling.divisor))
        block |= dict(zip(("mean", "std"), pair, strict=True))
    if federation.dataset.targets_are == "numbers" and block.get("targets", "pooled") == "pooled":
        offset, unit = data.fit_units(federation.dataset, federation.partition, arrivals)
        block["targets"] = {"offset": offset[0].astype(float).tolist(), "unit": unit[0].astype(float).tolist()}
    return block if len(block) > 1 else arrivals


def join(
    result: "MethodResult", federation: Federation, arrivals: NewcomerData, rounds: int, freeze: bool, out: Any
) -> Any:
    """Further rounds with the newcomers; see `MethodResult.join`."""
    from fedweave.api.comparison import Comparison

    _check(result, federation, rounds)
    grown = add_newcomers(federation, arrivals)
    run = serving.parse_run(dict(result.run.info))
    task = replace(run.task, metric=result.run.info["metric"], partition=dict(grown.dealt), normalize=grown.normalize)
    before = result.run.info["spec"]["train"]["rounds"]
    late = len(grown) - len(federation)
    train = replace(run.train, rounds=before + rounds, newcomers=late, join_round=before, freeze=freeze)
    prepared = repetition.prepare(
        replace(run, task=task, train=train), grown.dataset, grown.partition, result.comparison.model
    )
    prepared = replace(prepared, federation=_set_evaluated_clients(prepared.federation, result.run, late))
    with results_folder(out) as (folder, temporary):
        histories = {
            seed: _continue_training(prepared, seed, _load_state(result, seed, prepared, rounds)) for seed in run.seeds
        }
        describe(grown, folder)
        archive.write(folder / "runs" / run.key, prepared, histories)
    study = results.Study(run.study, folder, (results.load_run(folder / "runs" / run.key),), ())
    done = Comparison(study, (), temporary, result.comparison.model, grown)
    return done[next(iter(done.methods))]


def _set_evaluated_clients(federation: Clients, run: results.Run, late: int) -> Clients:
    """`federation` with the clients that are evaluated: those of the training, and all newcomers."""
    if "evaluated" not in run.info:
        return replace(federation, evaluated=None)
    evaluated = torch.zeros(federation.clients, dtype=torch.bool)
    evaluated[run.evaluated_clients] = True
    evaluated[federation.clients - late :] = True
    return replace(federation, evaluated=evaluated)


def _check(result: "MethodResult", federation: Federation, rounds: int) -> None:
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise BadInput(f"rounds: {rounds!r} must be a whole number, at least 1")
    if federation.names != result.clients:
        raise BadInput(
            f"join: {federation.name} has other clients than the run; give federation= the one of the training"
        )
    if result.run.has_splits:
        raise BadInput(
            "join: every repetition has a split of its own, and test rows of one are training rows of another; "
            "train with `seed` in place of `seeds`"
        )
    if result.run.info["spec"]["train"].get("newcomers"):
        raise BadInput("join: clients have joined this run already; train all of them from the start")


def _load_state(result: "MethodResult", seed: int, prepared: PreparedRun, rounds: int) -> State:
    """What the server and the clients knew after training.

    Raises:
        BadInput: it was not stored.
    """
    path = result.run.folder / STATE.format(seed)
    if not path.is_file():
        raise BadInput(
            f"{path}: the server's state is not stored (fw.compare and fw.fit store up to {LARGEST // 2**20} MiB); "
            "train again, or train with newcomers= and join_round="
        )
    state = State(*load_tensors(path)["state"])
    if state.round + rounds != prepared.rounds:
        raise BadInput("join: this method divides its rounds into stages; train with newcomers= and join_round=")
    from torch.utils._pytree import tree_map

    return State(*tree_map(lambda t: t.to(prepared.device) if hasattr(t, "to") else t, tuple(state)))


def _continue_training(prepared: PreparedRun, seed: int, state: State) -> History:
    history = History()
    for report in repetition.iterate_reports(prepared, seed, state):
        history = record(history, report, prepared)
    return history
