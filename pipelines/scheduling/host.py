"""What the stages of one flow run share on a host: its child processes and the GPUs that they take turns on.

A module of its own, because Ray copies the functions of a flow's module together with everything they name.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple

from fedweave.pipelines.processes import Children
from fedweave.pipelines.scheduling.gpus import borrow


class Site(NamedTuple):
    """Child processes, and the names of the GPUs that stages may use."""

    children: Children
    gpus: tuple[str, ...] = ()

    @contextmanager
    def device(self, needed: bool) -> Iterator[dict[str, str]]:
        """The environment that gives a stage one GPU of its own; empty if none is available."""
        if not needed or not self.gpus:
            yield {}
            return
        with borrow(self.gpus, self.children.pause) as name:
            yield {"CUDA_VISIBLE_DEVICES": name}


_SITE: ContextVar[Site] = ContextVar("site")


def enter(gpus: tuple[str, ...]) -> Site:
    """A new site, for this thread and those it starts."""
    site = Site(Children(), gpus)
    _SITE.set(site)
    return site


def current() -> Site:
    """The flow's site, or one of its own for a task in another process."""
    return _SITE.get(None) or Site(Children())
