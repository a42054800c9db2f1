"""Methods with generated models on the toy tasks, and their states after some rounds."""

import tiny
import torch

from fedweave.engine.clients import Clients
from fedweave.engine.engine import run
from fedweave.engine.executors import Loop
from fedweave.engine.records import Settings, State
from fedweave.families import GeneratedModels
from fedweave.methods import METHODS

EVERYBODY = torch.arange(tiny.CLIENTS)


GENERATED = {
    name: "rows" if tiny.suits(name, "rows") else "nodes"
    for name, cls in METHODS.items()
    if issubclass(cls, GeneratedModels)
}


def fixture(name: str, rounds: int = 2, kind: str = "", **overrides: object) -> tuple[GeneratedModels, Clients, State]:
    """The method of the last stage and the state after some rounds of every stage."""
    kind = kind or GENERATED[name]
    task, federation = (make() for make in tiny.TASKS[kind])
    method = tiny.method(name, task, kind, **overrides)
    *_, report = run(method, federation, Settings(rounds=rounds, seed=2), Loop())
    return report.method, federation, report.state
