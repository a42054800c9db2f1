"""Ctrl-C while a process is started: it is neither lost nor raised in the middle."""

import os
import signal
import threading

import pytest

from fedweave.processes.signals import block_interrupts


@pytest.fixture(autouse=True)
def as_in_a_terminal():
    """SIGINT has its usual effect, as the tests themselves may run in the background of a shell."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupt_by_another_thread() -> None:
    """SIGINT of a terminal, which the kernel may give to any thread of a process that does not block it."""
    thread = threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGINT))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # a thread has the mask of the one that starts it
    thread.start()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    thread.join()


@pytest.mark.parametrize(
    "interrupt", [interrupt_by_another_thread, lambda: os.kill(os.getpid(), signal.SIGINT)], ids=["thread", "process"]
)
def test_ctrl_c_takes_effect_at_the_end_of_the_block(interrupt):
    """In it, the functions that Python calls on a fork would print the exception and go on."""
    reached = []

    def start() -> None:
        with block_interrupts():
            interrupt()
            reached.append(True)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert reached
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_is_ignored_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with block_interrupts():
        interrupt_by_another_thread()
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_a_started_process_ignores_ctrl_c():
    """A forked one has the mask of the block."""
    with block_interrupts():
        if not (child := os.fork()):
            blocked = signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
            os._exit(0 if blocked else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
