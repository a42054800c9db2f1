import numpy as np

import fedweave as fw


@fw.dataset("shifted")
def shifted(root):
    """Twelve clients with two classes, whose border lies a little differently for each."""
    draws = np.random.default_rng(0)
    owner = np.repeat(np.arange(12), 60)
    x = draws.normal(size=(720, 5, 1, 1)).astype("float32")
    y = (x[:, :, 0, 0].sum(1) > draws.normal(size=12)[owner]).astype(int)
    return fw.data.Dataset("shifted", "images", x, y, classes=2, owner=owner)
