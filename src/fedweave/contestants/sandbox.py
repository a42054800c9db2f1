"""Run a command in a sandbox of Linux: python sandbox.py JSON COMMAND...; it imports nothing of fedweave.

JSON may have "read" and "write": the files and folders that the command and its children may read, and may write too.
All others are closed to them by Landlock (Linux 5.13), which needs no rights of an administrator. With a namespace of
processes, the kernel then ends every child when the command ends, whatever it did to hide. "network" is whether the
network is open. It is closed by an own namespace where the system allows one, which has localhost alone, or else TCP by
Landlock (Linux 6.7). Where neither is there, nothing is run. The command ends with the process that has started it.
"""

import ctypes
import fcntl
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

CREATE, ADD, RESTRICT = 444, 445, 446  # system calls of Landlock, the same numbers on every processor
OF_FILES = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 14 | 1 << 15  # rights that a rule of a file may have
READ = 1 << 0 | 1 << 2 | 1 << 3  # execute, read a file, list a folder
NEW_USER, NEW_PROCESSES, NEW_NETWORK = 0x10000000, 0x20000000, 0x40000000
PARENT_ENDS, NO_NEW_PRIVILEGES = 1, 38  # options of prctl
SET_FLAGS, UP = 0x8914, 1  # of a network interface
REFUSED, SIGNALLED = 125, 128  # exit codes: the sandbox ended the command; added to the number of a signal
SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc", "/proc", "/sys")
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


def wrap(
    words: Sequence[str], read: Iterable[Path] | None, write: Iterable[Path] = (), network: bool = False
) -> list[str]:
    """The command that runs `words` in a sandbox.

    Args:
        read: files and folders besides those of the system and of the interpreter in `words`; None: no file is closed.
        write: folders.
        network: whether it is open.
    """
    content: dict[str, object] = {"network": network}
    if read is not None:
        content["read"] = [*SYSTEM, *map(str, (*read, *_homes(Path(words[0]))))]
        content["write"] = [*DEVICES, *map(str, write)]
    return [sys.executable, "-I", "-S", __file__, json.dumps(content), *words]


def _homes(program: Path) -> list[Path]:
    """The program, and the environment of Python that it belongs to."""
    prefix = program.parent.parent
    if not (prefix / "pyvenv.cfg").is_file():
        is_conda = (prefix / "conda-meta").is_dir()
        own = [Path(sys.prefix), Path(sys.base_prefix)] if program.resolve() == Path(sys.executable).resolve() else []
        return [program, *own, *([prefix] if is_conda else [])]
    lines = (line.partition("=") for line in (prefix / "pyvenv.cfg").read_text("utf-8").splitlines())
    base = next((value.strip() for name, _, value in lines if name.strip() == "home"), None)
    return [program, prefix, *([Path(base).resolve().parent] if base else [])]


@cache
def find_problem(files: bool = True) -> str:
    """Why this machine cannot close the network, and with `files` other files too; empty if it can."""
    words = wrap([sys.executable, "-I", "-S", "-c", ""], [] if files else None)
    tried = subprocess.run(words, capture_output=True, text=True)
    return (tried.stderr.strip().splitlines() or ["it cannot be started"])[-1] if tried.returncode else ""


def _call(number: int, *arguments: object) -> int:
    return int(ctypes.CDLL(None, use_errno=True).syscall(number, *arguments))


def end_with_parent() -> None:
    """Let the kernel end this process when the one that has started it ends, also by a signal that nobody can catch."""
    ctypes.CDLL(None).prctl(PARENT_ENDS, signal.SIGKILL, 0, 0, 0)


def separate(network: bool, processes: bool) -> tuple[bool, bool]:
    """Leave the namespaces of the `network` and, for children, of `processes`; whether each was left.

    A namespace of users takes rights from an administrator too, such as that to read the variables of other processes.
    Where the network alone is left, an administrator keeps them: other files stay open.
    """
    library, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    if not processes and library.unshare(NEW_NETWORK) == 0:
        return start_localhost(), False
    if library.unshare(NEW_USER | NEW_NETWORK * network | NEW_PROCESSES * processes) != 0:
        return network and library.unshare(NEW_NETWORK) == 0 and start_localhost(), False
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        Path("/proc/self", name).write_text(text, encoding="ascii")
    return network and start_localhost(), processes


def start_localhost() -> bool:
    """Switch on the only interface of an own network; returns that there is one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as anyone:
        fcntl.ioctl(anyone, SET_FLAGS, struct.pack("16sH14x", b"lo", UP))
    return True


def become_first() -> None:
    """Go on as the child of the first process of the new namespace, with whose end all others end.

    The processes that stay behind pass on how the child ended.
    """
    if first := os.fork():
        code = os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])
        number = -code if code < 0 else code - SIGNALLED
        if number in signal.valid_signals():
            with suppress(OSError):  # of SIGKILL, which has no handler
                signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        os._exit(code)
    end_with_parent()
    if not (child := os.fork()):
        return
    ended, status = os.wait()
    while ended != child:  # adopted ones end, too
        ended, status = os.wait()
    code = os.waitstatus_to_exitcode(status)
    if code == 0 and _has_children():
        print("it left processes behind, which were ended", file=sys.stderr, flush=True)
        os._exit(REFUSED)
    os._exit(code if code >= 0 else SIGNALLED - code)


def _has_children() -> bool:
    """Whether a child, its own or adopted, still runs."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


def restrict(places: Mapping[str, Any], tcp: bool, version: int) -> None:
    """Close all files but those listed, with signals to others (from version 6), and `tcp` (from version 4), for good.

    Raises:
        OSError: the kernel refuses.
    """
    has_files = "read" in places
    every = (1 << 13) - 1 | (version >= 2) << 13 | (version >= 3) << 14 | (version >= 5) << 15
    words = (every * has_files, *([3 * tcp] if version >= 4 else []), *([3 * has_files] if version >= 6 else []))
    attributes = struct.pack(f"{len(words)}Q", *words)
    rules = _checked(_call(CREATE, attributes, ctypes.c_size_t(len(attributes)), 0))
    reading, writing = places.get("read", ()), places.get("write", ())
    for path, rights in (*((path, READ) for path in reading), *((path, every) for path in writing)):
        if not Path(path).exists():
            continue
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        allowed = rights & every & (-1 if Path(path).is_dir() else OF_FILES)
        _checked(_call(ADD, rules, 1, struct.pack("=Qi", allowed, place), 0))
        os.close(place)
    _checked(ctypes.CDLL(None, use_errno=True).prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0))
    _checked(_call(RESTRICT, rules, 0))
    os.close(rules)


def _checked(result: int) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result


def main(content: str, words: list[str]) -> None:
    """Close everything else, then become the command."""
    places = json.loads(content)
    has_files, is_closed = "read" in places, not places["network"]
    version = _call(CREATE, None, ctypes.c_size_t(0), 1) if sys.platform == "linux" else 0
    if sys.platform != "linux" or (has_files and version < 1):
        sys.exit("no sandbox can be made here: it needs Linux 5.13 or newer with Landlock")
    end_with_parent()
    no_network, own_processes = separate(is_closed, has_files) if is_closed or has_files else (False, False)
    closes_tcp = is_closed and not no_network
    if closes_tcp and version < 4:
        sys.exit("no sandbox can be made here: closing the network needs Linux 6.7 or namespaces of users")
    if own_processes:
        become_first()
    try:
        if has_files or closes_tcp:
            restrict(places, closes_tcp, version)
        os.execvp(words[0], words)
    except OSError as error:
        print(f"the sandbox ended with: {words[0]}: {error.strerror}", file=sys.stderr)
        sys.exit(REFUSED)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
