"""Resources that the stages of one flow run share on a host: child processes, and GPUs that they use in turn.

The errors by which stages and flows fail are here too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from fedweave.pipelines.processes import ChildProcesses
from fedweave.pipelines.scheduling.gpus import acquire_gpu


class StageError(RuntimeError):
    """A stage ended with `code`; `line` is the line with the error, or the last one."""

    def __init__(self, code: int, line: str) -> None:
        super().__init__(code, line)
        self.code, self.line = code, line

    def __str__(self) -> str:
        return f"exit code {self.code}: {self.line or 'no error line'}"


class PermanentFailure(RuntimeError):
    """A failure that no retry can repair: the stage would fail again, or its flow has ended."""


class FailedStages(RuntimeError):
    """Stages of a flow failed; the message says how many, and why."""


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
