"""The device on which a node trains, which its owner chooses; what leaves it or is stored lies on the CPU."""

import torch

from fedweave.errors import BadInput, choose
from fedweave.tensors import trees
from fedweave.tensors.trees import Tree

NAMES = ("cpu", "cuda", "auto")


def device_of(name: str) -> str:
    """The device called `name`; "auto" is a GPU where there is one.

    Raises:
        BadInput: an unknown name, or "cuda" without a GPU.
    """
    choose(name, NAMES, "device")
    if name == "cuda" and not torch.cuda.is_available():
        raise BadInput(f"device: 'cuda', but there is no GPU here: {_reason()}; choose cpu or auto")
    return "cuda" if name != "cpu" and torch.cuda.is_available() else "cpu"


def _reason() -> str:
    if torch.version.cuda is None:
        return "this PyTorch is built for CPUs only"
    return "PyTorch sees none (look at nvidia-smi and at CUDA_VISIBLE_DEVICES)"


def to_device(tree: Tree, device: str) -> Tree:
    """The tree on `device`."""
    return trees.tree_map(lambda t: t.to(device), tree)
