"""What the layers of one model read during a forward pass."""

from torch import Tensor


class ForwardContext:
    """Key and mask of a forward pass, which the keyed layers of one model read.

    Attributes:
        key: 0-d key of the randomness; None means evaluation.
        mask: [B], true for the real rows of a padded batch, or None.
    """

    def __init__(self) -> None:
        self.key: Tensor | None = None
        self.mask: Tensor | None = None
