"""Whether a server needs no more of the uploads than their weighted mean, as secure aggregation gives it."""

from typing import Any

import torch

from fedweave.deployment.wire.spec import AppSpec
from fedweave.deployment.wire.tensors import unflatten
from fedweave.engine.clients import Clients
from fedweave.engine.executors import Loop
from fedweave.engine.schedule import sample_size
from fedweave.engine.start import admission
from fedweave.errors import BadInput
from fedweave.tensors import trees
from fedweave.tensors.random_streams import stream

MIN_CLIENTS = 3  # in a round: each of two clients could compute the other's upload from the mean
TOLERANCE = 1e-4  # for float32 sums in another order
STREAM = 42  # random stream of the seed


def needs_mean_only(spec: AppSpec, federation: Clients, form: dict[str, Any]) -> bool:
    """Whether the server's step on random uploads of `form` equals its step on their mean, sent by every client.

    Args:
        federation: the federation of one client.
    """
    draws, method = stream(spec.seed, STREAM), spec.method
    uploads = unflatten(
        {
            name: torch.from_numpy(draws.normal(size=(MIN_CLIENTS, *shape))).to(getattr(torch, dtype))
            for name, (shape, dtype) in form.items()
        }
    )
    weights = torch.tensor([1.0, 2.0, 5.0])
    means = trees.broadcast(trees.weighted_mean(uploads, weights), MIN_CLIENTS)
    start, _, _ = admission(method, federation, spec.seed, Loop())
    server, senders = method.init(spec.imagine_start(start, MIN_CLIENTS)), torch.arange(MIN_CLIENTS)
    results = [method.aggregate(server, senders, content, weights) for content in (uploads, means)]
    leaves = [trees.tree_leaves(result) for result in results]
    return all(torch.allclose(a.double(), b.double(), TOLERANCE, TOLERANCE) for a, b in zip(*leaves, strict=True))


def check(spec: AppSpec, federation: Clients) -> None:
    """Refuse a run that secure aggregation cannot carry.

    Args:
        federation: the federation of one client.
    """
    train, remedy = spec.forms["train"], "export it without --secure-aggregation"
    subject = f"runs.{spec.run.key}: secure aggregation"
    participants = sample_size(spec.settings.participation, spec.founder_count)
    if participants < MIN_CLIENTS:
        raise BadInput(f"{subject} needs {MIN_CLIENTS} clients a round, but {participants} take part; {remedy}")
    if spec.settings.upload_path.robust:
        raise BadInput(f"{subject} hides single uploads, which train.robust: needs; leave one of them out")
    if any(spec.forms["enrol"].values()):
        raise BadInput(
            f"{subject} masks the uploads of rounds only, but clients of {spec.run.method} also upload a description "
            f"of their data on joining; {remedy}"
        )
    form = train[0]["tensors"]
    has_one_form = len(train) == 1 and len(spec.timeline.stages) == 1 and form
    has_floats = all(dtype.startswith("float") for _, dtype in form.values())
    if not (has_one_form and has_floats and needs_mean_only(spec, federation, form)):
        raise BadInput(f"{subject} gives the server the mean only, but that of {spec.run.method} needs more; {remedy}")
