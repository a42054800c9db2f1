"""The rounds of a run in order: stages of the method, the round in which newcomers join, rounds of evaluation."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch

from fedweave.engine.clients import Clients
from fedweave.engine.protocol import Method, Stage
from fedweave.engine.records import Settings


@dataclass(frozen=True, eq=False)
class Timeline:
    """The events of each round; rounds are counted from 0 over all stages.

    Attributes:
        stages: a warm-up under another method, if there is one, then the method itself.
        everybody: all clients.
        settings: of the run; its `join_round` counts over all stages.
    """

    stages: tuple[Stage, ...]
    everybody: Clients
    settings: Settings

    @classmethod
    def of(cls, method: Method, federation: Clients, settings: Settings) -> "Timeline":
        """The timeline of a run of `method`; `join_round` of `settings` counts from the start of the last stage."""
        stages = tuple(method.at(settings.seed, 0).stages(settings.rounds))
        warm_up = sum(stage.rounds for stage in stages[:-1])
        join_round = settings.join_round and warm_up + settings.join_round
        return cls(stages, federation, replace(settings, join_round=join_round))

    @cached_property
    def rounds(self) -> int:
        """Number of rounds of all stages together."""
        return sum(stage.rounds for stage in self.stages)

    @cached_property
    def founders(self) -> Clients:
        """The clients that are present from the start."""
        if not self.settings.join_round:
            return self.everybody
        return self.everybody.select(torch.arange(self.everybody.clients - self.settings.newcomers))

    def federation(self, round: int) -> Clients:
        """The clients that are present in `round`."""
        return self.founders if round < self.settings.join_round else self.everybody

    def joins(self, round: int) -> bool:
        """Whether newcomers join before `round`."""
        return bool(self.settings.join_round) and round == self.settings.join_round

    def stage(self, round: int) -> tuple[Stage, bool]:
        """The stage of `round`, and whether this is its first round."""
        first = 0
        for stage in self.stages:
            if round < first + stage.rounds:
                return stage, round == first
            first += stage.rounds
        raise IndexError(f"round {round} is after the last stage")

    def evaluates(self, round: int) -> bool:
        """Whether scores are computed after `round`.

        A warm-up stage is not the method, so only rounds of the last stage may be evaluated and reported. Before any
        evaluated client has joined, there is nothing to score.
        """
        due = (round + 1) % self.settings.every == 0 or round + 1 == self.rounds
        in_last_stage = round >= self.rounds - self.stages[-1].rounds
        return due and in_last_stage and len(self.federation(round).sample) > 0

    def enrolments(self, rounds: int) -> int:
        """How often a founder has enrolled in the stages that began within `rounds` rounds."""
        stages = [
            stage
            for i, stage in enumerate(self.stages)
            if sum(s.rounds for s in self.stages[:i]) < rounds and (i == 0 or stage.handover)
        ]
        return sum(type(stage.method).enrol is not Method.enrol for stage in stages)
