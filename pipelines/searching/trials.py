"""What one trial is worth: the validation score of its repetitions and, on request, the bytes that they send.

A trial that has no chance is pruned: by rounds, where the median of earlier trials is better, and between two tuning
seeds, where Wilcoxon's signed-rank test finds it worse than the best trial on the same seeds and clients.
"""

import math
import warnings
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.pruners import WilcoxonPruner
from optuna.trial import FrozenTrial, TrialState, create_trial

from fedweave.runs import archive, repetition
from fedweave.runs.history import pad_scores
from fedweave.study.schema import TuneSpec

CLIENTS = "clients"  # attribute of a trial: for each seed, the reported validation score of every client
CURVE = "curve"  # attribute of a trial with two objectives, of which Optuna stores no intermediate values
FEWEST, EACH = 10, 3  # least finished trials, in all and per parameter, to attribute their spread to parameters
THRESHOLD = 0.05  # p below which a trial is significantly worse than the best one


class Repetition(NamedTuple):
    """The validation score of one repetition, that of every client [N] (NaN without validation rows), and all bytes."""

    score: float
    clients: list[float]
    bytes: int


def evaluate(prepared: repetition.PreparedRun, tune: TuneSpec, trial: optuna.Trial) -> list[float]:
    """One value for each objective: means over the tuning seeds.

    Raises:
        TrialPruned: an earlier trial is better, or a score is not finite.
        Diverged: a loss that is not finite.
    """
    done: list[Repetition] = []
    for number, seed in enumerate(tune.seeds):
        done.append(_repeat(prepared, seed, number * prepared.rounds, trial))
        if len(tune.seeds) > 1 or len(tune.objectives) > 1:
            trial.set_user_attr(CLIENTS, [one.clients for one in done])
        last = number + 1 == len(tune.seeds)
        if not last and prunes(tune) and is_significantly_worse(trial.study, [one.clients for one in done]):
            raise optuna.TrialPruned
    means = {"score": float(np.mean([one.score for one in done])), "bytes": float(np.mean([one.bytes for one in done]))}
    return [means[name] for name in tune.objectives]


def prunes(tune: TuneSpec) -> bool:
    """Whether trials may be cut short: not of a grid, which wants every value, and not where bytes count too."""
    return tune.sampler != "grid" and len(tune.objectives) == 1


def _repeat(prepared: repetition.PreparedRun, seed: int, offset: int, trial: optuna.Trial) -> Repetition:
    """One repetition; its rounds are the steps of the trial from `offset` on."""
    single = len(trial.study.directions) == 1
    curve: dict[str, float] = trial.user_attrs.get(CURVE, {})
    rows, score, clients, sent = list[list[float]](), math.nan, list[float](), 0
    for report in repetition.iterate_reports(prepared, seed):
        sent += report.bytes_up + report.bytes_down
        if report.scores:
            rows.append(report.scores[prepared.point]["val"].tolist())
            score, clients = _reported_scores(prepared, rows)
        if report.scores and math.isfinite(score):
            curve[str(offset + report.round)] = score
            if single:
                trial.report(score, offset + report.round)
        if single and trial.should_prune():
            raise optuna.TrialPruned
    if not math.isfinite(score):
        raise optuna.TrialPruned
    if not single:
        trial.set_user_attr(CURVE, curve)
    return Repetition(score, clients, sent)


def _reported_scores(prepared: repetition.PreparedRun, rows: list[list[float]]) -> tuple[float, list[float]]:
    """The mean and the validation score of each client [N] if the run ended after the evaluations `rows` [R, N].

    The run's own rule chooses the round, so a round in which a client lacks a finite score counts in neither place.
    """
    history = repetition.History(rounds=[*range(len(rows))], scores={f"{prepared.point}/val": rows})
    clients, judged = archive.select_scores(prepared, history, "val"), np.isfinite(pad_scores(rows)).any(0)
    return float(clients[judged].mean()) if judged.any() else math.nan, clients.tolist()


def is_significantly_worse(opened: optuna.Study, clients: Sequence[Sequence[float]]) -> bool:
    """Whether a trial is worse than the best finished one by Wilcoxon's signed-rank test over pairs of the same seed
    and client.

    Args:
        clients: [S, N], of the seeds that the trial has trained so far.
    """
    finished = [t for t in opened.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)) if CLIENTS in t.user_attrs]
    if not finished:
        return False
    higher = opened.direction == optuna.study.StudyDirection.MAXIMIZE
    best = (max if higher else min)(finished, key=lambda trial: trial.values[0])
    own, other = np.ravel(clients), np.ravel(best.user_attrs[CLIENTS][: len(clients)])
    both = np.isfinite(own) & np.isfinite(other)
    view = optuna.create_study(direction=opened.direction)  # Optuna's test is over steps, which are rounds in `opened`
    view.add_trial(create_trial(value=best.values[0], intermediate_values=dict(enumerate(other[both].tolist()))))
    trial = create_trial(state=TrialState.RUNNING, intermediate_values=dict(enumerate(own[both].tolist())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return WilcoxonPruner(p_threshold=THRESHOLD).prune(view, trial)


def choose_trial(opened: optuna.Study, finished: Sequence[FrozenTrial]) -> FrozenTrial:
    """The trial whose parameters training takes, out of `finished` ones, of which there is at least one.

    With one objective it is the one with the best score. With two it is, on the Pareto front, the one with the fewest
    bytes whose score is at most one standard error worse than the best score: of the differences between the two
    trials, averaged over seeds, over clients (the one-standard-error rule of Breiman et al., 1984, on pairs).
    """
    higher = opened.directions[0] == optuna.study.StudyDirection.MAXIMIZE
    best = (max if higher else min)(finished, key=lambda trial: trial.values[0])
    if len(opened.directions) == 1:
        return best
    sign = 1.0 if higher else -1.0
    near = [trial for trial in pareto_front(opened, finished) if _is_within_one_error(best, trial, sign)]
    return min(near or [best], key=lambda trial: (trial.values[1], -sign * trial.values[0]))


def pareto_front(opened: optuna.Study, finished: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials of the Pareto front: no other one has a score as good and bytes as few, and one of them better."""
    sign = 1.0 if opened.directions[0] == optuna.study.StudyDirection.MAXIMIZE else -1.0
    losses = {trial.number: (-sign * trial.values[0], trial.values[1]) for trial in finished}

    def is_dominated(mine: tuple[float, float]) -> bool:
        return any(other != mine and other[0] <= mine[0] and other[1] <= mine[1] for other in losses.values())

    return [trial for trial in finished if not is_dominated(losses[trial.number])]


def _is_within_one_error(best: FrozenTrial, trial: FrozenTrial, sign: float) -> bool:
    """Whether the loss of score against `best` is at most its standard error over clients."""
    pairs = np.array(best.user_attrs[CLIENTS]) - np.array(trial.user_attrs[CLIENTS])
    differences = sign * pairs[:, np.isfinite(pairs).all(axis=0)].mean(axis=0)
    if len(differences) < 2:
        return bool(trial.values[0] == best.values[0])
    return bool(differences.mean() <= differences.std(ddof=1) / math.sqrt(len(differences)))


def are_enough(finished: Sequence[FrozenTrial]) -> bool:
    """Whether there are so many finished trials that their spread says which parameters matter."""
    return len(finished) >= max(FEWEST, EACH * max((len(trial.params) for trial in finished), default=0))
