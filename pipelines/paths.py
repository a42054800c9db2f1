"""Where things lie, relative to the project folder."""

import hashlib
from pathlib import Path

import fedweave

RAW = Path("data/raw")
FEATURES = Path("data/features")
PARTITIONS = Path("data/partitions")
RESULTS = Path("results")
STATE = Path(".fedweave")  # what survives a stage: checkpoints and the journals of searches
PACKAGE = Path(fedweave.__file__).parent
READERS = ("api", "plots", "report", "results", "testing")  # packages that training does without
UNUSED = ("study/catalogue.py", "runs/serving.py")  # and modules


def tuned(study: str, task: str, run: str) -> Path:
    """What tuning found for a run."""
    return RESULTS / study / "tuned" / task / f"{run}.json"


def trials(study: str, task: str, run: str) -> Path:
    """The trials of a search."""
    return RESULTS / study / "tuned" / task / "trials" / f"{run}.json"


def run(study: str, key: str) -> Path:
    """The folder of a finished run."""
    return RESULTS / study / "runs" / key


def shared_sources() -> list[Path]:
    """The files whose code every run depends on: the package without its methods and without what only reads results."""
    apart = {*READERS, "methods", "pipelines"}
    files = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    return [path for name, path in sorted(files.items()) if name.split("/")[0] not in apart and name not in UNUSED]


def code_digest(method: str) -> str:
    """A hash of the code that a run of `method` depends on: a checkpoint of other code is not continued."""
    content = hashlib.sha256()
    own = PACKAGE / "methods" / f"{method}.py"
    for file in [*shared_sources(), *([own] if own.is_file() else [])]:  # a user's method lies elsewhere
        content.update(file.read_bytes())
    return content.hexdigest()[:16]
