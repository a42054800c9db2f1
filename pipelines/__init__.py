"""Stages, commands and services around the library: the only part that imports Prefect, MLflow and DVC."""

import io
import os
import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
LINE = re.compile(r"""(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(["']?)(.*)\2""")  # of .env: name, quote, value
# The project is the current folder or the checkout of this code: the first one with a dvc.yaml.
FOLDERS = (Path.cwd(), HERE.parent)
ROOT = next((folder for folder in FOLDERS if (folder / "dvc.yaml").is_file()), Path.cwd())


def template(name: str) -> Path:
    """The file `name` that a new project begins with: from the installed package, or from the checkout."""
    return next(file for file in (HERE / "project" / name, HERE.parent / name) if file.is_file())


def _environment(file: Path) -> dict[str, str]:
    """The NAME=value lines of `file`, without those that the caller's environment already sets.

    Spaces, quotes around a value and `export` mean the same as for a shell and for Docker Compose.
    """
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines() if file.is_file() else []
    matches = (LINE.fullmatch(line.strip()) for line in lines)
    return {match[1]: match[3] for match in matches if match and match[1] not in os.environ}


os.environ.update(_environment(ROOT / ".env"))
os.environ.update(_environment(template(".env")))  # defaults for what the project does not set

if isinstance(sys.stdout, io.TextIOWrapper):  # a character that a locale such as de_DE lacks is shown as its code
    sys.stdout.reconfigure(errors="backslashreplace")
