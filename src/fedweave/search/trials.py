"""The values of one trial: the validation score of its repetitions and, on request, the bytes that they send.

A bad trial is pruned: after a round, if the median of earlier trials is better; between two tuning seeds, if Wilcoxon's
signed-rank test finds it worse than the best trial on the same seeds and clients.
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

from fedweave.runs import repetition
from fedweave.search.scores import is_within_one_error, reported_scores
from fedweave.study.schema import TuneSpec

CLIENTS = "clients"  # attribute of a trial: for each seed, the reported validation score of every client
CURVE = "curve"  # attribute of a trial with two objectives, of which Optuna stores no intermediate values
MIN_TRIALS, MIN_TRIALS_PER_PARAMETER = 10, 3  # finished trials that importances of parameters need
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
    repetitions: list[Repetition] = []
    for number, seed in enumerate(tune.seeds):
        repetitions.append(_repeat(prepared, seed, number * prepared.rounds, trial))
        if len(tune.seeds) > 1 or len(tune.objectives) > 1:
            trial.set_user_attr(CLIENTS, [r.clients for r in repetitions])
        is_last = number + 1 == len(tune.seeds)
        if not is_last and prunes(tune) and is_significantly_worse(trial.study, [r.clients for r in repetitions]):
            raise optuna.TrialPruned
    means = {
        "score": float(np.mean([r.score for r in repetitions])),
        "bytes": float(np.mean([r.bytes for r in repetitions])),
    }
    return [means[name] for name in tune.objectives]


def prunes(tune: TuneSpec) -> bool:
    """Whether trials may be pruned: not in a grid, which needs every value, and not with bytes as an objective."""
    return tune.sampler != "grid" and len(tune.objectives) == 1


def _repeat(prepared: repetition.PreparedRun, seed: int, offset: int, trial: optuna.Trial) -> Repetition:
    """Run one repetition; its rounds are the steps of the trial from `offset` on."""
    single = len(trial.study.directions) == 1
    curve: dict[str, float] = trial.user_attrs.get(CURVE, {})
    rows, score, clients, sent = list[list[float]](), math.nan, list[float](), 0
    for report in repetition.iterate_reports(prepared, seed):
        sent += report.bytes_up + report.bytes_down
        if report.scores:
            rows.append(report.scores[prepared.point]["val"].tolist())
            score, clients = reported_scores(prepared, rows)
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


def is_significantly_worse(optuna_study: optuna.Study, clients: Sequence[Sequence[float]]) -> bool:
    """Whether a trial is worse than the best finished one by Wilcoxon's signed-rank test over pairs of the same seed
    and client.

    Args:
        clients: [S, N], of the seeds that the trial has trained so far.
    """
    finished = [
        t for t in optuna_study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,)) if CLIENTS in t.user_attrs
    ]
    if not finished:
        return False
    higher = optuna_study.direction == optuna.study.StudyDirection.MAXIMIZE
    best = (max if higher else min)(finished, key=lambda trial: trial.values[0])
    own, other = np.ravel(clients), np.ravel(best.user_attrs[CLIENTS][: len(clients)])
    is_paired = np.isfinite(own) & np.isfinite(other)
    # Optuna's test pairs steps, which are rounds in `optuna_study`; in this study, they are pairs of seed and client.
    comparison = optuna.create_study(direction=optuna_study.direction)
    comparison.add_trial(
        create_trial(value=best.values[0], intermediate_values=dict(enumerate(other[is_paired].tolist())))
    )
    trial = create_trial(state=TrialState.RUNNING, intermediate_values=dict(enumerate(own[is_paired].tolist())))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return WilcoxonPruner(p_threshold=THRESHOLD).prune(comparison, trial)


def choose_trial(optuna_study: optuna.Study, finished: Sequence[FrozenTrial]) -> FrozenTrial:
    """The trial whose parameters training takes, out of at least one of `finished`.

    With one objective, it has the best score. With two objectives, it has the fewest bytes among the trials whose score
    is at most one standard error worse than the best score. The standard error is that of the differences between the
    two trials over clients, averaged over seeds (the one-standard-error rule of Breiman et al., 1984, on pairs).
    """
    higher = optuna_study.directions[0] == optuna.study.StudyDirection.MAXIMIZE
    best = (max if higher else min)(finished, key=lambda trial: trial.values[0])
    if len(optuna_study.directions) == 1:
        return best
    sign = 1.0 if higher else -1.0

    def is_close(trial: FrozenTrial) -> bool:
        return is_within_one_error(best.user_attrs[CLIENTS], trial.user_attrs[CLIENTS], higher)

    candidates = [trial for trial in pareto_front(optuna_study, finished) if is_close(trial)]
    return min(candidates or [best], key=lambda trial: (trial.values[1], -sign * trial.values[0]))


def pareto_front(optuna_study: optuna.Study, finished: Sequence[FrozenTrial]) -> list[FrozenTrial]:
    """The trials of the Pareto front: no other trial is at least as good in score and bytes, and better in one."""
    sign = 1.0 if optuna_study.directions[0] == optuna.study.StudyDirection.MAXIMIZE else -1.0
    losses = {trial.number: (-sign * trial.values[0], trial.values[1]) for trial in finished}

    def is_dominated(loss: tuple[float, float]) -> bool:
        return any(other != loss and other[0] <= loss[0] and other[1] <= loss[1] for other in losses.values())

    return [trial for trial in finished if not is_dominated(losses[trial.number])]


def are_enough(finished: Sequence[FrozenTrial]) -> bool:
    """Whether there are enough finished trials for the importances of parameters."""
    return len(finished) >= max(
        MIN_TRIALS, MIN_TRIALS_PER_PARAMETER * max((len(trial.params) for trial in finished), default=0)
    )
