"""FL-bench's command line as a contestant, tried with a small program that has its folders, classes and settings."""

from pathlib import Path

import numpy as np
import pytest

import fedweave as fw
from fedweave.contestants.drive_flbench import complete
from fedweave.errors import BadInput
from tests import convex

FILES = {
    "main.py": """
import importlib, sys
given = dict(word.split("=", 1) for word in sys.argv[1:])
module = importlib.import_module(f"src.server.{given['method']}")
assert given["common.test.client.interval"] == given["common.global_epoch"] and given["mode"] == "serial"
module.FedAvgServer(given).train()
""",
    "src/__init__.py": "",
    "config/defaults.yaml": "method: fedavg\n",
    "data/utils/__init__.py": "",
    "data/utils/datasets.py": """
class BaseDataset:
    def __init__(self, data, targets, classes, **transforms):
        self.data, self.targets, self.classes = data, targets, classes
        self._rescale_data()

    def _rescale_data(self):
        if self.data.max() > 1:
            self.data /= 255.0

    def __len__(self):
        return len(self.targets)

    def __getitem__(self, index):
        return self.data[index], self.targets[index]


DATASETS = {}
""",
    "src/utils/constants.py": """
import json
from pathlib import Path
FACTS = json.loads(Path("data/synthetic/args.json").read_text())
INPUT_CHANNELS, NUM_CLASSES = {}, {"synthetic": FACTS["class_num"]}
DATA_SHAPE = {"synthetic": FACTS["dimension"]}
""",
    "src/utils/functional.py": """
import torch


@torch.no_grad()
def evaluate_model(model, dataloader, criterion=None, device=None, model_in_train_mode=False):
    return sum(int((model(x).argmax(1) == y).sum()) for x, y in dataloader)
""",
    "src/server/fedavg.py": """
import copy, pickle
import torch
from data.utils.datasets import DATASETS
from src.utils.constants import DATA_SHAPE, NUM_CLASSES
from src.utils.functional import evaluate_model
from torch.utils.data import DataLoader, Subset


class FedAvgServer:
    def __init__(self, given):
        self.given, name = given, given["dataset.name"]
        torch.manual_seed(int(given["common.seed"]))
        with open(f"data/{name}/partition.pkl", "rb") as file:
            self.partition = pickle.load(file)
        self.dataset = DATASETS[name](root=f"data/{name}", args={})
        self.model = torch.nn.Linear(DATA_SHAPE[name], NUM_CLASSES[name])

    def train(self):
        clients = self.partition["separation"]["train"]
        rows = self.partition["data_indices"]
        for epoch in range(1, int(self.given["common.global_epoch"]) + 1):
            parts, sizes = [], torch.tensor([float(len(rows[c]["train"])) for c in clients])
            for c in clients:
                model = copy.deepcopy(self.model)
                optimizer = torch.optim.SGD(model.parameters(), lr=float(self.given["optimizer.lr"]))
                for x, y in DataLoader(Subset(self.dataset, rows[c]["train"]), len(self.dataset), shuffle=True):
                    optimizer.zero_grad()
                    torch.nn.functional.cross_entropy(model(x), y).backward()
                    optimizer.step()
                parts.append(model.state_dict())
            for name, value in self.model.state_dict().items():
                stacked = torch.stack([part[name] for part in parts])
                value.copy_(torch.einsum("c,c...->...", sizes / sizes.sum(), stacked))
            if epoch % int(self.given["common.test.client.interval"]) == 0:
                for c in clients:
                    for part in ("val", "test"):
                        evaluate_model(self.model, DataLoader(Subset(self.dataset, rows[c][part]), 8))
""",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / "FL-bench" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "FL-bench"


def test_its_fedavg_agrees_with_ours_and_its_checkout_is_only_read(checkout: Path) -> None:
    """Full batches of a convex loss: only the first values of the model differ."""
    before = sorted(checkout.rglob("*"))
    theirs = fw.contestants.flbench(checkout, "method=fedavg", settings={"optimizer__lr": 0.5}, timeout=300)
    result = convex.compare(convex.TASKS[0], theirs)
    scores = result.leaderboard().set_index("method")["mean"]
    assert abs(scores["fedavg-FL-bench"] - scores["fedavg"]) < 0.01
    by_seed = result["fedavg-FL-bench"].select_scores().groupby("seed")["value"].mean()
    assert by_seed[0] != by_seed[1]
    assert sorted(checkout.rglob("*")) == before


def test_settings_of_the_user_come_first_and_the_last_round_is_evaluated() -> None:
    words = complete(["method=fedala", "common.global_epoch=7", "dataset.name=cifar10", "model.name=lenet5"], 50, 3)
    given = dict(word.split("=", 1) for word in words)
    assert (given["common.global_epoch"], given["common.test.client.interval"]) == ("7", "7")
    assert (given["dataset.name"], given["model.name"], given["common.seed"]) == ("cifar10", "lenet5", "3")


def test_what_cannot_run_is_refused(checkout: Path, tmp_path: Path) -> None:
    """Among them a method whose evaluation is its own, so that it leaves no outputs."""
    with pytest.raises(BadInput, match=r"there is no main\.py with src/server in .*; give a checkout of it"):
        fw.contestants.flbench(tmp_path, "method=fedavg")
    server = (checkout / "src" / "server" / "fedavg.py").read_text()
    (checkout / "src" / "server" / "own.py").write_text(server.replace("evaluate_model(self", "(lambda *_: 0)(self"))
    x = np.arange(60.0)[:, None]
    rows = fw.Federation.from_arrays(x, np.arange(60) % 2, client=["a", "b", "c"] * 20)
    own = fw.contestants.flbench(checkout, "method=own optimizer.lr=0.1")
    with pytest.raises(RuntimeError, match="rows of val were not given to its evaluate_model"):
        fw.fit(own, rows, rounds=1, progress=False)
