"""Tests share the toy tasks in this folder; one thread each keeps them quick beside one another."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
torch.set_num_threads(1)


@pytest.fixture
def seeded() -> None:
    """Torch's global generator, the same for every test that asks for it."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API of a real Prefect server, one for all tests of the group `prefect`."""
    from servers import prefect_server

    with prefect_server(tmp_path_factory.mktemp("prefect")) as api:
        yield api
        if "prefect" in sys.modules:  # what this process still has to tell it
            from prefect.events.worker import EventsWorker
            from prefect.logging.handlers import APILogWorker

            for service in (APILogWorker, EventsWorker):
                service.drain_all(timeout=10)
