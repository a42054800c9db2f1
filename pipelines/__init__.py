"""The edges: one thin command per DVC stage; the only place that knows Prefect, MLflow, Optuna and DVC."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def _environment(file: Path) -> dict[str, str]:
    """The NAME=value lines of `file`, without those that the caller's environment already sets."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
    pairs = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {name: value for name, value in pairs.items() if name not in os.environ}


os.environ.update(_environment(ROOT / ".env"))
