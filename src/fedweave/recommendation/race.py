"""The race: successive halving over rounds, on validation rows alone.

Successive halving (Jamieson and Talwalkar, AISTATS 2016): every rung trains fewer candidates for more rounds. Within a
method the better half of its settings continues. A method continues if its best candidate is in the better half.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedweave import results
from fedweave.comparison.compare import perform
from fedweave.comparison.progress import Callback
from fedweave.errors import Diverged
from fedweave.own_data.federation import Federation
from fedweave.recommendation.candidates import CONTROLS, Candidate, build_plan
from fedweave.search.scores import choose_first

SHARES = (0.25, 0.5)  # of the rounds; one for each rung
SEEDS = (2000, 2001)  # of the race; the last comparison uses others
EVALUATIONS = 10  # of a run in the race
MIN_METHODS = 3  # that continue besides the controls
# outcomes of a candidate
GOES_ON = "goes on"
DIVERGED, TRAFFIC = "diverged", "sends more than the budget"
SETTINGS, HALF = "other settings are better", "in the worse half"
COLUMNS = ["rung", "rounds", "method", "candidate", "settings", "validation", "seconds", "mib", "outcome"]


@dataclass(frozen=True, eq=False)
class Race:
    """A race on a federation without its test rows.

    Attributes:
        federation: without test rows, from `drop_test_rows`.
        options: arguments of `plan`, without rounds and seeds.
        train: settings of training, rounds among them.
        folder: a folder for each rung.
        traffic: bytes that a training of all rounds may send.
        rates: whether candidates of a method differ in the learning rate alone, the declared one first. The last rung
            then leaves the first of those that are not worse than the best by more than noise, as in `search.rates`.
        progress, callbacks: as of `compare`.
    """

    federation: Federation
    options: Mapping[str, Any]
    train: Mapping[str, Any]
    folder: Path
    traffic: float = math.inf
    rates: bool = False
    progress: bool = True
    callbacks: Sequence[Callback] = ()

    def rung_rounds(self, share: float) -> int:
        """Number of rounds of a rung with a share of all rounds."""
        return max(1, math.ceil(share * self.train["rounds"]))

    def train_rung(self, number: int, share: float, candidates: Sequence[Candidate]) -> tuple[list[str], pd.DataFrame]:
        """Train `candidates` and decide which of them continue: (their names, a table of all of them, best first).

        Raises:
            Diverged: all of them diverged.
        """
        rounds = self.rung_rounds(share)
        every = max(1, rounds // EVALUATIONS)
        evaluation = {**self.options.get("evaluate", {}), "every": every, "models": False, "predictions": False}
        options = {**self.options, "evaluate": evaluation, "seeds": SEEDS, "train": {**self.train, "rounds": rounds}}
        plan = build_plan(self.federation, candidates, options)
        rung_folder = self.folder / f"rung-{number}"
        try:
            perform(plan, rung_folder, True, self.progress, self.callbacks, figures=False)
        except Diverged as error:
            raise Diverged(f"every candidate of the race diverged: {error}") from error
        study = results.load_study(rung_folder, plan.study.runs)
        return self._evaluate_rung(number, rounds, candidates, study)

    def _evaluate_rung(
        self, number: int, rounds: int, candidates: Sequence[Candidate], study: results.Study
    ) -> tuple[list[str], pd.DataFrame]:
        runs = {run.name.removeprefix(f"{run.task}-"): run for run in study.runs}
        means = {name: mean for name, mean in results.validation_means(runs).items() if math.isfinite(mean)}
        higher_is_better = study.runs[0].higher_is_better
        sent_bytes = {name: float(run.totals["bytes_up"] + run.totals["bytes_down"]) for name, run in runs.items()}
        too_much = {name for name, total in sent_bytes.items() if total / rounds * self.train["rounds"] > self.traffic}
        outcome = outcomes(candidates, means, higher_is_better, too_much)
        if self.rates and number == len(SHARES):
            validation = {name: results.validation_scores(run) for name, run in runs.items()}
            scores = results.average_parts(validation, results.part_numbers([*runs.values()]))
            outcome |= dict.fromkeys(_find_other_rates(candidates, outcome, scores, means, higher_is_better), SETTINGS)
        by_name = {candidate.name: candidate for candidate in candidates}
        order = results.best_first({name: means.get(name, math.nan) for name in by_name}, higher_is_better)
        rows = [
            {
                "rung": number,
                "rounds": rounds,
                "method": candidate.entry,
                "candidate": candidate.name,
                "settings": format_settings(candidate.settings),
                "validation": means.get(candidate.name, math.nan),
                "seconds": float(runs[candidate.name].totals["seconds"]) if candidate.name in runs else math.nan,
                "mib": sent_bytes.get(candidate.name, math.nan) / results.MIB,
                "outcome": outcome[candidate.name],
            }
            for candidate in map(by_name.__getitem__, order)
        ]
        remaining = [candidate.name for candidate in candidates if outcome[candidate.name] == GOES_ON]
        return remaining, pd.DataFrame(rows, columns=COLUMNS)


def _find_other_rates(
    candidates: Sequence[Candidate],
    outcome: Mapping[str, str],
    scores: Mapping[str, np.ndarray],
    means: Mapping[str, float],
    higher_is_better: bool,
) -> list[str]:
    """Names of candidates that go on, of whose methods another candidate is taken.

    Args:
        scores: validation values [S, N] by candidate, with a column for each part.
        means, higher_is_better: as of `outcomes`.
    """
    others: list[str] = []
    for entry in dict.fromkeys(candidate.entry for candidate in candidates):
        group = [one.name for one in candidates if one.entry == entry and outcome[one.name] == GOES_ON]
        if group:
            taken = choose_first(group, means.__getitem__, scores.__getitem__, higher_is_better)
            others += [name for name in group if name != taken]
    return others


def outcomes(
    candidates: Sequence[Candidate], means: Mapping[str, float], higher_is_better: bool, too_much: set[str]
) -> dict[str, str]:
    """Candidate -> its outcome after a rung.

    Controls always continue with the better half of their settings, even above the budget of traffic, because the
    others are compared with them.

    Args:
        means: validation scores by candidate; a diverged candidate has none.
        too_much: candidates that send more than the budget allows.
    """
    sign = 1.0 if higher_is_better else -1.0
    outcome = {candidate.name: GOES_ON if candidate.name in means else DIVERGED for candidate in candidates}
    is_control = {candidate.name: candidate.method in CONTROLS for candidate in candidates}
    outcome |= {name: TRAFFIC for name in too_much if outcome[name] == GOES_ON and not is_control[name]}
    best: dict[str, Candidate] = {}
    for entry in dict.fromkeys(candidate.entry for candidate in candidates):
        group = [one for one in candidates if one.entry == entry and outcome[one.name] == GOES_ON]
        group.sort(key=lambda candidate: -sign * means[candidate.name])
        outcome |= {candidate.name: SETTINGS for candidate in group[math.ceil(len(group) / 2) :]}
        best |= {entry: group[0]} if group else {}
    if not best:
        return outcome
    ranked = sorted(best.values(), key=lambda candidate: -sign * means[candidate.name])
    competitors = [candidate for candidate in ranked if not is_control[candidate.name]]
    worse_half = {candidate.entry for candidate in competitors[max(MIN_METHODS, math.ceil(len(competitors) / 2)) :]}
    outcome |= {one.name: HALF for one in candidates if one.entry in worse_half and outcome[one.name] == GOES_ON}
    return outcome


def best_candidates(candidates: Sequence[Candidate], table: pd.DataFrame) -> list[Candidate]:
    """The best candidate of every method, best method first by the `table` of a rung; its name is the method's."""
    by_name = {candidate.name: candidate for candidate in candidates}
    entries: dict[str, Candidate] = {}
    for name in table["candidate"]:
        if name in by_name:
            entries.setdefault(by_name[name].entry, by_name[name])
    return [replace(candidate, name=entry) for entry, candidate in entries.items()]


def format_settings(settings: Mapping[str, Any]) -> str:
    """Settings as a text; empty for the declared ones."""
    words = {name: f"{value:.3g}" if isinstance(value, float) else str(value) for name, value in settings.items()}
    return ", ".join(f"{name.removeprefix('train.')}={word}" for name, word in words.items())
