"""What the stages of one flow run share on a host: its child processes and the GPUs that they take turns on."""

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


_SITE: ContextVar[HostResources] = ContextVar("site")


def set_resources(gpus: tuple[str, ...]) -> HostResources:
    """A new site, for this thread and those it starts."""
    site = HostResources(ChildProcesses(), gpus)
    _SITE.set(site)
    return site


def current_resources() -> HostResources:
    """The flow's site, or one of its own for a task in another process."""
    return _SITE.get(None) or HostResources(ChildProcesses())
