"""The options of a node's command line, checked before anything starts."""

import re
from pathlib import Path

from fedweave.deployment.node import client_data
from fedweave.deployment.wire.spec import HASH_DIGITS
from fedweave.errors import BadInput, format_value

HASH = re.compile(rf"[0-9a-f]{{{HASH_DIGITS},64}}")
ADDRESS = re.compile(r"\S+:(\d{1,5})")


def parse_hashes(text: str) -> list[str]:
    """The hashes of the specifications that a node agrees to, from a text with commas or spaces."""
    words = text.replace(",", " ").split()
    for word in words or [text]:
        if not HASH.fullmatch(word):
            remedy = "`python -m fedweave.deployment show APP` prints it"
            raise BadInput(
                "--spec",
                f"{format_value(word)} is not a hash of {HASH_DIGITS} to 64 of the digits 0-9 and a-f; {remedy}",
            )
    return words


def check_data(data: Path, hashes: list[str]) -> None:
    """Refuse data that the node could not read later.

    Args:
        data: file of a client, or folder with HASH.pt for every specification; HASH are the first digits of its hash.
        hashes: of the specifications that the node agrees to.
    """
    remedy = "write it with: python -m fedweave.deployment rows"
    if not data.exists():
        raise BadInput(f"--data: {data}", f"not found; {remedy}")
    for file in [data / f"{word[:HASH_DIGITS]}.pt" for word in hashes] if data.is_dir() else [data]:
        if not file.is_file():
            raise BadInput(f"--data: {file}", f"not found, or no file; {remedy}")
        client_data.read(file)


def check_address(address: str, port: int) -> None:
    """Refuse an address of the SuperLink without a port, and impossible ports."""
    match = ADDRESS.fullmatch(address)
    if match is None or "//" in address or not 0 < int(match[1]) < 1 << 16:
        raise BadInput("--superlink", f"{format_value(address)} is not HOST:PORT; for example fl.example.org:8000")
    if not 0 < port < 1 << 16:
        raise BadInput("--port", f"{port} is not a port; give one from 1 to 65535")
