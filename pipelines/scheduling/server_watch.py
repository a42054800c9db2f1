"""A flow whose Prefect server does not answer any more waits for it, and ends in one line if it stays away."""

import logging
import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from .. import addresses, ui
from ..processes import end_all

LOSS_TIMEOUT = 120.0  # seconds without an answer after which a flow ends
POLL = 3.0  # seconds between two questions to the server
PATIENCE = 30.0  # seconds for one answer: on a busy machine a server is slow
# With pauses of 2, 4, 8 seconds and so on, Prefect gives a request up after 254 seconds, later than the flow ends.
RETRIES = 7
NOISY = ("prefect.events.clients", "prefect._internal.concurrency")  # loggers of events that are lost meanwhile


@contextmanager
def use(server: dict[Any, str]) -> Iterator[None]:
    """Run the flows of the block on the server with the settings `server`, as `pool.server_settings` returns them; on a
    temporary one if neither they nor PREFECT_API_URL name one.

    Raises:
        BadInput: the temporary server does not start.
    """
    named = PREFECT_API_URL.value()
    address = named or server.get(PREFECT_API_URL)
    wait = "start the server again, then " if named else ""
    way_out = f"{wait}run the same command again: it goes on where it stopped"
    with (
        nullcontext(address) if address else ui.temporary_prefect() as api,
        temporary_settings({PREFECT_API_URL: api, PREFECT_CLIENT_MAX_RETRIES: RETRIES}),
        _end_without_server(api, way_out),
        _delivery(),
    ):
        yield


@contextmanager
def _end_without_server(api: str, way_out: str) -> Iterator[None]:
    """Inside the block, end this process in one line when the server at `api` has not answered for `LOSS_TIMEOUT`.

    A shorter absence has no effect but two lines, since Prefect repeats its requests. After that it would print a
    traceback for each of them.
    """
    levels = {logger: logger.level for logger in map(logging.getLogger, NOISY)}
    for logger in levels:
        logger.setLevel(logging.CRITICAL)
    is_over = threading.Event()
    threading.Thread(target=_watch, args=(api, way_out, is_over), daemon=True).start()
    try:
        yield
    finally:
        is_over.set()
        for logger, level in levels.items():
            logger.setLevel(level)


@contextmanager
def _delivery() -> Iterator[None]:
    """After the block, wait until Prefect has sent its last logs and events.

    It would send them at the end of the interpreter, when a temporary server has ended, and repeat that for minutes.
    """
    try:
        yield
    finally:
        for service in (APILogWorker, EventsWorker):
            service.drain_all()


def _watch(api: str, way_out: str, is_over: threading.Event) -> None:
    lost_at = 0.0
    while not is_over.wait(POLL):
        reason, now = addresses.connection_error(api, PATIENCE), time.monotonic()
        if lost_at and not reason:
            _say("Prefect's server answers again")
        elif reason and not lost_at:
            _say(f"Prefect's server at {api} does not answer ({reason}); the flow waits for up to {LOSS_TIMEOUT:.0f} s")
        lost_at = (lost_at or now) if reason else 0.0
        if lost_at and now - lost_at >= LOSS_TIMEOUT and not is_over.is_set():
            end_all()
            _say(f"error: Prefect's server at {api} has not answered for {now - lost_at:.0f} s; {way_out}")
            os._exit(1)  # the end of the interpreter would wait for requests


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
