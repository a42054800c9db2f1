"""nn.RNN, nn.GRU, nn.LSTM and their cells in matrix products: torch's fused kernels cannot be mapped over clients.

Names, shapes, gate order and initialisation of the parameters are torch's.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.utils.rnn import PackedSequence

from fedweave.errors import BadInput
from fedweave.models.context import ForwardContext
from fedweave.tensors import dropout_keys

States = tuple[Tensor, ...]


def gru_step(gates: Tensor, h: States, weight: Tensor, bias: Tensor | None) -> States:
    """Next state from the input's projection `gates` [B, 3H]."""
    reset_x, update_x, new_x = gates.chunk(3, -1)
    reset_h, update_h, new_h = linear(h[0], weight, bias).chunk(3, -1)
    new = torch.tanh(new_x + torch.sigmoid(reset_x + reset_h) * new_h)
    return (new + torch.sigmoid(update_x + update_h) * (h[0] - new),)


def lstm_step(gates: Tensor, h: States, weight: Tensor, bias: Tensor | None) -> States:
    """Next (state, cell) from the input's projection `gates` [B, 4H]."""
    enter, forget, new, out = (gates + linear(h[0], weight, bias)).chunk(4, -1)
    cell = torch.sigmoid(forget) * h[1] + torch.sigmoid(enter) * torch.tanh(new)
    return torch.sigmoid(out) * torch.tanh(cell), cell


def tanh_step(gates: Tensor, h: States, weight: Tensor, bias: Tensor | None) -> States:
    """Next state of a plain recurrent layer with tanh."""
    return (torch.tanh(gates + linear(h[0], weight, bias)),)


def relu_step(gates: Tensor, h: States, weight: Tensor, bias: Tensor | None) -> States:
    """Next state of a plain recurrent layer with ReLU."""
    return (torch.relu(gates + linear(h[0], weight, bias)),)


STEPS: dict[str, Any] = {
    "GRU": gru_step,
    "LSTM": lstm_step,
    "RNN_TANH": tanh_step,
    "RNN_RELU": relu_step,
    "tanh": tanh_step,
    "relu": relu_step,
}


class RecurrentLayer(nn.Module):
    """Several layers, one or both directions, dropout between layers; batches [B, T, F] or [T, B, F]."""

    mode: str
    num_layers: int
    bidirectional: bool
    batch_first: bool
    hidden_size: int
    dropout: float
    proj_size: int
    bias: bool
    context: ForwardContext
    salt: int

    def forward(self, x: Tensor, start: Any = None) -> tuple[Tensor, Any]:
        """Outputs of the last layer, and the last states, as torch gives them."""
        if isinstance(x, PackedSequence) or x.ndim != 3 or self.proj_size:
            raise BadInput(
                f"model: {type(self).__name__}: packed or unbatched sequences and proj_size are not supported; pad them"
            )
        if not self.batch_first:
            x = x.transpose(0, 1)
        parts = 2 if self.mode == "LSTM" else 1
        h0 = None if start is None else (start if parts == 2 else (start,))
        last: list[States] = []
        for layer in range(self.num_layers):
            if layer and self.dropout:
                x = dropout_keys.dropout(x, self.dropout, self.context.key, (self.salt << 8) + layer)
            runs = [self._run_direction(x, layer, back, len(last) + back, h0) for back in range(1 + self.bidirectional)]
            x = torch.cat([outputs for outputs, _ in runs], -1)
            last += [states for _, states in runs]
        stacked = tuple(torch.stack([states[part] for states in last]) for part in range(parts))
        return x if self.batch_first else x.transpose(0, 1), stacked if parts == 2 else stacked[0]

    def _run_direction(self, x: Tensor, layer: int, back: int, number: int, h0: States | None) -> tuple[Tensor, States]:
        suffix = f"_l{layer}" + ("_reverse" if back else "")
        bias = getattr(self, f"bias_hh{suffix}") if self.bias else None
        gates = linear(x, getattr(self, f"weight_ih{suffix}"), getattr(self, f"bias_ih{suffix}") if self.bias else None)
        weight, step = getattr(self, f"weight_hh{suffix}"), STEPS[self.mode]
        zero = gates[:, 0, : self.hidden_size] * 0.0
        h: States = (zero, zero) if h0 is None else tuple(part[number] for part in h0)
        outputs = []
        for gate in reversed(gates.unbind(1)) if back else gates.unbind(1):
            h = step(gate, h, weight, bias)
            outputs.append(h[0])
        return torch.stack(outputs[::-1] if back else outputs, 1), h


class RecurrentCell(nn.Module):
    """One step of a recurrent layer."""

    hidden_size: int
    weight_ih: Tensor
    weight_hh: Tensor
    bias_ih: Tensor | None
    bias_hh: Tensor | None

    def forward(self, x: Tensor, start: Any = None) -> Any:
        """The next state [B, H]; (state, cell) of an LSTM."""
        pair = isinstance(self, nn.LSTMCell)
        name = "LSTM" if pair else "GRU" if isinstance(self, nn.GRUCell) else str(self.nonlinearity)
        gates = linear(x, self.weight_ih, self.bias_ih)
        zero = gates[:, : self.hidden_size] * 0.0
        h = (zero, zero) if start is None else start if pair else (start,)
        after = STEPS[name](gates, h, self.weight_hh, self.bias_hh)
        return after if pair else after[0]


RECURRENT: dict[type[nn.Module], type[nn.Module]] = {
    nn.RNN: RecurrentLayer,
    nn.GRU: RecurrentLayer,
    nn.LSTM: RecurrentLayer,
    nn.RNNCell: RecurrentCell,
    nn.GRUCell: RecurrentCell,
    nn.LSTMCell: RecurrentCell,
}
