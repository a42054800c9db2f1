"""Stage `partition`: which rows belong to which client."""

import hashlib
import json

from fedweave import data
from fedweave.errors import choose
from fedweave.files import write_atomic
from fedweave.pipelines import paths
from fedweave.pipelines.processes import stage
from fedweave.study import spec


def main(name: str) -> None:
    """Distribute the data set of task `name` over clients and write data/partitions/<name>."""
    tasks = spec.load().tasks
    task = tasks[choose(name, tasks, "params.yaml: tasks")]
    features, folder = paths.FEATURES / task.dataset, paths.PARTITIONS / name
    dataset = data.load_dataset(features)
    partition_ = data.partition(dataset, **task.partition)
    data.save_partition(folder / "partition.npz", partition_)
    summary = data.describe(folder, dataset, partition_)
    # Training depends on this file in place of the arrays, so that new features with the same split are noticed.
    sums = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(features.iterdir())}
    write_atomic(folder / "dataset.json", json.dumps({"dataset": task.dataset, "sha256": sums}, indent=2) + "\n")
    print(f"{name}: {partition_.clients} clients, heterogeneity {summary.get('heterogeneity', float('nan')):.3f}")


if __name__ == "__main__":
    stage(main)
