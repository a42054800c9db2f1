"""Where things lie, relative to the project folder."""

import hashlib
from pathlib import Path

import fedweave

RAW = Path("data/raw")
FEATURES = Path("data/features")
PARTITIONS = Path("data/partitions")
RESULTS = Path("results")
SHARED = ("data", "families", "hyper", "models")
READERS = ("catalogue", "stats")
STATE = Path(".fedweave")  # what survives a stage: checkpoints and the journals of searches


def tuned(study: str, task: str, run: str) -> Path:
    """What tuning found for a run."""
    return RESULTS / study / "tuned" / task / f"{run}.json"


def run(study: str, key: str) -> Path:
    """The folder of a finished run."""
    return RESULTS / study / "runs" / key


def shared_sources() -> list[Path]:
    """The files whose code every run depends on: the package without its methods and without what only reads results."""
    package = Path(fedweave.__file__).parent
    parts = (path for part in SHARED for path in (package / part).glob("*.py"))
    return sorted([*(path for path in package.glob("*.py") if path.stem not in READERS), *parts])


def code_digest(method: str) -> str:
    """A hash of the code that a run of `method` depends on: a checkpoint of other code is not continued."""
    content = hashlib.sha256()
    for file in [*shared_sources(), Path(fedweave.__file__).parent / "methods" / f"{method}.py"]:
        content.update(file.read_bytes())
    return content.hexdigest()[:16]
