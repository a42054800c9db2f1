"""Paths of data, results and state, relative to the project folder."""

from pathlib import Path

import fedweave
from fedweave.errors import BadInput
from fedweave.study import spec
from fedweave.study.config import example, read_yaml

RAW = Path("data/raw")
FEATURES = Path("data/features")
PARTITIONS = Path("data/partitions")
RESULTS = Path("results")
STATE = spec.STATE  # files that stages keep between runs: checkpoints, journals of searches, the kernel
PACKAGE = Path(fedweave.__file__).parent
CODE = Path("data/code")  # digests of code: of packages, and of what data sets and partitions depend on


def current_study() -> str:
    """The study of params.yaml.

    Raises:
        BadInput: there is no params.yaml, it is not YAML, or it names no study.
    """
    content = read_yaml(spec.PARAMS)
    if "study" not in content:
        raise BadInput(f"{spec.PARAMS}: study", f"missing; write the file again with: fedweave study use {example()}")
    return str(content["study"])


def tuning_result(study: str, task: str, run: str) -> Path:
    """The file with the settings that tuning chose for a run."""
    return RESULTS / study / "tuned" / task / f"{run}.json"


def trials(study: str, task: str, run: str) -> Path:
    """The file with the trials of a search."""
    return RESULTS / study / "tuned" / task / "trials" / f"{run}.json"


def run(study: str, key: str) -> Path:
    """The folder of a finished run."""
    return RESULTS / study / "runs" / key


def code(study: str) -> Path:
    """The folder with digests of the code that the stages of a study depend on."""
    return RESULTS / study / "code"
