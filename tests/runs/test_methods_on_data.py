"""What a run needs of its data is checked wherever a run is made, also where no Python call has checked it before."""

import numpy as np
import pytest

from fedweave import Federation
from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.runs import repetition
from fedweave.study import spec


@pytest.mark.parametrize("name", sorted(name for name, cls in METHODS.items() if "classes" in cls.needs))
def test_a_method_of_classes_is_refused_for_numbers(name: str) -> None:
    """A study does not say that its data are numbers, so its searches and its trainings find it."""
    rng = np.random.default_rng(0)
    rows = Federation.from_arrays(rng.normal(size=(60, 3)), rng.normal(size=60), client=["a", "b", "c"] * 20)
    task = {"dataset": "own-data", "setting": "own", "partition": {"name": "own", "seed": 0}, "model": {"name": "mlp"}}
    content = {
        "study": "s",
        "seeds": [0],
        "tasks": {"own": {**task, "train": {"rounds": 1, "epochs": 1, "batch_size": 0, "lr": 0.1}}},
        "methods": {name: {}},
        "runs": {"own-run": {"task": "own", "method": name}},
    }
    with pytest.raises(BadInput, match=r"runs\.own-run: .* needs classes.* does not have; drop the run"):
        repetition.prepare(spec.parse(content).run("own-run"), rows.dataset, rows.partition)
