"""FedAvg of pfl-research on a task: python pfl_fedavg.py RATE TASK OUTPUT. Logistic regression in full batches."""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel


class Logistic(torch.nn.Module):
    """The interface that pfl needs: the loss of a module, and its metrics."""

    def __init__(self, columns: int, classes: int) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(columns, classes)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.layer(x), y)

    @torch.no_grad()
    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict:
        return {"loss": Weighted(float(self.loss(x, y)) * len(y), len(y))}


def main(rate: float, task: Path, output: Path) -> None:
    """Train and predict."""
    about = json.loads((task / "task.json").read_text(encoding="utf-8"))
    parts = [
        {part: dict(np.load(task / one["folder"] / f"{part}.npz")) for part in ("train", "val", "test")}
        for one in about["clients"]
    ]
    flat = [
        {part: torch.from_numpy(rows["x"]).flatten(1) for part, rows in client.items()} | {"y": client["train"]["y"]}
        for client in parts
    ]
    torch.manual_seed(about["seed"])
    users = {i: Dataset(raw_data=(rows["train"], torch.from_numpy(rows["y"]))) for i, rows in enumerate(flat)}
    data = FederatedDataset(users.__getitem__, MinimizeReuseUserSampler([*users]))
    module, rounds = Logistic(flat[0]["train"].shape[1], about["outputs"]), about["budget"]["rounds"]
    FederatedAveraging().run(
        NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=rounds + 1,
            train_cohort_size=len(users),
            val_cohort_size=None,
        ),
        SimulatedBackend(training_data=data, val_data=data, postprocessors=[WeightByDatapoints()]),
        PyTorchModel(module, partial(torch.optim.SGD), torch.optim.SGD(module.parameters(), lr=1.0)),
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=rate, local_batch_size=None),
        send_metrics_to_platform=False,
    )
    for one, rows in zip(about["clients"], flat, strict=True):
        (output / one["folder"]).mkdir(parents=True)
        for part in ("val", "test"):
            with torch.no_grad():
                outputs = torch.softmax(module.layer(rows[part]), 1)
            np.savez(output / one["folder"] / f"{part}.npz", outputs=outputs.numpy())


if __name__ == "__main__":
    main(float(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]))
