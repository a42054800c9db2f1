"""Which runs can be a federation of real hosts, and why others cannot."""

from typing import NoReturn

from fedweave.engine.protocol import Method
from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.metrics import METRICS
from fedweave.models import MODELS
from fedweave.study import plugins
from fedweave.study.spec import RunSpec

POOLS = "one party trains on the rows of all clients"


def unsupported_reason(method: Method) -> str:
    """Why the server of `method` needs clients' data; empty if it does not."""
    if method.pools:
        return POOLS
    if getattr(method, "gat_grad", "") == "simulated":
        return "the gradient that it counts as one number exists in a single process only; use client_grad"
    if method.control is not None:
        return "a control of the graph is made from all clients' data"
    return ""


def check_method(key: str, name: str) -> None:
    """Refuse a method that no settings can run on real hosts, before any data are read."""
    if METHODS[name].pools:
        _refuse(key, name, POOLS)


def check_code(run: RunSpec) -> None:
    """Refuse a run whose method, model or metric is code in a file of the user, which other hosts do not have."""
    parts = {
        f"method {run.method}": METHODS[run.method],
        f"model {run.task.model.get('name')}": MODELS.get(run.task.model.get("name", "")),
        f"metric {run.task.metric}": METRICS[run.task.metric].function if run.task.metric in METRICS else None,
    }
    for what, code in parts.items():
        module = getattr(code, "__module__", None) or plugins.OWN
        if module.partition(".")[0] not in (plugins.OWN, *plugins.find_installed()):
            remedy = f"make it a package with the entry point {plugins.GROUP}, and install that on every host"
            raise BadInput(f"runs.{run.key}", f"{what} is in the plug-in {module}, which no host has; {remedy}")


def _refuse(key: str, name: str, reason: str) -> NoReturn:
    raise BadInput(f"runs.{key}", f"{name} cannot run on separate hosts: {reason}; choose another method")


def check(run: RunSpec, method: Method) -> None:
    """Refuse a run that cannot be a federation of real hosts."""
    subject = f"runs.{run.key}"
    check_code(run)
    if reason := unsupported_reason(method):
        _refuse(run.key, run.method, reason)
    if run.task.attack is not None:
        raise BadInput(f"{subject}: attack", f"{run.task.attack} simulates hostile clients; leave it out")
    if method.task.adapter_ranks:
        raise BadInput(f"{subject}: model.adapter.ranks", "hosts have adapters of one rank; leave it out")
    if "code" in run.task.model:
        raise BadInput(f"{subject}: model", "a module without a name cannot be sent; register it with @fedweave.model")
