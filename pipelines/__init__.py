"""Stages, commands and services around the library: the only part that imports Prefect, MLflow, Optuna and DVC."""

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
# The project is the current folder or the checkout of this code: the first one with a dvc.yaml.
FOLDERS = (Path.cwd(), HERE.parent)
ROOT = next((folder for folder in FOLDERS if (folder / "dvc.yaml").is_file()), Path.cwd())


def template(name: str) -> Path:
    """The file `name` that a new project begins with: from the installed package, or from the checkout."""
    return next(file for file in (HERE / "project" / name, HERE.parent / name) if file.is_file())


def _environment(file: Path) -> dict[str, str]:
    """The NAME=value lines of `file`, without those that the caller's environment already sets."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    pairs = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {name: value for name, value in pairs.items() if name not in os.environ}


os.environ.update(_environment(ROOT / ".env"))
os.environ.update(_environment(template(".env")))  # defaults for what the project does not set
