"""A frozen body that runs once, and in every step: processor time of a round on images, with its evaluation.

    python -m benchmarks.frozen_bodies

Ten clients have the 1,797 images of digits, resized to 32 x 32 pixels. MobileNetV3-small of torchvision with random
weights is their body, and they train its head. No file of features is read.
"""

import os
import tempfile

import fedweave as fw
from fedweave.comparison.plan import plan
from fedweave.runs import build, repetition

ROUNDS = 2
MODEL = {"name": "torchvision", "arch": "mobilenet_v3_small", "size": 32, "adapter": "head"}


def measure(features: bool) -> tuple[float, float]:
    """(seconds of preparation, seconds of a round), of processor time."""
    federation = fw.Federation.from_dataset("digits", "dirichlet", clients=10, beta=0.5)
    train = {"rounds": ROUNDS, "batch_size": 32, "lr": 0.05, "executor": "loop", "device": "cpu"}
    planned = plan(federation, ["fedavg_ft"], model=MODEL, seeds=[0], train=train)
    run = planned.study.run(next(iter(planned.study.runs)))
    with tempfile.TemporaryDirectory() as folder:
        os.environ["XDG_CACHE_HOME"] = folder
        start = processor_time()
        prepared = build.prepare(run, *planned.inputs, features=features)
        middle = processor_time()
        for _ in repetition.iterate_reports(prepared, 0):
            pass
        return middle - start, (processor_time() - middle) / ROUNDS


def processor_time() -> float:
    """Seconds of this process and of those that it has started."""
    return sum(os.times()[:4])


def main() -> None:
    """Print both times, without and with features that are computed once."""
    for features in (False, True):
        preparation, of_round = measure(features)
        print(f"{'once' if features else 'in every step'}: preparation {preparation:.1f} s, round {of_round:.2f} s")


if __name__ == "__main__":
    main()
