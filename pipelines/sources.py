"""Stage `sources`: digests of the code that every run depends on, so that a training stage needs one dependency for it."""

import hashlib
from pathlib import Path

import fedweave
from fedweave import spec
from fedweave.files import write_table
from pipelines import paths
from pipelines.processes import stage


def main() -> None:
    """Write results/<study>/sources.csv: file, sha256."""
    package = Path(fedweave.__file__).parent
    rows = [(str(path.relative_to(package)), hashlib.sha256(path.read_bytes()).hexdigest()) for path in paths.shared_sources()]
    write_table(paths.RESULTS / spec.load().name / "sources.csv", ("file", "sha256"), rows)


if __name__ == "__main__":
    stage(main)
