"""Training images shifted and mirrored at random, as the public pFedGraph recipe does."""

import torch
from torch import Tensor

from fedweave.tensors import dropout_keys

SALT = 0x5F1F7  # differs from the salts of dropout


def shift(images: Tensor, rows: Tensor, most: int, key: Tensor) -> Tensor:
    """Images [B, C, H, W] of `rows` [B], each moved by up to `most` pixels either way and mirrored half of the time.

    Pixels outside of the image are its reflection at the edge. The shifts are functions of `key` and of the position
    in the batch.

    Args:
        images: [M, C, H, W].
        most: pixels, less than both H and W.
    """
    height, width = images.shape[-2:]
    # Rows are the first axis of the draws, so padding behind them changes no draw of a real row.
    draws = dropout_keys.uniform(dropout_keys.fold(key, SALT), (len(rows), 3))
    down, right = ((draws[:, i, None] * (2 * most + 1)).long() - most for i in (0, 1))
    y = _reflect(torch.arange(height, device=rows.device) + down, height)
    x = _reflect(torch.arange(width, device=rows.device) + right, width)
    x = torch.where(draws[:, 2, None] < 0.5, width - 1 - x, x)
    return images[rows[:, None, None], :, y[:, :, None], x[:, None, :]].movedim(-1, 1)


def _reflect(positions: Tensor, size: int) -> Tensor:
    """Positions outside 0 .. size - 1 reflected at the edge; the edge itself is not repeated."""
    positions = positions.abs()
    return size - 1 - (size - 1 - positions).abs()
