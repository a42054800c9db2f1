"""The race: successive halving over rounds, and paired elimination over seeds and clients, on validation rows alone.

Successive halving (Jamieson and Talwalkar, AISTATS 2016): every rung trains fewer candidates for more rounds. Within a
method the better half of its settings goes on. A method goes on if its best candidate is not significantly worse than
the best of all, and is in the better half.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.api.compare import perform
from fedweave.api.federation import Federation
from fedweave.api.progress import Callback
from fedweave.errors import Diverged
from fedweave.recommendation.candidates import CONTROLS, Candidate, build_plan
from fedweave.results import statistics

SHARES = (0.25, 0.5)  # of the rounds, one rung each
SEEDS = (2000, 2001)  # of the race; none of them is a seed of the results
EVALUATIONS = 10  # of a run in the race
LEAST = 3  # methods besides the controls that a rung leaves, unless they are significantly worse
COLUMNS = ["rung", "rounds", "method", "candidate", "settings", "validation", "seconds", "mib", "outcome"]


@dataclass(frozen=True, eq=False)
class Rung:
    """What one rung of the race trained.

    Attributes:
        rounds: of every candidate.
        table: one row per candidate, best first; `outcome` says what became of it.
        left: the candidates that go on.
    """

    rounds: int
    table: pd.DataFrame
    left: tuple[Candidate, ...]


@dataclass(frozen=True, eq=False)
class Race:
    """A race on a federation without its test rows.

    Attributes:
        federation: as `blind` makes it.
        options: of `plan`, without rounds and seeds.
        train: settings of training, rounds among them.
        folder: a folder for each rung.
        traffic: bytes that a training of all rounds may send.
        progress, callbacks: as of `compare`.
    """

    federation: Federation
    options: Mapping[str, Any]
    train: Mapping[str, Any]
    folder: Path
    traffic: float = math.inf
    progress: bool = True
    callbacks: Sequence[Callback] = ()

    def rung_rounds(self, share: float) -> int:
        """Of a rung with a share of the rounds."""
        return max(1, math.ceil(share * self.train["rounds"]))

    def train_rung(self, number: int, share: float, candidates: Sequence[Candidate]) -> Rung:
        """Train `candidates` and say which of them go on.

        Raises:
            Diverged: none of them got anywhere.
        """
        rounds = self.rung_rounds(share)
        every = max(1, rounds // EVALUATIONS)
        judged = {**self.options.get("evaluate", {}), "every": every, "models": False, "predictions": False}
        options = {**self.options, "evaluate": judged, "seeds": SEEDS, "train": {**self.train, "rounds": rounds}}
        made = build_plan(self.federation, candidates, options)
        place = self.folder / f"rung-{number}"
        try:
            perform(made, place, True, self.progress, self.callbacks, drawn=False)
        except Diverged as error:
            raise Diverged(f"no candidate of the race got anywhere: {error}") from error
        study = results.load_study(place, made.study.runs)
        return self._evaluate_rung(number, rounds, candidates, study)

    def _evaluate_rung(self, number: int, rounds: int, candidates: Sequence[Candidate], study: results.Study) -> Rung:
        runs = {run.name.removeprefix(f"{run.task}-"): run for run in study.runs}
        scores = results.average_parts(
            {name: results.validation_scores(run) for name, run in runs.items()}, results.part_numbers([*runs.values()])
        )
        means = {name: mean for name, mean in results.validation_means(runs).items() if math.isfinite(mean)}
        higher = study.runs[0].higher_is_better
        sent = {name: float(run.totals["bytes_up"] + run.totals["bytes_down"]) for name, run in runs.items()}
        too_much = {name for name, total in sent.items() if total / rounds * self.train["rounds"] > self.traffic}
        outcome = outcomes(candidates, scores, means, higher, too_much)
        by_name = {one.name: one for one in candidates}
        order = results.best_first({name: means.get(name, math.nan) for name in by_name}, higher)
        rows = [
            {
                "rung": number, "rounds": rounds, "method": one.entry, "candidate": one.name,
                "settings": format_settings(one.settings), "validation": means.get(one.name, math.nan),
                "seconds": float(runs[one.name].totals["seconds"]) if one.name in runs else math.nan,
                "mib": sent.get(one.name, math.nan) / results.MIB, "outcome": outcome[one.name],
            }
            for one in map(by_name.__getitem__, order)
        ]  # fmt: skip
        left = tuple(one for one in candidates if outcome[one.name] == GOES_ON)
        return Rung(rounds, pd.DataFrame(rows, columns=COLUMNS), left)


GOES_ON = "goes on"
DIVERGED, TRAFFIC = "diverged", "sends more than the budget"
SETTINGS, WORSE, HALF = "other settings are better", "significantly worse", "in the worse half"


def outcomes(
    candidates: Sequence[Candidate],
    scores: Mapping[str, np.ndarray],
    means: Mapping[str, float],
    higher: bool,
    too_much: set[str],
) -> dict[str, str]:
    """Candidate -> what becomes of it after a rung.

    Controls always go on, with the better half of their settings, also above the budget of traffic: they are what the
    others are compared with.

    Args:
        scores: validation values [S, N] by candidate, a column for each part; none of one that diverged.
        means: their means.
        too_much: candidates that send more than the budget allows.
    """
    sign = 1.0 if higher else -1.0
    outcome = {one.name: GOES_ON if one.name in means else DIVERGED for one in candidates}
    control = {one.name: one.method in CONTROLS for one in candidates}
    outcome |= {name: TRAFFIC for name in too_much if outcome[name] == GOES_ON and not control[name]}
    best: dict[str, Candidate] = {}
    for entry in dict.fromkeys(one.entry for one in candidates):
        mine = [one for one in candidates if one.entry == entry and outcome[one.name] == GOES_ON]
        mine.sort(key=lambda one: -sign * means[one.name])
        outcome |= {one.name: SETTINGS for one in mine[math.ceil(len(mine) / 2) :]}
        best |= {entry: mine[0]} if mine else {}
    if not best:
        return outcome
    ranked = sorted(best.values(), key=lambda one: -sign * means[one.name])
    worse = _find_worse(ranked, scores, higher)
    rivals = [one for one in ranked if not control[one.name] and one.name not in worse]
    half = {one.name for one in rivals[max(LEAST, math.ceil(len(rivals) / 2)) :]}
    for one in ranked:
        verdict = WORSE if one.name in worse else HALF if one.name in half else ""
        if verdict and not control[one.name]:
            outcome |= {other.name: verdict for other in candidates
                        if other.entry == one.entry and outcome[other.name] == GOES_ON}  # fmt: skip
    return outcome


def _find_worse(ranked: Sequence[Candidate], scores: Mapping[str, np.ndarray], higher: bool) -> set[str]:
    """Those that are significantly worse than the first one, by the corrected paired test over clients."""
    first, *others = ranked
    shared = np.logical_and.reduce([np.isfinite(scores[one.name]).all(0) for one in ranked])
    if not others or shared.sum() < 2:
        return set()
    values = {one.name: scores[one.name][:, shared] for one in ranked}
    tests = statistics.compare_pairs(values, [(first.name, one.name) for one in others], higher)
    return {test.other for test in tests if test.better == first.name}


def best_candidates(running: Sequence[Candidate], table: pd.DataFrame) -> list[Candidate]:
    """The best candidate of every method, best method first by the `table` of a rung; its name is the method's."""
    by_name = {one.name: one for one in running}
    entries: dict[str, Candidate] = {}
    for name in table["candidate"]:
        if name in by_name:
            entries.setdefault(by_name[name].entry, by_name[name])
    return [replace(one, name=entry) for entry, one in entries.items()]


def format_settings(settings: Mapping[str, Any]) -> str:
    """Settings as a text; empty for the declared ones."""
    words = (f"{name.removeprefix('train.')}={_format_value(value)}" for name, value in settings.items())
    return ", ".join(words)


def _format_value(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)
