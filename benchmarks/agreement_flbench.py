"""The same rows, first model and batches here and in FL-bench: python -m benchmarks.agreement_flbench CHECKOUT PYTHON.

CHECKOUT is a folder of github.com/KarhouTam/FL-bench, which is only read, and PYTHON an interpreter with its packages.
Its command line runs as a contestant, and the log-loss of every client after the last round is compared.
`docs/agreement.md` has the table that it prints; names of methods behind the two arguments choose some.
"""

import sys
import warnings
from typing import Any

import numpy as np
import torch
from torch import nn

import fedweave as fw
from benchmarks.agreement import CLASSES, EPOCHS, RATE, ROUNDS, draw_rows

# A method here with its settings, and settings of FL-bench.
PAIRS: dict[str, tuple[dict[str, Any], str]] = {
    "local": ({}, "method=local"),
    "fedavg": ({}, "method=fedavg"),
    "fedprox": ({"mu": 0.5}, "method=fedprox fedprox.mu=0.5"),
    "fedper": ({}, "method=fedper"),
    "fedrep": ({"head_epochs": 1}, "method=fedrep +fedrep.train_body_epoch=2 common.local_epoch=3"),
    "ditto": ({"lam": 0.7, "personal_epochs": 2}, "method=ditto +ditto.lamda=0.7 +ditto.pers_epoch=2"),
    "fedbabu": ({}, f"method=fedbabu common.test.client.finetune_epoch={EPOCHS}"),
    "lg_fedavg": ({}, "method=lgfedavg"),
    "moon": ({"mu": 2.0, "tau": 0.5}, "method=moon +moon.mu=2 +moon.tau=0.5"),
}
SAME = f"common.join_ratio=1 common.local_epoch={EPOCHS} common.batch_size=1000 optimizer.lr={RATE}"


class TwoLayers(nn.Module):
    """FL-bench's network 2nn, with the first values that it has for the seed 0."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.base = nn.Sequential(nn.Linear(4, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU())
        self.classifier = nn.Linear(200, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.base(x.flatten(1)))


def build_federation() -> fw.Federation:
    """The rows of `benchmarks.agreement`."""
    rows = draw_rows()
    x, y = (np.concatenate([pair[k] for pairs in rows.values() for pair in pairs]) for k in (0, 1))
    client = [i for pairs in rows.values() for i, (_, targets) in enumerate(pairs) for _ in targets]
    split = [part for part, pairs in rows.items() for _, targets in pairs for _ in targets]
    return fw.Federation.from_arrays(x, y, client=client, split=split, normalize="none", target="classes")


def main(checkout: str, python: str, *names: str) -> None:
    """Print a table of the methods `names`, by default all."""
    federation = build_federation()
    print("| method | FL-bench | largest difference of a client's log-loss |\n| --- | --- | --- |")
    for name in names or PAIRS:
        settings, words = PAIRS[name]
        theirs = fw.contestants.flbench(checkout, f"{SAME} {words}", python=python, name="theirs", timeout=900)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = fw.compare(
                federation,
                {name: fw.methods.METHODS[name](**settings), "theirs": theirs},
                model=TwoLayers(),
                head="classifier",
                rounds=ROUNDS,
                seeds=[0],
                lr=RATE,
                epochs=EPOCHS,
                batch_size=0,
                tune=0,
                metric="log_loss",
                evaluate={"point": "pre", "select": "last"},
                central=False,
                progress=False,
            )
        if result.lost:
            raise SystemExit(result.lost[0])
        difference = float(abs(result[name].scores - result["theirs"].scores).max())
        print(f"| `{name}` | {words} | {difference:.2g} |", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
