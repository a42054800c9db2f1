"""Stages by Ray, several on a GPU: on this host, or on all hosts of the cluster that RAY_ADDRESS names.

Ray decides where a stage runs. As with the workers of a pool, a host gets a work order, and the writer commits the
outputs: DVC's locks hold on one host only, so that only the writer's host takes them.
"""

import os
import socket
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedweave.errors import BadInput
from fedweave.processes.parallel import cores

from ..project import PROJECT_VARIABLE
from . import error_lines, host, remote_stages

CONNECT_TIMEOUT = 10  # seconds for an answer at RAY_ADDRESS
POLL = 0.5  # seconds between two queries about a stage
Entries = list[dict[str, str]]


@contextmanager
def connect(parallel: int, devices: Sequence[str]) -> Iterator[None]:
    """Ray for the block: the cluster of RAY_ADDRESS if it is set, else this host's cores and `devices`.

    Raises:
        BadInput: Ray is not installed, nobody answers at the address, or who does asks for a token.
    """
    try:
        import ray
    except ImportError as error:
        raise BadInput("where: 'ray' needs the extra: pip install -c constraints.txt -e '.[ray]'") from error
    address = os.environ.get("RAY_ADDRESS")
    names = list(dict.fromkeys(devices))
    if names and not address:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(names)  # Ray numbers these devices
    local = {"num_cpus": parallel or cores(), "num_gpus": len(names), "include_dashboard": False}
    if address:
        _check_address(address)
    try:
        ray.init(**({"address": address} if address else local), log_to_driver=False)
    except ConnectionError as error:
        way = "if its cluster has a token: export RAY_AUTH_MODE=token, and copy its ~/.ray/auth_token to this host"
        raise BadInput(f"RAY_ADDRESS: Ray at {address} does not accept this host; {way}") from error
    try:
        yield
    finally:
        ray.shutdown()


def _check_address(address: str) -> None:
    """Refuse an address where nobody listens; Ray itself would try for minutes."""
    name, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdecimal():  # such as auto
        return
    try:
        socket.create_connection((name, int(port)), CONNECT_TIMEOUT).close()
    except OSError as error:
        raise BadInput(
            f"RAY_ADDRESS: no Ray answers at {address} ({error.strerror or error}); start it there: ray start --head"
        ) from error


def run_remotely(
    stage: str, gpus: float, retries: int, wait: Callable[[float], None], show: Callable[[str], None]
) -> None:
    """Let a host of Ray's cluster run `stage`, and commit its outputs.

    Args:
        stage: its address in dvc.yaml.
        gpus: the part of a GPU that it takes, if the cluster has any.
        retries: how often it is sent again after its host or its process was lost.
        wait: called between two queries; may raise to stop the waiting.
        show: called with every line that the stage prints.

    Raises:
        RuntimeError: the stage failed.
    """
    import ray

    share = gpus if ray.cluster_resources().get("GPU") else 0
    function = ray.remote(num_cpus=1, num_gpus=share, max_retries=retries, num_returns="streaming")(perform)
    with remote_stages.issue(stage) as work_order:
        lines = function.remote(work_order, str(Path.cwd()))
        outputs: Entries = []
        try:
            for item in _items(lines, wait):
                if isinstance(item, str):
                    show(item)
                else:
                    outputs = item
        except BaseException:
            ray.cancel(lines, force=True)
            raise
        remote_stages.accept(work_order, outputs)


def _items(lines: Any, wait: Callable[[float], None]) -> Iterator[Any]:
    """What a generator on another host yields, as it comes; an error there is raised here in one line."""
    import ray

    while True:
        ready, _ = ray.wait([lines], timeout=POLL, fetch_local=False)
        wait(0.0)
        if ready:
            try:
                yield ray.get(next(lines))
            except StopIteration:
                return
            except ray.exceptions.RayTaskError as error:
                raise error.cause or error from None


def perform(work_order: remote_stages.WorkOrder, folder: str) -> Iterator[str | Entries]:
    """Run one stage on this host, in its project's folder: yields its lines, and last the entries of its outputs.

    Raises:
        StageError: it failed.
    """
    os.chdir(os.environ.get(PROJECT_VARIABLE, folder))
    children = host.set_resources(()).children
    with remote_stages.prepare(work_order) as command:
        with children.start(command) as process:
            assert process.stdout is not None
            last_lines = deque[str](maxlen=20)
            for line in map(str.strip, process.stdout):
                last_lines.append(line)
                yield line
            code = process.wait()
        if code:
            raise host.StageError(*error_lines.find_reason(last_lines, code))
    yield remote_stages.deliver(work_order)
