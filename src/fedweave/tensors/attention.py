"""Attention layers of PyTorch as plain operations.

In evaluation `nn.MultiheadAttention` and `nn.TransformerEncoderLayer` run as one fused operation, PyTorch's fast path.
It has no gradient under `torch.func.vmap`, and gives NaN for a sequence that is padded whole, where the operations of
training do not: https://docs.pytorch.org/docs/stable/generated/torch.nn.TransformerEncoderLayer.html
"""

from threading import Lock
from types import TracebackType

import torch
from torch.backends import mha


class _PlainAttention:
    """Inside the block no layer takes the fast path; after the block the user's setting holds again.

    The setting belongs to the process, so the blocks of all threads are counted. Nor does `vmap` warn inside that it
    runs the attention of one client after the other, which is as quick on a CPU.
    """

    def __init__(self) -> None:
        self._lock, self._blocks, self._setting = Lock(), 0, True

    def __enter__(self) -> None:
        with self._lock:
            if not self._blocks:
                self._setting = mha.get_fastpath_enabled()
                self._switch(False)
            self._blocks += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._blocks -= 1
            if not self._blocks:
                self._switch(True)

    def _switch(self, after: bool) -> None:
        mha.set_fastpath_enabled(after and self._setting)
        torch._C._functorch._set_vmap_fallback_warning_enabled(after)  # type: ignore[attr-defined]


plain_attention = _PlainAttention()
