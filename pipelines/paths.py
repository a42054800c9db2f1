"""Where things lie, relative to the project folder."""

import hashlib
from pathlib import Path

import fedweave

RAW = Path("data/raw")
FEATURES = Path("data/features")
PARTITIONS = Path("data/partitions")
RESULTS = Path("results")
STATE = Path(".fedweave")  # what survives a stage: checkpoints and the journals of searches


def tuned(study: str, task: str, run: str) -> Path:
    """What tuning found for a run."""
    return RESULTS / study / "tuned" / task / f"{run}.json"


def run(study: str, key: str) -> Path:
    """The folder of a finished run."""
    return RESULTS / study / "runs" / key


def code_digest(method: str) -> str:
    """A hash of the code that a run of `method` depends on: a checkpoint of other code is not continued."""
    package = Path(fedweave.__file__).parent
    core = [*package.glob("*.py"), *(f for part in ("data", "families", "hyper", "models") for f in (package / part).glob("*.py"))]
    content = hashlib.sha256()
    for file in sorted([*core, package / "methods" / f"{method}.py"]):
        content.update(file.read_bytes())
    return content.hexdigest()[:16]
