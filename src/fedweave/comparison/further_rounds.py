"""Further rounds of a finished training: with clients that join it, or with more rows."""

import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from fedweave import results
from fedweave.comparison.results_folder import check_description, results_folder, write_description
from fedweave.engine.clients import Clients
from fedweave.engine.records import State
from fedweave.errors import BadInput
from fedweave.files.atomic import save_tensors
from fedweave.own_data.argument_checks import check_flag
from fedweave.own_data.federation import Federation
from fedweave.results import Run, Study
from fedweave.runs import archive, repetition, serving
from fedweave.runs.build import PreparedRun, check_all_codes
from fedweave.runs.history import History, record
from fedweave.study import spec

LARGEST = 2**28  # bytes of a server and its clients' states that are stored
STATE = "state-{}.pt"


def store_state(checkpoints: Path, run: spec.RunSpec, seed: int, state: State) -> None:
    """Store the state of the server and the clients after the last round beside the checkpoints, unless too large.

    The folder of the run may hold the results of an earlier training until this one is written.
    """
    from fedweave.tensors import trees

    if trees.nbytes(state.server) + trees.nbytes(state.clients) <= LARGEST:
        save_tensors(_state_path(checkpoints, run, seed), {"state": trees.to_cpu(tuple(state))})


def find_stored_states(checkpoints: Path, run: spec.RunSpec) -> dict[str, Path]:
    """The stored states of a run: name of the file in its results -> path beside the checkpoints."""
    files = {STATE.format(seed): _state_path(checkpoints, run, seed) for seed in run.seeds}
    return {name: file for name, file in files.items() if file.is_file()}


def keep_states(run_folder: Path, checkpoints: Path, run: spec.RunSpec) -> None:
    """Put the states in the results of a run beside its checkpoints, for the results that replace them."""
    for seed in run.seeds:
        source, target = run_folder / STATE.format(seed), _state_path(checkpoints, run, seed)
        if source.is_file():
            target.unlink(missing_ok=True)
            try:
                os.link(source, target)
            except OSError:  # a file system without links
                shutil.copyfile(source, target)


def _state_path(checkpoints: Path, run: spec.RunSpec, seed: int) -> Path:
    return checkpoints / f"{run.fingerprint()}-{STATE.format(seed)}"


def go_on(
    finished: Run,
    federation: Federation,
    newcomers: int,
    rounds: int,
    out: Any,
    model: Any = None,
    *,
    freeze: bool = False,
    keep_state: bool = False,
) -> tuple[Study, Any]:
    """Further rounds of a run, from the state that it ended with.

    Args:
        federation: prepared as that of the run, whose clients come first, in their order.
        newcomers: how many clients of it, the last ones, the run did not have.
        freeze: the server does not learn any more.
        keep_state: store the state after these rounds, from which others may go on.

    Returns:
        (study with the longer run, temporary folder or None).

    Raises:
        BadInput: the state of the run is not stored, or the method divides its rounds into stages.
    """
    run, trained = parse_run(finished, federation), finished.info["spec"]["train"]["rounds"]
    train = replace(
        run.train, rounds=trained + rounds, newcomers=newcomers, join_round=trained if newcomers else 0, freeze=freeze
    )
    prepared = repetition.prepare(replace(run, train=train), federation.dataset, federation.partition, model)
    prepared = replace(prepared, federation=_set_evaluated_clients(prepared.federation, finished, newcomers))
    if model is not None:
        task, name = prepared.method.task, run.task.model["name"]
        check_all_codes(task, run.task.normalize, federation.dataset, federation.partition, name)
    with results_folder(out) as (folder, temporary):
        write_description(federation, folder, check_description(federation, folder))
        histories, states = {}, folder / spec.STATE / "states"
        for seed in run.seeds:
            state = read_state(finished.folder / STATE.format(seed), prepared, rounds)
            histories[seed], last = train_on(prepared, seed, state)
            if keep_state:
                store_state(states, prepared.run, seed, last)
        others = find_stored_states(states, prepared.run)
        archive.write(folder / "runs" / run.key, prepared, histories, others=others)
    return Study(run.study, folder, (results.load_run(folder / "runs" / run.key),), ()), temporary


def parse_run(finished: Run, federation: Federation) -> spec.RunSpec:
    """The settings of a run, for the rows of `federation`."""
    run, metric = serving.parse_run(dict(finished.info)), finished.info["metric"]
    rows = {"partition": dict(federation.partition_block), "normalize": federation.normalize}
    return replace(run, task=replace(run.task, metric=metric, **rows))


def _set_evaluated_clients(federation: Clients, run: Run, newcomer_count: int) -> Clients:
    """`federation` with the clients that are evaluated: those of the training, and all newcomers."""
    if "evaluated" not in run.info:
        return replace(federation, evaluated=None)
    evaluated = torch.zeros(federation.clients, dtype=torch.bool)
    evaluated[run.evaluated_clients] = True
    evaluated[federation.clients - newcomer_count :] = True
    return replace(federation, evaluated=evaluated)


def check_join(run: Run, federation: Federation, rounds: int, freeze: bool) -> None:
    """Refuse what `MethodResult.join` cannot do, before any work.

    Raises:
        BadInput: naming the argument, or why no client can join the run.
    """
    check_flag(freeze, "freeze")
    if isinstance(rounds, bool) or not isinstance(rounds, int) or rounds < 1:
        raise BadInput(f"rounds: {rounds!r} must be a whole number, at least 1")
    if not isinstance(federation, Federation) or [*federation.names] != run.client_names:
        raise BadInput("join: federation= is not that of the training, as it has other clients; give that one")
    if run.has_splits:
        raise BadInput(
            "join: every repetition has a split of its own, and test rows of one are training rows of another; "
            "train with `seed` in place of `seeds`"
        )
    if run.info["spec"]["train"].get("newcomers"):
        raise BadInput("join: clients have joined this run already; train all of them from the start")


def check_groups(run: Run, federation: Federation, extended: Federation) -> None:
    """Refuse newcomers without a group where the run's graph is that of the true groups."""
    lost = federation.partition.group is not None and extended.partition.group is None
    if lost and parse_run(run, federation).options.get("graph") == "oracle":
        raise BadInput("join: the run has the graph of the true groups (graph: oracle); give group= of the newcomers")


def read_state(file: Path, prepared: PreparedRun, rounds: int | None = None) -> State:
    """The state of the server and the clients after a training.

    Args:
        rounds: that `prepared` adds to it, if all of them are to follow.

    Raises:
        BadInput: it was not stored or is damaged, or its rounds are not those before the last `rounds`.
    """
    if not file.is_file():
        problem = f"the server's state is not stored (fw.compare and fw.fit store up to {LARGEST // 2**20} MiB)"
        raise BadInput(str(file), f"{problem}; train again, or train with newcomers= and join_round=")
    state = State(*serving.read_stored(file)["state"])
    if rounds is not None and state.round + rounds != prepared.rounds:
        raise BadInput("join", "the method divides its rounds into stages; train with newcomers= and join_round=")
    from torch.utils._pytree import tree_map

    return State(*tree_map(lambda t: t.to(prepared.device) if hasattr(t, "to") else t, tuple(state)))


def train_on(prepared: PreparedRun, seed: int, state: State | None, last: int | None = None) -> tuple[History, State]:
    """(history of the rounds after `state`, the state after them), up to the round `last`; default: all rounds."""
    history = History()
    for report in repetition.iterate_reports(prepared, seed, state):
        history, state = record(history, report, prepared), report.state
        if report.round == last:
            break
    assert state is not None
    return history, state
