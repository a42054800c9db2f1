"""The files of checkpoints: one per repetition and moment, named after the specification of the run."""

from pathlib import Path

from fedweave.files import sweep
from fedweave.study.spec import Run


def stored(folder: Path, run: Run, seed: int) -> list[Path]:
    """The checkpoints of a repetition, the newest first."""
    return sorted(folder.glob(f"{run.fingerprint()}-{seed}-*.pt"), reverse=True)


def forget(folder: Path, run: Run) -> None:
    """Remove the checkpoints of a run whose results are written."""
    sweep(folder, f"{run.fingerprint()}-*")
    for path in folder.glob(f"{run.fingerprint()}-*.pt"):
        path.unlink(missing_ok=True)
