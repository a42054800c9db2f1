"""One process that reads damaged files until its time is over. It records each file beforehand, in case it crashes."""

import faulthandler
import mmap
import os
import resource
import struct
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from random import Random

from tests.fuzz.targets import TARGETS, Target

HEAD = struct.Struct("<QQQ")  # inputs begun, inputs refused, bytes of the present one
ROOM = 1 << 20
MEMORY = 512 << 20  # bytes that no reader may take beyond what the process had
FINDING = 3  # exit code


class Journal:
    """The present input in a file that remains after a crash."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(ROOM))
        with path.open("r+b") as file:
            self.memory = mmap.mmap(file.fileno(), ROOM)
        self.begun = self.refused = 0

    def begin(self, raw: bytes) -> None:
        """Record an input before it is read."""
        self.begun += 1
        HEAD.pack_into(self.memory, 0, self.begun, self.refused, len(raw))
        self.memory[HEAD.size : HEAD.size + len(raw)] = raw


def peak() -> int:
    """The peak memory of this program in bytes. The kernel's own count begins with that of the parent."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) << 10


def limit_memory() -> None:
    """The limit is the present memory of the process, and four times `MEMORY`: a larger allocation fails at once."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + 4 * MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def examine(target: Target, path: Path, raw: bytes) -> bool:
    """Let `target` read `raw`. Returns whether it refused. Any other error is a finding."""
    path.write_bytes(raw)
    try:
        target.read(path)
    except target.refusals as error:
        line = str(error)
        assert line, "a refusal without a word"
        assert "\n" not in line, f"a refusal of several lines: {line!r}"
        return True
    return False


def inputs(target: Target, saved: list[bytes], seed: int) -> Iterator[bytes]:
    """The files of earlier findings, then damaged ones without end."""
    random, corpus = Random(seed), target.corpus()
    yield from (*corpus, *saved)
    while True:
        yield target.mutate(random, corpus)


def main(name: str, seed: int, count: int, seconds: float, folder: Path, corpus: Path) -> int:
    """Read up to `count` inputs in about `seconds`. Returns an exit code."""
    faulthandler.enable()
    target, journal = TARGETS[name], Journal(folder / "journal")
    saved = [file.read_bytes() for file in sorted(corpus.glob(f"{name}-*"))]
    for raw in target.corpus():  # it imports its modules before memory counts
        examine(target, folder / f"input{target.suffix}", raw)
    limit_memory()
    before, end = peak(), time.monotonic() + seconds
    sound = len(target.corpus()) + len(saved)  # a slow process also reads one damaged file
    for raw in inputs(target, saved, seed):
        if journal.begun >= count or (journal.begun > sound and time.monotonic() >= end):
            return 0
        journal.begin(raw)
        try:
            journal.refused += examine(target, folder / f"input{target.suffix}", raw)
            assert peak() - before < MEMORY, f"took {peak() - before >> 20} MiB of memory"
        except BaseException:
            traceback.print_exc()
            return FINDING
    return 0


if __name__ == "__main__":
    name, seed, count, seconds, folder, corpus = sys.argv[1:]
    status = main(name, int(seed), int(count), float(seconds), Path(folder), Path(corpus))
    sys.stderr.flush()
    os._exit(status)  # the limit on memory would also apply while the interpreter ends
