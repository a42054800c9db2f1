"""Encoder-decoder of gated recurrent units for traffic series (Meng et al., CNFGNN, arXiv:2106.05223)."""

from typing import Annotated

import torch
from torch import Tensor, nn

from fedweave.models.base import ClientModel
from fedweave.models.recurrent import gru_step
from fedweave.models.registry import model
from fedweave.settings import Size

Hidden = Annotated[Size, "width of encoder and decoder"]


class GRUCell(nn.GRUCell):
    """One step of a gated recurrent unit in matrix products: the fused kernel cannot be mapped over clients."""

    def forward(self, x: Tensor, h: Tensor) -> Tensor:  # type: ignore[override]
        """Next state [B, H] from an input [B, fan_in] and the state [B, H]."""
        return self.step(nn.functional.linear(x, self.weight_ih, self.bias_ih), h)

    def step(self, projected: Tensor, h: Tensor) -> Tensor:
        """`forward` from the input's projection W_ih x + b_ih [B, 3H]."""
        return gru_step(projected, (h,), self.weight_hh, self.bias_hh)[0]

    def last_state(self, x: Tensor) -> Tensor:
        """The state [B, H] after all steps of [B, T, fan_in], from zero; the inputs are projected at once."""
        projected = nn.functional.linear(x, self.weight_ih, self.bias_ih)
        h = torch.zeros_like(projected[:, 0, : self.weight_hh.shape[-1]])
        for step in projected.unbind(1):
            h = self.step(step, h)
        return h


class Readout(nn.Linear):
    """A linear map to one number, without the last axis."""

    def __init__(self, fan_in: int) -> None:
        super().__init__(fan_in, 1)

    def forward(self, h: Tensor) -> Tensor:
        """[..., D] -> [...]."""
        return super().forward(h).squeeze(-1)


@model("gru")
class GRU(ClientModel):
    """Sequence to sequence: the encoder reads T_in steps, the decoder reads its own forecasts for T_out.

    `shape` is (T_in, features), features being (value,) or (value, time), and `outputs` is T_out. Input
    [B, T_in + T_out, features]: of the forecast steps only the time is read, so their values may be
    anything. Output [B, T_out]. 26,177 parameters with 64 units and two features.
    """

    head = ("fc",)
    reads = "series"

    def __init__(self, shape: tuple[int, ...], outputs: int, *, hidden: Hidden = 64) -> None:
        super().__init__()
        self.history, features = shape
        self.horizon = outputs
        self.encoder = GRUCell(features, hidden)
        self.decoder = GRUCell(features, hidden)
        self.fc = Readout(hidden)

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Decoder states [B, T_out, H]; they depend on the head, because its forecasts are the next inputs."""
        del key, mask
        past = x[:, : self.history]
        h = self.encoder.last_state(past)
        token, states = past[:, -1], []
        for t in range(self.horizon):
            h = self.decoder(token, h)
            states.append(h)
            token = torch.cat([self.fc(h)[:, None], x[:, self.history + t, 1:]], dim=1)
        return torch.stack(states, dim=1)
