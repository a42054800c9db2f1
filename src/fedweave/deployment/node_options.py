"""What the owner of a node says on its command line, checked before anything starts."""

import re
from pathlib import Path

from fedweave.deployment import client_data
from fedweave.deployment.spec import SHORTEST
from fedweave.errors import BadInput, format_value

HASH = re.compile(rf"[0-9a-f]{{{SHORTEST},64}}")
ADDRESS = re.compile(r"\S+:(\d{1,5})")


def parse_hashes(text: str) -> list[str]:
    """The specifications that a node agrees to, from a text with commas or spaces.

    Raises:
        BadInput: one is no hash, or too short to name one.
    """
    words = text.replace(",", " ").split()
    for word in words or [text]:
        if not HASH.fullmatch(word):
            way = "`python -m fedweave.deployment show APP` prints it"
            raise BadInput(
                f"--spec: {format_value(word)} is no hash of {SHORTEST} to 64 of the digits 0-9 and a-f; {way}"
            )
    return words


def check_data(data: Path, agreed: list[str]) -> None:
    """Refuse data that the node could not read later.

    Args:
        data: file of a client, or folder with HASH.pt for every specification, by the first digits of its hash.

    Raises:
        BadInput: there is no such file, or it holds no data of a client.
    """
    way = "write it with: python -m fedweave.deployment rows"
    if not data.exists():
        raise BadInput(f"--data: {data}: not found; {way}")
    for file in [data / f"{word[:SHORTEST]}.pt" for word in agreed] if data.is_dir() else [data]:
        if not file.is_file():
            raise BadInput(f"--data: {file}: not found, or no file; {way}")
        client_data.read(file)


def check_address(address: str, port: int) -> None:
    """Refuse an address of the SuperLink without a port, and ports that there are not.

    Raises:
        BadInput: naming it.
    """
    found = ADDRESS.fullmatch(address)
    if found is None or "//" in address or not 0 < int(found[1]) < 1 << 16:
        raise BadInput(f"--superlink: {format_value(address)} is no HOST:PORT; give such as fl.example.org:8000")
    if not 0 < port < 1 << 16:
        raise BadInput(f"--port: {port} is no port; give one from 1 to 65535")
