"""Files that `fedweave import` copied into a project."""

from pathlib import Path

from fedweave.errors import BadInput
from fedweave.files.atomic import digest_file


def checked(file: Path, sha256: str) -> Path:
    """Return `file` if its content has the digest `sha256` of the import.

    The plug-in names the digest in its text, and DVC compares that text: a run is repeated after a new import.
    """
    if not file.is_file():
        raise BadInput(f"{file}: is missing; restore it, or import it again: fedweave import FILE --force")
    if digest_file(file) != sha256:
        way = f"restore it, or import it again with its options: fedweave import {file.name} --name {file.stem} --force"
        raise BadInput(f"{file}: was changed after its import, so that trained runs are of other rows; {way}")
    return file
