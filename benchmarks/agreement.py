"""The same rows, first model and batches through fedweave and through PFLlib: python -m benchmarks.agreement CHECKOUT.

CHECKOUT is a folder of github.com/TsingZ0/PFLlib, which is only read. Ten clients with full batches train six rounds;
every client's accuracy after every round is compared. `docs/agreement.md` has the table that it prints.
"""

import json
import os
import sys
import tempfile
import types
import warnings
from argparse import Namespace
from collections.abc import Mapping
from contextlib import chdir, redirect_stdout
from functools import partial
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

import fedweave as fw

CLIENTS, ROUNDS, EPOCHS, RATE, CLASSES = 10, 6, 2, 0.3, 3
ROWS = {"train": 30, "val": 4, "test": 40}
FIFTH = 7  # rows that validate, where PFLlib takes the last fifth of the training rows


class Pair(NamedTuple):
    """A method here and an algorithm of PFLlib.

    Attributes:
        module, name: of its server's class.
        theirs: arguments of its main.py.
        ours: settings here.
        point: the evaluation point here, "pre" or "post".
        val: validation rows of a client.
        after_training: PFLlib's models are those after each training of a client, not those that it evaluates.
    """

    module: str
    name: str
    theirs: Mapping[str, Any] = {}
    ours: Mapping[str, Any] = {}
    point: str = "pre"
    val: int = ROWS["val"]
    after_training: bool = False


PAIRS = {
    "local": Pair("serverlocal", "Local"),
    "fedavg": Pair("serveravg", "FedAvg"),
    "fedprox": Pair("serverprox", "FedProx", {"mu": 0.5}, {"mu": 0.5}),
    "scaffold": Pair("serverscaffold", "SCAFFOLD"),
    "ditto": Pair("serverditto", "Ditto", {"mu": 0.7, "plocal_epochs": 2}, {"lam": 0.7, "personal_epochs": 2}),
    "fedper": Pair("serverper", "FedPer"),
    "fedrep": Pair("serverrep", "FedRep", {"plocal_epochs": 1}, {"head_epochs": 1}),
    "fedrod": Pair("serverrod", "FedROD"),
    "fedala": Pair("serverala", "FedALA", {"rand_percent": 100}, {"portion": 100.0, "start_epochs": 200}),
    "feddbe": Pair("serverdbe", "FedDBE", {"kl_weight": 2.0, "momentum": 0.5}, {"kappa": 2.0, "momentum": 0.5}),
    "fedbabu": Pair("serverbabu", "FedBABU", point="post", after_training=True),
    "fedamp": Pair("serveramp", "FedAMP", {"alphaK": 100.0, "sigma": 1e4}, {"detached": True}),
    "pfedme": Pair(
        "serverpFedMe",
        "pFedMe",
        {"lamda": 1.0, "K": 3, "p_learning_rate": 0.1},
        {"lam": 1.0, "inner_steps": 3, "inner_lr": 0.1, "eval_w": True},
        "post",
        after_training=True,
    ),
    "lg_fedavg": Pair("serverlg", "LG_FedAvg"),
    "moon": Pair("servermoon", "MOON", {"mu": 2.0, "tau": 0.5}, {"mu": 2.0, "tau": 0.5}),
    "feddyn": Pair("serverdyn", "FedDyn", {"alpha": 0.3}, {"alpha": 0.3}),
    # It drops batches that are not full.
    "fedfomo": Pair(
        "serverfomo", "FedFomo", {"M": CLIENTS, "batch_size": ROWS["train"]}, {"models": CLIENTS - 1}, "post", FIFTH
    ),
    "gpfl": Pair("servergpfl", "GPFL", {"lamda": 0.01, "mu": 0.001}, {"lam": 0.01, "mu": 0.001}),
}
# What main.py of PFLlib has for arguments that are not given, for algorithms of this table.
DEFAULTS = {
    "device": "cpu",
    "dataset": "agreement",
    "num_classes": CLASSES,
    "global_rounds": ROUNDS,
    "local_epochs": EPOCHS,
    "batch_size": 1000,
    "local_learning_rate": RATE,
    "num_clients": CLIENTS,
    "join_ratio": 1.0,
    "few_shot": 0,
    "random_join_ratio": False,
    "algorithm": "",
    "time_select": False,
    "goal": "test",
    "time_threthold": 10000,
    "save_folder_name": "items",
    "top_cnt": 100,
    "auto_break": False,
    "eval_gap": 1,
    "client_drop_rate": 0.0,
    "train_slow_rate": 0.0,
    "send_slow_rate": 0.0,
    "dlg_eval": False,
    "dlg_gap": 100,
    "batch_num_per_client": 2,
    "num_new_clients": 0,
    "fine_tuning_epoch_new": 0,
    "learning_rate_decay": False,
    "learning_rate_decay_gamma": 0.99,
    "server_learning_rate": 1.0,
    "plocal_epochs": 1,
    "eta": 1.0,
    "rand_percent": 80,
    "layer_idx": 2,
    "mu": 0.0,
    "tau": 1.0,
    "alpha": 1.0,
    "lamda": 1.0,
    "M": 5,
    "beta": 1.0,
    "fine_tuning_epochs": 1,
}


class Split(nn.Module):
    """A network in the parts that PFLlib asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(nn.Flatten(), nn.Linear(4, 8), nn.ReLU())
        self.head = nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x))


class Same(nn.Module):
    """The same network with other names: `head` of a model of fedweave is the name of its last layer."""

    def __init__(self, split: Split) -> None:
        super().__init__()
        self.body, self.out = split.base, split.head

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x))


def draw_rows(val: int = ROWS["val"]) -> dict[str, list[tuple[np.ndarray, np.ndarray]]]:
    """Part -> (inputs [n, 4], classes [n]) of each client; each has its own rule and as many rows as the others."""
    counts = {**ROWS, "val": val}
    draws = np.random.default_rng(0)
    rules, parts = draws.normal(size=(4, CLASSES)), {part: [] for part in ROWS}  # type: ignore[var-annotated]
    for _ in range(CLIENTS):
        own = rules + 0.8 * draws.normal(size=rules.shape)
        for part, count in counts.items():
            x = draws.normal(size=(count, 4)).astype(np.float32)
            parts[part].append((x, (x @ own + draws.gumbel(size=(count, CLASSES))).argmax(1)))
    return parts


def run_ours(name: str, pair: Pair, rows: Mapping[str, Any], network: Split) -> np.ndarray:
    """Accuracy [rounds, clients] at the pair's evaluation point."""
    flat = [(part, i, *pair) for part in rows for i, pair in enumerate(rows[part])]
    x, y = (np.concatenate([one[k] for one in flat]) for k in (2, 3))
    client, split = ([one[k] for one in flat for _ in one[3]] for k in (1, 0))
    federation = fw.Federation.from_arrays(x, y, client=client, split=split, normalize="none", target="classes")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = fw.fit(
            fw.methods.METHODS[name](**pair.ours),
            federation,
            model=Same(network),
            head="out",
            rounds=ROUNDS,
            lr=RATE,
            epochs=EPOCHS,
            batch_size=0,
            evaluate={"point": pair.point},
            progress=False,
        )
    table = result.history
    table = table[(table["split"] == "test") & (table["point"] == pair.point)]
    return table.pivot_table(index="round", columns="client", values="value", sort=True).to_numpy()


def run_theirs(pair: Pair, rows: Mapping[str, Any], network: nn.Module) -> np.ndarray:
    """Accuracy [rounds, clients] at PFLlib's evaluations but the first one, which is before any training.

    With `after_training` it is that after each training of a client, of which PFLlib has one more than rounds.
    """
    scores = record_scores()
    arguments = Namespace(**{**DEFAULTS, "algorithm": pair.name, "model": network, **pair.theirs})
    with redirect_stdout(StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        server = getattr(import_module(f"flcore.servers.{pair.module}"), pair.name)(arguments, 0)
        if pair.after_training:
            scores = record_trained(server.clients, rows)
        server.train()
    if pair.after_training:
        return np.array(
            [
                [100 * float((scores[i][r].argmax(1) == y).mean()) for i, (_, y) in enumerate(rows["test"])]
                for r in range(ROUNDS)
            ]
        )
    parts = []
    for i, (_, y) in enumerate(rows["test"]):
        found = scores[i]
        step = len(found) // (ROUNDS + 1)  # of two evaluations in a round, the last one is of the personal models
        parts.append([100 * float((one.argmax(1) == y).mean()) for one in found[step - 1 :: step]][1 : ROUNDS + 1])
    return np.array(parts).T


def record_scores() -> dict[int, list[np.ndarray]]:
    """Position of a client -> the scores of each of its evaluations; the table is filled while PFLlib runs."""
    from flcore.clients.clientbase import Client
    from sklearn import metrics
    from torch.utils.data import DataLoader
    from utils.data_utils import read_client_data

    scores: dict[int, list[np.ndarray]] = {i: [] for i in range(CLIENTS)}
    current = [0]

    def load(self: Any, is_train: bool) -> Any:
        current[0] = self.id
        return DataLoader(read_client_data(self.dataset, self.id, is_train=is_train), 1000, shuffle=False)

    def keep(y_true: Any, y_score: np.ndarray, **named: Any) -> float:
        scores[current[0]].append(np.array(y_score))
        return 0.5

    Client.load_train_data = lambda self, batch_size=None: load(self, True)
    Client.load_test_data = lambda self, batch_size=None: load(self, False)
    metrics.roc_auc_score = keep
    return scores


def record_trained(clients: list[Any], rows: Mapping[str, Any]) -> dict[int, list[np.ndarray]]:
    """Position of a client -> the scores of its model after each training; the table is filled while PFLlib runs."""
    scores: dict[int, list[np.ndarray]] = {i: [] for i in range(CLIENTS)}

    def train(client: Any, own: Any) -> None:
        own()
        with torch.no_grad():
            scores[client.id].append(client.model.eval()(torch.from_numpy(rows["test"][client.id][0])).numpy())

    for client in clients:
        client.train = partial(train, client, client.train)
    return scores


def write_rows(root: Path, rows: Mapping[str, Any], with_validation: bool) -> None:
    """The rows as PFLlib's data set; `with_validation`, those that validate are the last ones of the training rows."""
    train = [
        tuple(map(np.concatenate, zip(*parts, strict=True))) for parts in zip(rows["train"], rows["val"], strict=True)
    ]
    for part, clients in (("train", train if with_validation else rows["train"]), ("test", rows["test"])):
        folder = root / "dataset" / "agreement" / part
        folder.mkdir(parents=True, exist_ok=True)
        for i, (x, y) in enumerate(clients):
            with (folder / f"{i}.npz").open("wb") as file:
                np.savez_compressed(file, data=np.array({"x": x, "y": y}, dtype=object))


def prepare(checkout: Path, root: Path) -> None:
    """A folder to run in, and PFLlib's code on the path; what it imports for pictures and attacks is left out."""
    (root / "system").mkdir()
    (root / "dataset" / "agreement").mkdir(parents=True)
    (root / "dataset" / "agreement" / "config.json").write_text(json.dumps({"num_clients": CLIENTS}))
    sys.path.insert(0, str(checkout.resolve() / "system"))
    dlg: Any = types.ModuleType("utils.dlg")
    dlg.DLG = None
    sys.modules["utils.dlg"] = dlg


def main(checkout: str, *names: str) -> None:
    """Print a table of the methods `names`, by default all."""
    with tempfile.TemporaryDirectory() as temporary:
        prepare(Path(checkout), Path(temporary))
        print("| method | PFLlib | largest difference of a client's accuracy, in points |\n| --- | --- | --- |")
        for name in names or PAIRS:
            rows = draw_rows(PAIRS[name].val)
            write_rows(Path(temporary), rows, with_validation=PAIRS[name].val == FIFTH)
            torch.manual_seed(0)
            network = Split()
            ours = run_ours(name, PAIRS[name], rows, network)
            with chdir(Path(temporary) / "system"):
                theirs = run_theirs(PAIRS[name], rows, network)
            difference = round(float(abs(ours - theirs).max()), 9)  # percentages are rounded in the last bit
            print(f"| `{name}` | {PAIRS[name].name} | {difference:g} |", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main(*sys.argv[1:])
