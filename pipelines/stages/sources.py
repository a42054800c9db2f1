"""Stage `sources`: digests of the code that every run depends on, so that a training stage needs one dependency for it."""

import hashlib

from fedweave.files import write_table
from fedweave.pipelines import paths
from fedweave.pipelines.processes import stage
from fedweave.study import spec


def main() -> None:
    """Write results/<study>/sources.csv: file, sha256."""
    rows = [
        (str(path.relative_to(paths.PACKAGE)), hashlib.sha256(path.read_bytes()).hexdigest())
        for path in paths.shared_sources()
    ]
    write_table(paths.RESULTS / spec.load().name / "sources.csv", ("file", "sha256"), rows)


if __name__ == "__main__":
    stage(main)
