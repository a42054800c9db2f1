"""Toy tasks of `fedweave.testing`, and the methods of the package with settings that are quick on them."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from fedweave.client.solvers import SGD, Adam, Solver
from fedweave.client.task import Task
from fedweave.engine.clients import Clients
from fedweave.engine.protocol import Method
from fedweave.engine.schedule import Training
from fedweave.methods import METHODS
from fedweave.testing.federations import (
    CLASSES,
    CLIENTS,
    TASKS,
    nodes_federation,
    nodes_task,
    ring,
    rows_federation,
    rows_task,
    series_federation,
    series_task,
)

__all__ = [
    "CLASSES",
    "CLIENTS",
    "TASKS",
    "nodes_federation",
    "nodes_task",
    "ring",
    "rows_federation",
    "rows_task",
    "series_federation",
    "series_task",
]


def numbers(*shape: int) -> torch.Tensor:
    """Normal draws from torch's global generator, in double precision."""
    return torch.randn(*shape, dtype=torch.float64)


def seeded_numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    """Normal draws that are the same in every call, in double precision."""
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# Small and quick constructor arguments; a method without an entry has its defaults.
ARGUMENTS: dict[str, dict] = {
    "pfedhn": {"width": 16, "hidden": 1, "server_lr": 0.1},
    "ghn": {"width": 16, "hidden": 1, "channels": 6, "depth": 2, "server_lr": 0.02, "stage1_rounds": 2},
    "shn": {"width": 16, "hidden": 1, "channels": 6, "depth": 2, "stalk": 2, "server_lr": 0.02, "stage1_rounds": 2},
    "pfedla": {"vector_size": 8, "width": 8},
    "heurpfedla": {"vector_size": 8, "width": 8},
    "pfedgat": {"heads": 2, "head_width": 3},
    "fedsheafhn": {
        "width": 32,
        "channels": 4,
        "depth": 2,
        "dropout": 0.1,
        "enrol_epochs": 2,
        "refresh": 2,
        "lr_phi": 0.05,
    },
    "cfl": {"eps1": 10.0, "eps2": 0.0, "first_split": 1},
    "gcfl_plus": {"eps1": 10.0, "eps2": 0.0, "first_split": 1, "sequence": 2},
    "fedgta": {"threshold": 0.9, "orders": 3},
    "fedaux": {"tau": 3.0, "sigma": 1.0},
    "pefll": {"embed_width": 6, "width": 16, "hidden": 1, "server_lr": 0.03},
    "fedala": {"start_epochs": 2},
    "fedcp": {"lam": 0.5},
    "heurfedamp": {"sigma": 5.0, "alpha": 2.0},
    "fedsage": {"generator_rounds": 1, "width": 6, "narrow": 5, "wide": 8, "bank_size": 4, "most": 3},
    "fedpub": {"blocks": 2, "block_size": 10, "tau": 3.0},
    "panacea": {"width": 16, "hidden": 1, "channels": 6, "server_lr": 0.02, "stage1_rounds": 2},
    "pfedme": {"inner_steps": 3, "inner_lr": 0.05, "lam": 5.0},
    "ditto": {"personal_epochs": 2},
    "fedrep": {"head_epochs": 2},
    "fedamp": {"sigma": 20.0, "alpha": 2.0},
    "feddbe": {"kappa": 1.0, "momentum": 0.5},
    "fedem": {"components": 2},
}
# On images and nodes every client keeps its optimiser; on rows and series it has a new one in every round.
TRAINING = {
    "nodes": Training(batch_size=0, epochs=2, keep_optimizer=True),
    "images": Training(batch_size=8, epochs=2, keep_optimizer=True),
    "series": Training(batch_size=8, epochs=2),
}

SOLVERS: dict[str, Solver] = {"nodes": Adam(lr=0.02, weight_decay=5e-4), "images": SGD(lr=0.05, momentum=0.5)}

# Rounds after which a method has learnt the toy, if not the default.
ROUNDS_TO_LEARN: dict[str, int] = {"fedgta": 50, "fedpub": 50, "fedsheafhn": 30}
# Methods whose server starts from draws per client, and the settings that make them symmetric.
ASYMMETRIC: dict[str, dict] = {"fedsheafhn": {"dropout": 0.0}}


def equivariant(name: str) -> bool:
    """Whether a permutation of clients must change nothing."""
    return name not in ASYMMETRIC


def symmetric(method: Method) -> Method:
    """The method with every per-client draw made equal."""
    return replace(method, **ASYMMETRIC[next(n for n, cls in METHODS.items() if cls is type(method))])


def method(name: str, task: Task, kind: str, **overrides: object) -> Method:
    """The method called `name` on a toy task, ready to run."""
    solver = SOLVERS.get(kind, SGD(lr=0.1))
    training = TRAINING.get(kind, Training(batch_size=4, epochs=2))
    settings = {"solver": solver, "training": training, **ARGUMENTS.get(name, {}), **overrides}
    return METHODS[name](task=task, **settings)


# One method of each family, for tests of the engine on all methods.
FAMILIES = {
    "central",
    "ditto",
    "fedaghn",
    "fedamp",
    "fedavg_ft",
    "fedper",
    "fedproto",
    "fedpub",
    "fedsheafhn",
    "ifca",
    "knn_per",
    "pfedgat",
    "pfedhn",
    "pfedla",
    "scaffold",
    "sfl",
    "shn",
}


def pair(name: str, kind: str = "rows", **overrides: object) -> tuple[Method, Clients]:
    """A method on the toy task of a kind, and its federation."""
    task, federation = (make() for make in TASKS[kind])
    return method(name, task, kind, **overrides), federation


def sweep(name: str) -> list[pytest.MarkDecorator]:
    """The marks of a method in such a test: `make test` runs one method of each family, and `make acceptance` all."""
    return [] if name in FAMILIES else [pytest.mark.acceptance]


def suits(name: str, kind: str) -> bool:
    """Whether a method declares that it supports the toy task `kind`."""
    return METHODS[name].needs <= _capabilities(kind)


@cache
def _capabilities(kind: str) -> frozenset[str]:
    return TASKS[kind][0]().capabilities
