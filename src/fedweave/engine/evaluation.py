"""The evaluation of a state: scores and models of the clients, and numbers about the server."""

import torch
from torch import Tensor

from fedweave.client.data import ClientData, remove_padding
from fedweave.engine import adapter_ranks, predictions, schedule
from fedweave.engine.clients import Clients, Cohort
from fedweave.engine.executors import Executor
from fedweave.engine.guards import returned
from fedweave.engine.guards.hook_calls import data_of, guard_call
from fedweave.engine.protocol import ClientState, Method, Server
from fedweave.engine.records import DownloadCache, Settings, State
from fedweave.engine.uploads import finite_rows
from fedweave.errors import format_count
from fedweave.graphs.quality import MEANING, quality
from fedweave.graphs.weights import is_recordable
from fedweave.tensors import trees
from fedweave.tensors.products import use_fast_products
from fedweave.tensors.storage import store_rows
from fedweave.tensors.trees import Tree


def evaluate(
    method: Method,
    state: State,
    federation: Clients,
    settings: Settings,
    executor: Executor,
    post: Tree | None = None,
    downloads: DownloadCache | None = None,
) -> tuple[dict[str, dict[str, Tensor]], dict[str, Tree]]:
    """Scores and models of the evaluated clients [K]: "pre" as deployed from `state`, "post" after local training.

    Args:
        post: models [K, ...] after local training, if they are evaluated too.
        downloads: what was sent last, if this is one of several rounds.
    """
    cohort = schedule.evaluation_cohort(federation, settings.seed, state.round, positions=federation.sample)
    ids = federation.sample.to(federation.ids.device)
    shared, own = (downloads or DownloadCache())(method, state.server, ids)

    def personalize(own: Tree, client: ClientState, data: ClientData) -> Tree:
        model = method.personalize(*adapter_ranks.cut(method.task, shared, own, client, data))
        returned.check_tensors(f"{type(method).__name__}.personalize", model)
        return model

    clients = trees.take(state.clients, ids)
    with guard_call(method, "personalize", shared=shared, own=own, client=clients, data=data_of(cohort)):
        pre = executor.map(personalize, (own, clients), cohort, store_rows)
    models = {"pre": pre} if post is None else {"pre": pre, "post": _replace_nonfinite(post, pre)}

    pre_scores = _scores(method, pre, executor, cohort)
    if post is None:
        return {"pre": pre_scores}, models
    # Models are often equal, such as those of a method that trains nothing: then they are scored once.
    is_same = trees.equal(models["post"], pre)
    post_scores = pre_scores if is_same else _scores(method, models["post"], executor, cohort)
    return {"pre": pre_scores, "post": post_scores}, models


def _scores(method: Method, models: Tree, executor: Executor, cohort: Cohort) -> dict[str, Tensor]:
    """ "val" and "test" -> the score [K] of `models` [K, ...] for each client of `cohort`."""

    def score(model: Tree, data: ClientData) -> dict[str, Tensor]:
        val, test = remove_padding(data.val), method.task.scored_rows(data, remove_padding(data.test))
        outputs = method.predict(model, data, torch.cat([val, test]))
        return {
            "val": method.task.score(outputs[: len(val)], data, val),
            "test": method.task.score(outputs[len(val) :], data, test, shared_test=True),
        }

    guard = guard_call(method, "predict", model=models, data=data_of(cohort))
    with guard, use_fast_products([*method.network.parameters()]):
        if method.task.scoring is not None:
            return predictions.scores(method, models, executor, cohort)
        return executor.for_evaluation(cohort).map(score, (models,), cohort)


def _replace_nonfinite(post: Tree, pre: Tree) -> Tree:
    """`post` [K, ...]; a client whose trained model is not finite gets its model in `pre` instead."""
    is_finite = finite_rows(post)
    if is_finite is None:
        return post
    return trees.tree_map(lambda new, old: torch.where(trees.column(is_finite, new), new, old), post, pre)


def portray(method: Method, server: Server, federation: Clients) -> Tensor | None:
    """The method's vectors of the clients of `federation` [N, D]; None if it has none."""
    with torch.no_grad(), guard_call(method, "portrait", server=server):
        vectors = method.portrait(server)
    if vectors is not None:
        clients, is_matrix = federation.clients, isinstance(vectors, Tensor) and vectors.ndim == 2
        fits = is_matrix and len(vectors) == clients and vectors.is_floating_point()
        right = f"[{clients}, D] of floats: one vector for each of {format_count(clients, 'client')}"
        returned.check_tensor(f"{type(method).__name__}.portrait", vectors, fits, right)
    return vectors


def diagnose(method: Method, server: Server, federation: Clients) -> dict[str, float]:
    """The method's own diagnostics, and the quality of its collaboration graph between the clients of `federation`.

    A graph of very many clients is not computed.
    """
    name = type(method).__name__
    with torch.no_grad():
        recordable = is_recordable(len(method.task.layers), federation.clients)
        with guard_call(method, "collaboration", server=server):
            weights = method.collaboration(server) if recordable else None
        if weights is not None:
            shape = [len(method.task.layers), federation.clients, federation.clients]
            fits = isinstance(weights, Tensor) and [*weights.shape] == shape
            returned.check_tensor(f"{name}.collaboration", weights, fits, f"{shape}: layers, learners, sources")
        with guard_call(method, "diagnostics", server=server):
            numbers = returned.read_numbers(f"{name}.diagnostics", method.diagnostics(server))
    if weights is None:
        return numbers
    truth = (None if t is None else t.cpu().numpy() for t in (federation.group, federation.divergence))
    qualities = quality(weights.detach().cpu().numpy(), *truth)
    return numbers | {MEANING[key]: value for key, value in qualities.items()}
