"""The peers, other frameworks, on the same clients and the same module as the raw limit (`make peers`, `make bench`).

Each runs as its own documentation recommends for simulation, with telemetry off and one worker per thread of the
comparison. Each evaluates in its cheapest way: the server's model on the held-out rows of all clients, once a round.
`loop` and `batched` do more: they score every client's own model separately for validation and test.
"""

import os
import time
from functools import cache, partial
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import raw
from benchmarks.workloads import WORKLOADS, Workload

EVALUATED = 500  # held-out rows per batch


def differences(stamps: list[float]) -> list[float]:
    """Seconds of the rounds between the times `stamps`."""
    return [b - a for a, b in pairwise(stamps)]


def pfl(name: str, workload: Workload, rounds: int) -> list[float]:
    """pfl-research: one process, one model whose parameters are reset after every user, tensors in memory, no
    shuffling.
    """
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.callback.central_evaluation import CentralEvaluationCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import MinimizeReuseUserSampler
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics, Weighted
    from pfl.model.pytorch import PyTorchModel

    class Module(nn.Module):
        """The interface that pfl needs: the loss of a module, and its metrics."""

        def __init__(self) -> None:
            super().__init__()
            self.network, self.error = raw.network(name), raw.error(name)

        def loss(self, x: Tensor, y: Tensor) -> Tensor:
            self.train()
            return self.error(self.network(x), y)

        @torch.no_grad()
        def metrics(self, x: Tensor, y: Tensor) -> dict[str, Weighted]:
            self.eval()
            return {"loss": Weighted(float(self.error(self.network(x), y)) * len(y), len(y))}

    class Clock(TrainingProcessCallback):
        """Records the time at the end of a round."""

        def after_central_iteration(
            self, aggregate_metrics: Any, model: Any, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            stamps.append(time.perf_counter())
            return False, Metrics()

    federation, stamps = workload.federation, [time.perf_counter()]
    x, y, clients = federation.shared["x"], federation.shared["y"], federation.clients
    users = {i: Dataset(raw_data=(x[rows], y[rows])) for i, rows in enumerate(federation.train)}
    data = FederatedDataset(users.__getitem__, MinimizeReuseUserSampler([*users]))
    test = torch.cat(raw.held_out_rows(federation))
    module = Module()
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=clients,
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=data),
        PyTorchModel(module, partial(torch.optim.SGD, foreach=True), torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=0.01, local_batch_size=workload.training.batch_size),
        callbacks=[
            CentralEvaluationCallback(Dataset(raw_data=(x[test], y[test])), NNEvalHyperParams(EVALUATED)),
            Clock(),
        ],
        send_metrics_to_platform=False,
    )
    return differences(stamps)


def flwr(name: str, workload: Workload, rounds: int) -> list[float]:
    """Flower's simulation: Ray actors that keep data and module, weights as messages, evaluation on the server."""
    os.environ |= {
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }
    from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    clients, workers, stamps = workload.federation.clients, torch.get_num_threads(), list[float]()
    network = raw.network(name)
    error = raw.error(name)
    test = torch.cat(raw.held_out_rows(workload.federation)).split(EVALUATED)
    apply, server, client = raw.outputs(name, workload.federation), ServerApp(), ClientApp()

    @client.train()
    def train(message: Message, context: Context) -> Message:
        from benchmarks import peers  # inside an actor, whose cached data must be in a module of its own

        model, examples = peers.train_client(
            name, message.content["arrays"].to_torch_state_dict(), int(context.node_config["partition-id"])
        )
        content = {"arrays": ArrayRecord(model.state_dict()), "metrics": MetricRecord({"num-examples": examples})}
        return Message(RecordDict(content), reply_to=message)

    @torch.no_grad()
    def evaluate(_round: int, arrays: ArrayRecord) -> MetricRecord:
        network.load_state_dict(arrays.to_torch_state_dict())
        network.eval()
        loss = np.mean([float(error(*apply(network, 0, rows))) for rows in test])
        stamps.append(time.perf_counter())
        return MetricRecord({"loss": float(loss)})

    @server.main()
    def main(grid: Grid, _context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=clients, min_available_nodes=clients)
        strategy.start(
            grid, ArrayRecord(network.state_dict()), rounds, train_config=ConfigRecord(), evaluate_fn=evaluate
        )

    resources = {
        "init_args": {"num_cpus": workers, "log_to_driver": False},
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
    }
    run_simulation(server, client, clients, backend_config=resources)
    return differences(stamps)


@cache
def _prepare(name: str) -> tuple[nn.Module, Any, list[list[Tensor]]]:
    """Module, data and batches of a workload: once per process."""
    torch.set_num_threads(1)
    workload = WORKLOADS[name]()
    return raw.network(name), raw.outputs(name, workload.federation), raw.plans(workload)


def train_client(name: str, weights: dict[str, Tensor], client: int) -> tuple[nn.Module, int]:
    """A client's module after its local training from `weights`, and the number of its rows."""
    model, run, plans = _prepare(name)
    model.load_state_dict(weights)
    model.train()
    optimizer, error = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True), raw.error(name)
    for rows in plans[client]:
        optimizer.zero_grad()
        error(*run(model, client, rows)).backward()
        optimizer.step()
    return model, sum(map(len, plans[client]))
