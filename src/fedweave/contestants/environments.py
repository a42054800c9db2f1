"""Environments of contestants: built once from a file of requirements, by uv or else by venv and pip."""

import hashlib
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

from fedweave.errors import ContestantFailed
from fedweave.files import stored
from fedweave.files.atomic import hold_lock

PYTHON = ("python", "python3")  # words of a command that mean the interpreter of its environment
LAST_WORDS = 4096  # bytes at the end of a log, of which a message has the last line
LONGEST_LINE = 400  # signs of it that a message has
READY = "ready"  # a file that is written last


def prepare(requirements: Path) -> Path:
    """The interpreter of the environment with the packages of `requirements`, which is built if it does not exist.

    It is kept in ~/.cache/fedweave (or $XDG_CACHE_HOME) under the digest of the file and the version of Python.

    Raises:
        ContestantFailed: it cannot be built.
    """
    version = ".".join(map(str, sys.version_info[:2]))
    digest = hashlib.sha256(requirements.read_bytes() + f" {version} {sys.base_prefix}".encode()).hexdigest()[:16]
    cache = stored.folder() / "environments"
    folder, python = cache / digest, cache / digest / "bin" / "python"
    with hold_lock(cache / f"{digest}.lock"):  # of several repetitions, one builds it
        if not (folder / READY).is_file():
            shutil.rmtree(folder, ignore_errors=True)
            _build(folder, python, requirements, cache / f"{digest}.log")
            (folder / READY).touch()
    return python


def _build(folder: Path, python: Path, requirements: Path, log: Path) -> None:
    if uv := shutil.which("uv"):
        make: list[str] = [uv, "venv", "--python", sys.executable, str(folder)]
        install = [uv, "pip", "install", "--python", str(python), "-r", str(requirements)]
    else:
        make = [sys.executable, "-m", "venv", str(folder)]
        install = [str(python), "-m", "pip", "install", "-r", str(requirements)]
    with log.open("wb") as output:
        for command in (make, install):
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, cwd=requirements.parent)
            if done.returncode:
                problem = f"{requirements}: {last_line(log)} (all of it: {log})"
                raise ContestantFailed("its environment could not be built", problem)


def last_line(log: Path) -> str:
    """The last line of a file of text, without signs that a terminal obeys; or the word "nothing"."""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - LAST_WORDS))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    shown = "".join(sign if sign.isprintable() else " " for sign in lines[-1]) if lines else "nothing"
    return textwrap.shorten(shown, LONGEST_LINE, placeholder=" ...")
