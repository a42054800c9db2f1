"""Stores of MLflow, copied from one that is empty."""

import shutil
from pathlib import Path


def fresh(template: Path, name: str) -> str:
    """The address of another empty store in the current folder, a copy of `template`.

    MLflow keeps one connection per address, so no two tests may share one.
    """
    path = shutil.copy(template, Path.cwd() / f"{name}.db")
    return f"sqlite:///{path}"
