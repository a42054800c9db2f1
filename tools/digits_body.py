"""The pretrained network of the study `adapters`, studies/weights/digits-0-to-4.safetensors.

python -m tools.digits_body    train it on the digits 0 to 4 of scikit-learn, which no client of `digits-sites` has

The file in the repository is the one that the study was run with. Another processor or PyTorch rounds differently, so
that its file has another digest, which makes other runs of the study.
"""

from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

from fedweave.data.sources.digits import PUBLIC, public_digits
from fedweave.models import ClientModel, build
from fedweave.models.base import is_below
from fedweave.processes.forks import one_thread
from fedweave.tensors.seeding import use_seed

FILE = Path("studies/weights/digits-0-to-4.safetensors")
HIDDEN = [128, 128]
STEPS, RATE = 100, 0.002


def main() -> None:
    """Train, and write all but the head, whose classes no client has."""
    FILE.parent.mkdir(exist_ok=True)
    network = train()
    save_file({name: value for name, value in network.state_dict().items() if not is_below(name, network.head)}, FILE)


def train() -> ClientModel:
    """An `mlp` after `STEPS` steps of Adam, each on all images; on one thread, so that sums have one order."""
    x, y = map(torch.from_numpy, public_digits())
    with one_thread():
        with use_seed(0):
            network = build("mlp", tuple(x.shape[1:]), PUBLIC, hidden=HIDDEN)
        optimiser = torch.optim.Adam(network.parameters(), lr=RATE)
        for _ in range(STEPS):
            optimiser.zero_grad()
            F.cross_entropy(network(x), y).backward()
            optimiser.step()
    return network


if __name__ == "__main__":
    main()
