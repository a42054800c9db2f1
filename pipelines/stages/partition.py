"""Stage `partition`: which rows belong to which client."""

import hashlib

from fedweave import data
from fedweave.errors import choose, format_count, relocate
from fedweave.files.atomic import write_json
from fedweave.study import spec

from .. import paths
from ..processes import run_main


def digest(partition: data.Partition) -> str:
    """A hash of the rows, nodes and edges of every client."""
    hashed = hashlib.sha256()
    for part in ("train", "val", "test", "nodes", "edges"):
        for array in getattr(partition, part) or ():
            hashed.update(f"{part} {array.shape}".encode() + array.tobytes())
    return hashed.hexdigest()


def main(name: str) -> None:
    """Distribute the data set of task `name` over clients and write data/partitions/<name>.

    The files are of the first split. Training makes the other splits itself; dataset.json has their digests.
    """
    tasks = spec.load().tasks
    task = tasks[choose(name, tasks, "params.yaml: tasks")]
    features, folder = paths.FEATURES / task.dataset, paths.PARTITIONS / name
    dataset = data.load_dataset(features, raw=False)
    first, *other_splits = data.splits(task.partition)
    with relocate({"partition": f"params.yaml: tasks.{name}.partition"}):
        partition_ = data.partition(dataset, **first)
    data.save_partition(folder / "partition.npz", partition_)
    summary = data.describe(folder, dataset, partition_)
    # Training depends on this file instead of the arrays, so that DVC notices new features with the same split.
    sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(features.iterdir())}
    facts = {"dataset": task.dataset, "sha256": sums}
    if other_splits:
        facts["splits"] = {str(block["seed"]): digest(data.partition(dataset, **block)) for block in other_splits}
    write_json(folder / "dataset.json", facts, indent=2)
    suffix = f", heterogeneity {summary['heterogeneity']:.3f}" if "heterogeneity" in summary else ""
    print(f"{name}: {format_count(partition_.clients, 'client')}{suffix}")


if __name__ == "__main__":
    run_main(main)
