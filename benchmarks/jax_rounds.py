"""A JAX program of the same rounds: `jit` of a whole round, `vmap` over the clients and `scan` over their steps.

It is what a user would write by hand for one method and one model. Like the raw limit, it takes the same batches in
every round. Evaluation is one pass over every client's held-out rows, with the loss of each part.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import lax
from torch import Tensor

from benchmarks import raw
from benchmarks.workloads import Workload
from fedweave.client.solvers import SGD

Weights = Any
Loss = Callable[[Weights, Any, Any], Any]  # of weights, rows [B] and the mask [B] of real rows


def dense(inputs: int, outputs: int, generator: np.random.Generator) -> Weights:
    """Weights of a dense layer, with torch's distribution."""
    bound = inputs**-0.5
    return {
        "w": jnp.asarray(generator.uniform(-bound, bound, (inputs, outputs)), jnp.float32),
        "b": jnp.asarray(generator.uniform(-bound, bound, outputs), jnp.float32),
    }


def linear(layer: Weights, x: Any) -> Any:
    """A dense layer."""
    return x @ layer["w"] + layer["b"]


def perceptron(sizes: Sequence[int], generator: np.random.Generator) -> tuple[Weights, Callable[[Weights, Any], Any]]:
    """Weights of dense layers with ReLU between them, and their outputs."""

    def outputs(layers: Weights, x: Any) -> Any:
        for layer in layers[:-1]:
            x = jax.nn.relu(linear(layer, x))
        return linear(layers[-1], x)

    return [dense(*pair, generator) for pair in pairwise(sizes)], outputs


def sequence_to_sequence(
    generator: np.random.Generator, width: int = 64, past: int = 12
) -> tuple[Weights, Callable[[Weights, Any], Any]]:
    """Weights of a GRU as encoder and one as decoder that reads its own forecasts, and their outputs."""
    cells = {
        name: {"x": dense(2, 3 * width, generator), "h": dense(width, 3 * width, generator)}
        for name in ("encoder", "decoder")
    }

    def step(cell: Weights, x: Any, h: Any) -> Any:
        a, b = linear(cell["x"], x), linear(cell["h"], h)
        reset, update = jnp.split(jax.nn.sigmoid(a[:, : 2 * width] + b[:, : 2 * width]), 2, axis=1)
        new = jnp.tanh(a[:, 2 * width :] + reset * b[:, 2 * width :])
        return (1 - update) * new + update * h

    def outputs(weights: Weights, x: Any) -> Any:
        time_first = jnp.swapaxes(x, 0, 1)
        start = jnp.zeros((len(x), width))
        h, _ = lax.scan(lambda h, x: (step(weights["encoder"], x, h), None), start, time_first[:past])

        def decode(state: Any, clock: Any) -> Any:
            h, token = state
            h = step(weights["decoder"], token, h)
            value = linear(weights["head"], h)
            return (h, jnp.concatenate([value, clock[:, None]], 1)), value[:, 0]

        _, forecasts = lax.scan(decode, (h, x[:, past - 1]), time_first[past:, :, 1])
        return forecasts.T

    return cells | {"head": dense(width, 1, generator)}, outputs


def model_and_loss(name: str, workload: Workload) -> tuple[Weights, Loss]:
    """Initial weights, and the mean loss over the real rows of a batch."""
    generator, shared = np.random.default_rng(0), workload.federation.shared
    if name == "mlp":
        weights, outputs = perceptron((32, 64, 10), generator)
        x, y = jnp.asarray(shared["x"].numpy()), jnp.asarray(shared["y"].numpy().astype(np.int32))

        def cross_entropy(weights: Weights, rows: Any, mask: Any) -> Any:
            logs = jax.nn.log_softmax(outputs(weights, x[rows]))
            return -(jnp.take_along_axis(logs, y[rows][:, None], 1)[:, 0] * mask).sum() / mask.sum()

        return weights, cross_entropy
    window, horizon = (6, 6) if name == "tpt" else (12, 12)
    weights, outputs = perceptron((6, 16, 16, 6), generator) if name == "tpt" else sequence_to_sequence(generator)
    values, time = jnp.asarray(shared["x"].numpy().reshape(-1)), jnp.asarray(shared["time"].numpy())
    span = jnp.arange(window + horizon)

    def squared_error(weights: Weights, rows: Any, mask: Any) -> Any:
        windows = values[rows[:, None] + span]
        clock = time[(rows % len(time))[:, None] + span]
        x = windows[:, :window] if name == "tpt" else jnp.stack([windows, clock], -1)
        errors = ((outputs(weights, x) - windows[:, window:]) ** 2).mean(1)
        return (errors * mask).sum() / mask.sum()

    return weights, squared_error


def optimiser(workload: Workload) -> tuple[Callable[[Weights], Any], Callable[..., tuple[Weights, Any]]]:
    """The first state of the workload's solver, and its step (weights, gradient, state)."""
    solver: Any = workload.solver
    if isinstance(solver, SGD):
        return lambda _: (), lambda p, g, s: (jax.tree.map(lambda a, b: a - solver.lr * b, p, g), s)

    def init(p: Weights) -> Any:
        zeros = jax.tree.map(jnp.zeros_like, p)
        return zeros, zeros, jnp.zeros(())

    def step(p: Weights, g: Weights, state: Any) -> tuple[Weights, Any]:
        m, v, t = state
        m = jax.tree.map(lambda a, b: solver.beta1 * a + (1 - solver.beta1) * b, m, g)
        v = jax.tree.map(lambda a, b: solver.beta2 * a + (1 - solver.beta2) * b * b, v, g)
        first, second = 1 - solver.beta1 ** (t + 1), 1 - solver.beta2 ** (t + 1)

        def move(p: Any, m: Any, v: Any) -> Any:
            return p - solver.lr * (m / first) / (jnp.sqrt(v / second) + solver.eps)

        return jax.tree.map(move, p, m, v), (m, v, t + 1)

    return init, step


def pad(rows: Sequence[Tensor]) -> Tensor:
    """Rows of different lengths as one matrix, filled with -1."""
    return torch.nn.utils.rnn.pad_sequence([*rows], batch_first=True, padding_value=-1)


def make_round(name: str, workload: Workload) -> Callable[[], float]:
    """A function that runs a round of FedAvg, and returns the mean loss on the held-out rows."""
    weights, loss = model_and_loss(name, workload)
    init, step = optimiser(workload)
    federation = workload.federation
    train = jnp.asarray(np.stack([pad(plan).numpy() for plan in raw.plans(workload)]).astype(np.int32))
    held_out = [jnp.asarray(rows.numpy().astype(np.int32)) for rows in (federation.val, federation.test)]

    def value(weights: Weights, rows: Any) -> Any:
        return loss(weights, jnp.maximum(rows, 0), (rows >= 0).astype(jnp.float32))

    def client(weights: Weights, plan: Any) -> Weights:
        def advance(carry: Any, rows: Any) -> Any:
            return step(carry[0], jax.grad(value)(carry[0], rows), carry[1]), None

        return lax.scan(advance, (weights, init(weights)), plan)[0][0]

    @jax.jit
    def round_of_all(weights: Weights) -> tuple[Weights, Any]:
        trained = jax.vmap(client, (None, 0))(weights, train)
        weights = jax.tree.map(lambda stack: stack.mean(0), trained)
        return weights, [jax.vmap(value, (None, 0))(weights, rows) for rows in held_out]

    def run_one() -> float:
        nonlocal weights
        weights, losses = round_of_all(weights)
        return float(losses[1].mean())

    return run_one
