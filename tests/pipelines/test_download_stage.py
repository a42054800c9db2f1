"""What the stage `download` says of a data set."""

import numpy as np
import pandas as pd

import fedweave as fw
from fedweave.pipelines.stages import download


def test_a_table_is_not_called_images() -> None:
    table = pd.DataFrame({"depot": ["a", "b"] * 20, "km": np.arange(40.0), "late": [0, 0, 1, 1] * 10})
    assert download.describe(fw.Federation.from_pandas(table, client="depot", label="late").dataset) == (
        "40 rows of 1 value"
    )


def test_images_have_their_shape() -> None:
    images = fw.data.Dataset("small", "images", np.zeros((6, 1, 4, 4), np.float32), np.arange(6) % 2, classes=2)
    assert download.describe(images) == "images, features 6 x 1 x 4 x 4"
