"""Shifted and mirrored training images: their form, their frequency, and that they change only training."""

from itertools import product

import numpy as np
import tiny
import torch

from fedweave.client.augmentation import shift
from fedweave.engine.schedule import evaluation_cohort
from fedweave.tensors import dropout_keys

SHAPE, MOST = (2, 7, 9), 2


def crops(image: np.ndarray) -> dict[tuple[int, int, bool], np.ndarray]:
    """Every crop of the image padded by reflection, by its position, mirrored and not mirrored."""
    padded = np.pad(image, ((0, 0), (MOST, MOST), (MOST, MOST)), mode="reflect")
    height, width = image.shape[1:]
    images = {}
    for y, x in product(range(2 * MOST + 1), repeat=2):
        crop = padded[:, y : y + height, x : x + width]
        images |= {(y, x, False): crop, (y, x, True): crop[:, :, ::-1]}
    return images


def test_every_image_is_one_of_its_crops_and_all_are_equally_likely() -> None:
    image = np.random.default_rng(0).normal(size=SHAPE).astype(np.float32)
    places_of_crops = {crop.tobytes(): place for place, crop in crops(image).items()}
    drawn = shift(torch.from_numpy(image)[None], torch.zeros(5000, dtype=torch.int64), MOST, dropout_keys.key(7))
    places = [places_of_crops[row.tobytes()] for row in drawn.contiguous().numpy()]
    counts = np.array([places.count(place) for place in places_of_crops.values()])
    expected = 5000 / len(places_of_crops)
    assert len(places_of_crops) == 50
    assert ((counts - expected) ** 2 / expected).sum() < 85.4  # chi squared with 49 degrees of freedom: p = 0.001


def test_draws_depend_on_the_key_and_the_position_in_the_batch() -> None:
    images, rows = torch.randn(4, *SHAPE), torch.tensor([3, 0, 3, 1])
    first = shift(images, rows, MOST, dropout_keys.key(1, 2))
    assert torch.equal(first, shift(images, rows, MOST, dropout_keys.key(1, 2)))
    assert torch.equal(first[:2], shift(images, rows[:2], MOST, dropout_keys.key(1, 2)))
    assert not torch.equal(first, shift(images, rows, MOST, dropout_keys.key(1, 3)))


def test_models_are_evaluated_on_unchanged_images() -> None:
    """Only a training pass, which has a key, shifts or mirrors images."""
    task, federation = tiny.TASKS["images"][0](), tiny.rows_federation((1, 8, 8))
    assert task.augment
    data, model = evaluation_cohort(federation, 0, 0).client_data(0), task.init(0)
    rows = torch.arange(4)
    still = task.call(model, federation.shared["x"][rows])
    assert torch.equal(task.predict(model, data, rows), still)
    assert torch.equal(task.forward(model, data, rows), still)
    moved = [task.forward(model, data, rows, dropout_keys.key(seed)) for seed in (1, 1, 2)]
    assert torch.equal(moved[0], moved[1])
    assert not torch.equal(moved[0], still)
    assert not torch.equal(moved[0], moved[2])
