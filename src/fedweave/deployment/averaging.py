"""Whether a server needs no more of the uploads than their weighted mean, as secure aggregation gives it."""

from typing import Any

import torch

from fedweave.deployment import members
from fedweave.deployment.spec import AppSpec
from fedweave.deployment.tensors import unflatten
from fedweave.errors import BadInput
from fedweave.federation.executors import Loop
from fedweave.federation.federation import Federation
from fedweave.federation.protocol import Method, Start
from fedweave.federation.schedule import sample_size
from fedweave.federation.start import admission
from fedweave.tensors import trees
from fedweave.tensors.random_streams import stream

FEWEST = 3  # clients: of two, each would know the other's upload from the mean
TOLERANCE = 1e-4  # of float32 sums in another order
STREAM = 42  # of the seed


def needs_mean_only(method: Method, start: Start, form: dict[str, Any], seed: int) -> bool:
    """Whether the server's step on random uploads of `form` is that on their mean, sent by everybody."""
    draws = stream(seed, STREAM)
    uploads = unflatten({
        name: torch.from_numpy(draws.normal(size=(FEWEST, *shape))).to(getattr(torch, kind))
        for name, (shape, kind) in form.items()
    })  # fmt: skip
    weights = torch.tensor([1.0, 2.0, 5.0])
    means = trees.broadcast(trees.weighted_mean(uploads, weights), FEWEST)
    server, senders = method.init(start), torch.arange(FEWEST)
    results = [method.aggregate(server, senders, content, weights) for content in (uploads, means)]
    leaves = [trees.tree_leaves(result) for result in results]
    return all(torch.allclose(a.double(), b.double(), TOLERANCE, TOLERANCE) for a, b in zip(*leaves, strict=True))


def _build_start(spec: AppSpec, mine: Federation) -> Start:
    """What the server knows of the first clients, all of whom are like the client of `mine`."""
    start, _, _ = admission(spec.method, mine, spec.seed, Loop())
    crowd = members.placeholder_federation(spec, range(FEWEST))
    described = trees.broadcast(trees.at(start.enrolled, 0), FEWEST)
    return start._replace(enrolled=described, clients=FEWEST, relation=crowd.relation, ids=crowd.ids)


def check(spec: AppSpec, mine: Federation) -> None:
    """Refuse a run that secure aggregation cannot carry.

    Args:
        mine: a federation of one client.

    Raises:
        BadInput: naming the reason and the way out.
    """
    train, way = spec.forms["train"], "export it without --secure-aggregation"
    here = f"runs.{spec.run.key}: secure aggregation"
    fewest = sample_size(spec.settings.participation, spec.founder_count)
    if fewest < FEWEST:
        raise BadInput(f"{here} needs {FEWEST} clients a round, but {fewest} take part; {way}")
    if spec.settings.upload_path.robust:
        raise BadInput(f"{here} hides single uploads, which train.robust: needs; leave one of them out")
    if any(spec.forms["enrol"].values()):
        raise BadInput(f"{here} hides means of a round, but clients of {spec.run.method} describe themselves; {way}")
    form = train[0]["tensors"]
    plain = len(train) == 1 and len(spec.timeline.stages) == 1 and form
    real = all(kind.startswith("float") for _, kind in form.values())
    if not plain or not real or not needs_mean_only(spec.method, _build_start(spec, mine), form, spec.seed):
        raise BadInput(f"{here} gives the server the mean only, but that of {spec.run.method} needs more; {way}")
