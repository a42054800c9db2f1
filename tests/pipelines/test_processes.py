"""What is known of a child process that has ended."""

import sys

import psutil

from fedweave.pipelines.processes import ChildProcesses, wait_measured

HOLD = "held = b'x' * {} * 2**20; import sys; sys.exit({})"


def measured(mib: int, code: int) -> tuple[int, float]:
    with ChildProcesses().start([sys.executable, "-c", HOLD.format(mib, code)]) as process:
        return wait_measured(process)


def test_memory_is_that_of_this_child() -> None:
    """And not of a larger one before it. A fork begins with the memory of its parent."""
    mine = psutil.Process().memory_info().rss / 2**20
    large, small = measured(int(mine) + 300, 0), measured(1, 3)
    assert (large[0], small[0]) == (0, 3)
    assert large[1] > mine + 300 > small[1] + 200


def test_a_child_that_somebody_else_has_waited_for() -> None:
    """Such as a handler of signals, between the calls."""
    with ChildProcesses().start([sys.executable, "-c", "import sys; sys.exit(4)"]) as process:
        process.wait()
        assert wait_measured(process) == (4, 0.0)
