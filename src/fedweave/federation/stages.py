"""The stages of a method in the order of rounds: a warm-up under another method, then the method itself."""

from fedweave.federation.protocol import Method, Stage


def enrolments(stages: list[Stage], rounds: int) -> int:
    """How often a client that took part from the start enrolled, in the stages that began within `rounds` rounds."""
    opened = [
        stage
        for i, stage in enumerate(stages)
        if sum(s.rounds for s in stages[:i]) < rounds and (i == 0 or stage.handover)
    ]
    return sum(type(stage.method).enrol is not Method.enrol for stage in opened)


def stage_at(stages: list[Stage], round: int) -> tuple[Stage, bool]:
    """The stage of `round`, and whether this round opens it."""
    first = 0
    for stage in stages:
        if round < first + stage.rounds:
            return stage, round == first
        first += stage.rounds
    raise IndexError(f"round {round} is after the last stage")
