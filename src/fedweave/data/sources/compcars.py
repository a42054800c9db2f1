"""CompCars: photographs of cars from five viewpoints, clients by viewpoint and year.

Source: Yang et al., "A Large-Scale Car Dataset" (CVPR 2015); the 30 clients and their graph as in SHN (Nguyen
et al.).
"""

from pathlib import Path

import numpy as np

from fedweave.data.base import Dataset, symmetrise_edges
from fedweave.data.registry import dataset
from fedweave.data.sources.images import read_picture
from fedweave.errors import BadInput

SIZE = 224
TYPES = {1: "MPV", 2: "SUV", 3: "sedan", 4: "hatchback"}  # codes of misc/attributes.txt
VIEWS = {1: 0, 4: 1, 3: 2, 5: 3, 2: 4}  # codes of label/*.txt in the order front, front-side, side, rear-side, rear
YEARS = range(2009, 2015)


@dataset("compcars", "images")
def compcars(root: Path) -> Dataset:
    """Images [M, 3, 224, 224] in 4 classes; 30 owners (viewpoint, year) and the relation between them."""
    folder = root / "CompCars"
    types = read_car_types(folder / "misc" / "attributes.txt")
    images = []
    for label in sorted((folder / "label").glob("*/*/*/*.txt")):
        model, year = int(label.parts[-3]), label.parts[-2]
        view = int(label.read_text(encoding="ascii").split()[0])
        if types.get(model) in TYPES and view in VIEWS and year.isdigit() and int(year) in YEARS:
            image = folder / "image" / label.relative_to(folder / "label").with_suffix(".jpg")
            images.append((image, types[model] - 1, VIEWS[view] * len(YEARS) + int(year) - YEARS[0]))
    if not images:
        raise BadInput(
            f"{folder}: holds no labelled image of the four car types; unpack image/, label/ and misc/ there"
        )
    pixels = np.empty((len(images), 3, SIZE, SIZE), dtype=np.uint8)
    for row, (image, _, _) in enumerate(images):
        pixels[row] = read_picture(image, SIZE)
    y, owner = (np.array([entry[i] for entry in images], dtype=np.int64) for i in (1, 2))
    return Dataset("compcars", "images", pixels, y, len(TYPES), owner=owner, relation=neighbours(), names=_names())


def read_car_types(path: Path) -> dict[int, int]:
    """Type code of each model id: first and last column of misc/attributes.txt."""
    lines = path.read_text(encoding="ascii").splitlines()[1:]
    return {int(line.split()[0]): int(line.split()[-1]) for line in lines if line.strip()}


def neighbours() -> np.ndarray:
    """Clients of adjacent viewpoints whose years differ by at most one: [2, 128], both directions."""
    view, year = np.divmod(np.arange(len(VIEWS) * len(YEARS)), len(YEARS))
    near = (abs(view[:, None] - view) == 1) & (abs(year[:, None] - year) <= 1)
    return symmetrise_edges(np.stack(np.nonzero(near)), len(view))


def _names() -> tuple[str, ...]:
    return tuple(f"{view} {year}" for view in ("F", "FS", "S", "RS", "R") for year in YEARS)
