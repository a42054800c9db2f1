"""A control of the graph that has no effect: the scores would be those of the learned graph, under its name."""

from collections.abc import Iterator
from contextlib import contextmanager

from fedweave.errors import BadInput
from fedweave.graphs.controls import GraphControl


class ControlWatch:
    """Whether training or evaluation has asked a control for weights, in any round, as a graph may begin late.

    Calls that only record the graph do not count: they are outside of `observe`.
    """

    used = False

    @contextmanager
    def observe(self, control: GraphControl | None) -> Iterator[None]:
        """Context of a round or an evaluation."""
        if control is None:
            yield
            return
        control.asked.clear()
        yield
        self.used |= bool(control.asked)

    def check(self, name: str, control: GraphControl | None) -> None:
        """Refuse a control that the method `name` has never used.

        Raises:
            BadInput: it has not.
        """
        if control is not None and not self.used:
            raise BadInput(
                name,
                "the control of its graph has no effect on the training; pass all weights through self.controlled, "
                "both to use and to record them",
            )
