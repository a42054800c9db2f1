"""What a run needs of its data is checked wherever a run is made, also where no Python call has checked it before."""

import numpy as np
import pytest

from fedweave import Federation
from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.runs import repetition
from fedweave.study import spec
from tests.study.test_spec import one_run


@pytest.mark.parametrize("name", sorted(name for name, cls in METHODS.items() if "classes" in cls.needs))
def test_a_method_of_classes_is_refused_for_numbers(name: str) -> None:
    """A study does not say that its data are numbers, so its searches and its trainings find it."""
    rng = np.random.default_rng(0)
    rows = Federation.from_arrays(rng.normal(size=(60, 3)), rng.normal(size=60), client=["a", "b", "c"] * 20)
    task = {"dataset": "own-data", "setting": "own", "partition": {"name": "own", "seed": 0}, "model": {"name": "mlp"}}
    content = one_run({**task, "train": {"rounds": 1, "epochs": 1, "batch_size": 0, "lr": 0.1}}, name)
    with pytest.raises(BadInput, match=rf"runs\.own-{name}: .* needs classes.* does not have; drop the run"):
        repetition.prepare(spec.parse(content).run(f"own-{name}"), rows.dataset, rows.partition)
