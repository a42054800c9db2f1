"""The edges: one thin command per DVC stage; the only place that knows Prefect, MLflow, Optuna and DVC."""

import os
from pathlib import Path

HERE = Path(__file__).resolve().parent
# Where the project may be: a folder with dvc.yaml, the current one or the checkout of this code
PLACES = (Path.cwd(), HERE.parent)
ROOT = next((place for place in PLACES if (place / "dvc.yaml").is_file()), Path.cwd())


def template(name: str) -> Path:
    """A file of a project as it is delivered: inside of the package where it is installed, else of the checkout."""
    return next(file for file in (HERE / "project" / name, HERE.parent / name) if file.is_file())


def _environment(file: Path) -> dict[str, str]:
    """The NAME=value lines of `file`, without those that the caller's environment already sets."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    pairs = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {name: value for name, value in pairs.items() if name not in os.environ}


os.environ.update(_environment(ROOT / ".env"))
os.environ.update(_environment(template(".env")))  # what the project leaves out
