"""PFLlib's command line as a contestant, tried with a small program that has its folders, classes and arguments."""

from pathlib import Path

import pytest

import fedweave as fw
from fedweave.errors import BadInput
from tests import convex

FILES = {
    "main.py": """
import argparse, copy
import numpy as np, torch
from flcore.clients.clientbase import Client

torch.manual_seed(0)
parser = argparse.ArgumentParser()
for short, name, kind, default in (("-data", "--dataset", str, "MNIST"), ("-algo", "--algorithm", str, "FedAvg"),
        ("-m", "--model", str, "CNN"), ("-gr", "--global_rounds", int, 2000), ("-lr", "--lr", float, 0.005),
        ("-nc", "--num_clients", int, 20), ("-ncl", "--num_classes", int, 10), ("-dev", "--device", str, "cuda"),
        ("-t", "--times", int, 1)):
    parser.add_argument(short, name, type=kind, default=default)
args = parser.parse_args()
args.model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(4, args.num_classes))
clients = [Client(args, i) for i in range(args.num_clients)]
sizes = torch.tensor([float(len(c.load_train_data().dataset)) for c in clients])
for _ in range(args.global_rounds + 1):
    for c in clients:
        c.model.load_state_dict(args.model.state_dict())
    print("Averaged Test Accuracy:", np.mean([c.test_metrics()[0] for c in clients]))
    for c in clients:
        c.train()
    for name, value in args.model.state_dict().items():
        parts = torch.stack([c.model.state_dict()[name] for c in clients])
        value.copy_(torch.einsum("c,c...->...", sizes / sizes.sum(), parts))
""",
    "flcore/clients/clientbase.py": """
import copy
import numpy as np, torch
from sklearn import metrics
from sklearn.preprocessing import label_binarize
from torch.utils.data import DataLoader
from utils.data_utils import read_client_data


class Client:
    def __init__(self, args, id):
        torch.manual_seed(0)
        self.args, self.id, self.model = args, id, copy.deepcopy(args.model)

    def load_train_data(self):
        rows = read_client_data(self.args.dataset, self.id, is_train=True)
        return DataLoader(rows, len(rows), shuffle=True)

    def load_test_data(self, batch_size=None):
        return DataLoader(read_client_data(self.args.dataset, self.id, is_train=False), 10, shuffle=True)

    def train(self):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.args.lr)
        for x, y in self.load_train_data():
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self.model(x), y).backward()
            optimizer.step()

    def test_metrics(self):
        scores, targets, correct = [], [], 0
        with torch.no_grad():
            for x, y in self.load_test_data():
                scores.append(self.model(x).numpy())
                targets.append(label_binarize(y.numpy(), classes=np.arange(3))[:, :2])
                correct += int((scores[-1].argmax(1) == y.numpy()).sum())
        auc = metrics.roc_auc_score(np.concatenate(targets), np.concatenate(scores), average="micro")
        return correct, sum(map(len, scores)), auc
""",
    "utils/data_utils.py": """
import os
import numpy as np, torch


def read_client_data(dataset, idx, is_train=True, few_shot=0):
    path = os.path.join("../dataset", dataset, "train/" if is_train else "test/") + str(idx) + ".npz"
    with open(path, "rb") as file:
        data = np.load(file, allow_pickle=True)["data"].tolist()
    return list(zip(torch.Tensor(data["x"]), torch.Tensor(data["y"]).type(torch.int64)))
""",
}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / "PFLlib" / "system" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path / "PFLlib"


def test_its_fedavg_agrees_with_ours_and_its_checkout_is_only_read(checkout: Path) -> None:
    """Full batches of a convex loss: only the first values of the model differ."""
    before = sorted(checkout.rglob("*"))
    theirs = fw.contestants.pfllib(checkout, "-algo FedAvg -m MLR", settings={"lr": 0.5}, timeout=300)
    result = convex.compare(convex.TASKS[0], theirs)
    scores = result.leaderboard().set_index("method")["mean"]
    assert abs(scores["FedAvg-PFLlib"] - scores["fedavg"]) < 0.01
    assert result["FedAvg-PFLlib"].run.printed_label == "FedAvg-PFLlib (program)"
    by_seed = result["FedAvg-PFLlib"].select_scores().groupby("seed")["value"].mean()
    assert by_seed[0] != by_seed[1]
    assert sorted(checkout.rglob("*")) == before


def test_a_folder_that_is_no_checkout_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"there is no system/main\.py in .*; give a checkout of PFLlib"):
        fw.contestants.pfllib(tmp_path, "-algo FedAvg")
