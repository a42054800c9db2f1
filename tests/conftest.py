"""Tests share the toy tasks in this folder; one thread each keeps them quick beside one another."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)


@pytest.fixture
def seeded() -> None:
    """Torch's global generator, the same for every test that asks for it."""
    torch.manual_seed(0)
