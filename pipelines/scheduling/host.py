"""Resources that the stages of one flow run share on a host: child processes, and GPUs that they use in turn.

The errors by which stages and flows fail are here too.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, NamedTuple, ParamSpec, TypeVar

from prefect import Flow, State, Task
from prefect.states import Cancelled, Failed

from fedweave.errors import BadInput

from ..processes import PERMANENT_CODES, ChildProcesses
from .gpus import acquire_gpu

P = ParamSpec("P")
R = TypeVar("R")


class StageError(RuntimeError):
    """A stage ended with `code`; `line` is the line with the error, or the last one."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(code, line)
        self.code, self.line = code, line

    def __str__(self) -> str:
        return f"exit code {self.code}: {self.line or 'no error line'}"


class PermanentFailure(RuntimeError):
    """A failure that no retry can repair: the stage would fail again."""


class FailedStages(RuntimeError):
    """Stages of a flow failed; the message says how many, and why."""


EXPECTED = (BadInput, StageError, PermanentFailure, FailedStages)  # errors whose message is the whole answer


def is_permanent(error: object) -> bool:
    """Whether a stage that ended with `error` would end with it again, or shall not run again."""
    has_refused = isinstance(error, StageError) and error.code in PERMANENT_CODES
    return has_refused or isinstance(error, BadInput | PermanentFailure | InterruptedError)


def fail_in_one_line(function: Callable[P, R]) -> Callable[P, R | State[Any]]:
    """`function` of a flow or task, whose expected errors become failed states: Prefect logs a traceback of errors.

    The state has the error as its data. A plain call of such a task returns the state: see `call`. What ends because
    its flow does has not failed, but is cancelled.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R | State[Any]:
        try:
            return function(*args, **kwargs)
        except EXPECTED as error:
            return Failed(message=str(error), data=error)
        except InterruptedError as error:
            return Cancelled(message=str(error))

    return run


def call(task: Task[..., Any] | Flow[..., Any], *args: Any) -> None:
    """Run a task or a flow in this flow, and raise the error of its state if it fails. A plain call would return it."""
    state: Any = task(*args, return_state=True)
    if not state.is_completed():
        state.result()


class HostResources(NamedTuple):
    """Child processes, and the names of the GPUs that stages may use."""

    children: ChildProcesses
    gpus: tuple[str, ...] = ()

    @contextmanager
    def assign_gpu(self, needed: bool) -> Iterator[dict[str, str]]:
        """The environment that gives a stage one GPU of its own; empty if none is available."""
        if not needed or not self.gpus:
            yield {}
            return
        with acquire_gpu(self.gpus, self.children.pause) as name:
            yield {"CUDA_VISIBLE_DEVICES": name}


_RESOURCES: ContextVar[HostResources] = ContextVar("resources")


def set_resources(gpus: tuple[str, ...]) -> HostResources:
    """Set new resources for this thread and the threads that it starts, and return them."""
    resources = HostResources(ChildProcesses(), gpus)
    _RESOURCES.set(resources)
    return resources


def current_resources() -> HostResources:
    """The resources of the flow; new ones without GPUs for a task in another process."""
    return _RESOURCES.get(None) or HostResources(ChildProcesses())
