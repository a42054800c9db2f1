"""Checks of a client model on two small batches: a model that would train or score wrongly is refused in advance."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import vmap
from torch.overrides import TorchFunctionMode

from fedweave.client.task import Task
from fedweave.errors import BadInput, describe_error
from fedweave.tensors import dropout_keys, gradients
from fedweave.tensors.seeding import use_seed
from fedweave.tensors.trees import Params

ROWS = 4  # rows of a batch
CODED_ROWS = 4096  # rows whose codes are looked at together
SOFTMAX = (nn.Softmax, nn.Softmax2d, nn.Sigmoid)
LARGE = 1e3  # times the inputs: a sigmoid alone keeps outputs below 1
TOLERANCE = 1e-3  # relative error of float32 sums in another order


def check_model(task: Task, x: Tensor, outputs: int, name: str, stacked: bool = True) -> None:
    """Refuse a client model without a property that training relies on.

    Args:
        task: the task of the model.
        x: rows [M, ...] of the data, at least one.
        outputs: number of outputs of the model per row.
        name: name of the model in messages.
        stacked: whether several clients are to be computed at once (the executors batched and kernel).
    """
    rows = torch.cat([x] * (-(-2 * ROWS // len(x))))[: 2 * ROWS].to(task.dtype)
    check = _ModelCheck(task, rows[:ROWS], rows[ROWS:], f"model: {name}")
    check.check_outputs(outputs)
    check.check_evaluation()
    check.check_training()
    check.check_gradients()
    check.check_padding()
    if stacked:
        check.check_stacking()


def find_softmax(task: Task, x: Tensor, name: str) -> str:
    """A line if a softmax or a sigmoid makes the outputs of a client model of classes, which the loss does not expect.

    Else "".

    The loss takes the logarithm of the softmax of the outputs; of logarithms of probabilities that changes nothing.

    Args:
        x: rows [M, ...] that the model takes.
    """
    ends: list[tuple[str, Tensor]] = []
    layers = [(layer_name, layer) for layer_name, layer in task.template.named_modules() if isinstance(layer, SOFTMAX)]
    handles = [one.register_forward_hook(lambda *args, n=n: ends.append((n, args[2]))) for n, one in layers]
    try:
        with torch.no_grad():
            many = _call_fresh(task, LARGE * x)
            outputs = _call_fresh(task, x)
    finally:
        for handle in handles:
            handle.remove()
    if outputs is None:
        return ""
    sums = outputs.sum(-1)
    add_up = torch.allclose(sums, torch.ones_like(sums), atol=TOLERANCE)
    is_squashed = add_up or (many is not None and outputs.max() <= 1 and 0 <= many.min() and many.max() <= 1)
    if outputs.shape[-1] < 2 or outputs.min() < 0 or not is_squashed:
        return ""
    layer = next((repr(n) for n, end in reversed(ends) if end.shape == outputs.shape and torch.equal(end, outputs)), "")
    function, kind = ("softmax", "probabilities") if add_up else ("sigmoid", "numbers from 0 to 1")
    source = f"layer {layer}, a {function}, makes its outputs" if layer else "its outputs are"
    return (
        f"model: {name}: {source} {kind}, but the loss applies log-softmax itself, so that it learns slowly; "
        f"return the numbers before the {function}"
    )


def check_codes(task: Task, few: Tensor, read_all: Callable[[], Tensor], name: str) -> None:
    """Refuse rows with codes that a table of a client model does not have.

    Where several clients are computed at once, such a code would be looked up in the table of another client.

    Args:
        few: rows [B, ...] that the model takes.
        read_all: gives all rows; called if the model looks up codes.
    """
    codes = _LookedUp({key: value.clone() for key, value in task.init(0).items()}, f"model: {name}")
    try:
        codes.call(task, few)
    except BadInput:
        raise
    except Exception:  # which `check_model` explains
        return
    codes.last = codes.seen
    for rows in read_all().split(CODED_ROWS) if codes.last else ():
        codes.call(task, rows)


class _AllSeen(Exception):
    """Ends a forward pass whose codes have all been seen."""


class _LookedUp(TorchFunctionMode):
    """Looks at the codes of a model's tables; a pass ends with the last of as many calls as the first pass had."""

    def __init__(self, model: Params, prefix: str) -> None:
        super().__init__()
        self.model, self.prefix, self.seen, self.last = model, prefix, 0, 0

    def call(self, task: Task, rows: Tensor) -> None:
        """A forward pass."""
        self.seen = 0
        with torch.no_grad(), suppress(_AllSeen), self:
            task.call(self.model, rows.to(task.dtype))

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (F.embedding, F.embedding_bag):
            self._check(func, *args[:2], **(kwargs or {}))
            self.seen += 1
            if self.seen == self.last:
                raise _AllSeen
        return func(*args, **(kwargs or {}))

    def _check(self, func: Any, codes: Tensor, table: Tensor, **options: Any) -> None:
        """Look at the codes of one call."""
        name = next((f"{key!r}" for key, value in self.model.items() if value is table), "a frozen one")
        low, high = (int(value) for value in torch.aminmax(codes)) if codes.numel() else (0, 0)
        if low < 0 or high >= len(table):
            raise BadInput(
                f"{self.prefix}: the table {name} has vectors for the codes 0 to {len(table) - 1}, but gets "
                f"{low if low < 0 else high}; give it more, or correct the codes; codes that it looks up need "
                "Federation.from_arrays(..., normalize='none')"
            )
        if func is F.embedding and options.get("padding_idx") is not None and not options.get("max_norm"):
            raise BadInput(
                f"{self.prefix}: F.embedding with padding_idx trains the vector of padding where several clients run "
                "at once; use nn.Embedding with padding_idx"
            )


def _call_fresh(task: Task, x: Tensor) -> Tensor | None:
    """The outputs of a model as it begins; None where it looks up codes that these rows do not have."""
    try:
        outputs: Tensor = task.call({key: value.clone() for key, value in task.init(0).items()}, x.to(task.dtype))
    except (IndexError, RuntimeError):  # of an embedding, and of a bag of them
        return None
    return outputs


class _ModelCheck:
    """A model with two batches [4, ...]; each check raises BadInput."""

    def __init__(self, task: Task, first: Tensor, second: Tensor, prefix: str) -> None:
        self.task, self.first, self.second, self.prefix = task, first, second, prefix
        self.model, self.key = task.init(0), dropout_keys.key(1, 2)

    def check_outputs(self, count: int) -> None:
        """Outputs are [B, C] for a batch, and for a batch of one row."""
        for batch in (self.first, self.first[:1]):
            for key in (None, self.key):
                outputs = self._run(batch, key)
                if not isinstance(outputs, Tensor):
                    self._refuse(f"gives a {type(outputs).__name__}", "return the outputs alone, a tensor [B, C]")
                if outputs.shape != (len(batch), count):
                    way = f"let the number of its outputs be {count}"
                    if outputs.ndim < 2:
                        way = "keep both axes, for example by flatten(1) in place of squeeze()"
                    self._refuse(
                        f"gives outputs of shape {[*outputs.shape]} for a batch of {len(batch)} "
                        f"where {[len(batch), count]} is needed",
                        way,
                    )

    def check_evaluation(self) -> None:
        """The same rows give the same outputs, alone or together."""
        with torch.no_grad():
            whole = self._run(self.first)
            again = self._run(self.first)
            alone = torch.cat([self._run(self.first[i : i + 1]) for i in range(len(self.first))])
        if not whole.isfinite().all():  # NaN never equals NaN, so the model would seem random
            self._refuse("its outputs are not finite", "look for a division by 0, a logarithm, or very large weights")
        if not torch.equal(whole, again):
            self._refuse("is random in evaluation", "use nn.Dropout, or F.dropout(x, p, training=self.training)")
        if not _is_close(whole, alone):
            self._refuse(
                "gives a row other outputs when other rows stand beside it", "let no layer mix the rows of a batch"
            )

    def check_training(self) -> None:
        """Randomness is a function of the key."""
        with torch.no_grad():
            first, second = self._run_with_seed(0), self._run_with_seed(1)
        if not torch.equal(first, second):
            self._refuse(
                "draws random numbers that no key controls",
                "use nn.Dropout or F.dropout for all randomness in training",
            )

    def check_gradients(self) -> None:
        """Gradients reach every parameter."""
        leaves = {name: self.model[name].clone().requires_grad_() for name in self.task.params}
        with torch.enable_grad():
            total = self._run(self.first, self.key, {**self._copy_model(), **leaves}).square().sum()
            grads = (
                torch.autograd.grad(total, [*leaves.values()], allow_unused=True)
                if total.requires_grad
                else [None] * len(leaves)
            )
        missing = [name for name, grad in zip(leaves, grads, strict=True) if grad is None]
        if missing:
            more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
            self._refuse(f"no gradient reaches {missing[0]}{more}", "use the layer in forward, or remove or freeze it")

    def check_padding(self) -> None:
        """Padded rows change neither the outputs nor the statistics of the real ones."""
        short, plain = self._copy_model(), self._copy_model()
        mask = torch.tensor([True] * 3 + [False] * (ROWS - 3))
        with torch.no_grad():
            padded = self._run(self.first, self.key, short, mask)[:3]
            alone = self._run(self.first[:3], self.key, plain)
        same = _is_close(padded, alone) and all(_is_close(short[name], plain[name]) for name in self.task.buffers)
        if not same:
            self._refuse(
                "gives other outputs in training when a batch has padded rows",
                "let the first axis be that of the rows everywhere",
            )

    def check_stacking(self) -> None:
        """Two clients at once give what they give one after the other: outputs, buffers and gradients."""
        batches = torch.stack([self.first, self.second])
        models = {
            name: torch.stack([value, value * 1.1 if value.is_floating_point() else value])
            for name, value in self.model.items()
        }
        keys = torch.stack([self.key, dropout_keys.key(3)])
        for key in (None, keys):
            together = self._run_stacked(models, batches, key)
            for i in range(2):
                single = self._gradient(
                    {n: v[i] for n, v in models.items()}, batches[i], None if key is None else key[i]
                )
                for a, b in zip(together, single, strict=True):
                    floats = [value for value in b.values() if value.is_floating_point() and value.numel()]
                    scale = max((float(value.abs().max()) for value in floats), default=0.0)
                    if not all(_is_close(a[name][i], value, scale) for name, value in b.items()):
                        self._refuse(
                            "gives other results when several clients run at once", "train with executor='loop'"
                        )

    def _run_stacked(self, models: Params, batches: Tensor, key: Tensor | None) -> tuple[Params, Params, Params]:
        try:
            return self._gradient(models, batches, key, vmap(self._squared_sum, (0, 0, 0, None if key is None else 0)))
        except BadInput:
            raise
        except Exception as error:
            is_control_flow = "data-dependent" in str(error) or ".item()" in str(error)
            reason = "its control flow depends on the data" if is_control_flow else describe_error(error)
            self._refuse(
                f"cannot run for several clients at once ({reason})",
                "use torch.where and the like, or train with executor='loop'",
            )

    def _gradient(
        self, model: Params, batch: Tensor, key: Tensor | None, squared_sum: Callable[..., Any] | None = None
    ) -> tuple[Params, Params, Params]:
        """(outputs, buffers, gradients) by plain autograd, as in training, of `_squared_sum` or its mapped form."""
        buffers = {name: model[name].clone() for name in self.task.buffers}
        leaves = {name: model[name].detach().requires_grad_() for name in self.task.params}
        with torch.enable_grad():
            value, outputs, buffers = (squared_sum or self._squared_sum)(leaves, buffers, batch, key)
        grads = torch.autograd.grad(value.sum(), [*leaves.values()], allow_unused=True)
        buffers = {name: value.detach() for name, value in buffers.items()}
        return {"outputs": outputs.detach()}, buffers, gradients.by_name(grads, leaves)

    def _squared_sum(
        self, params: Params, buffers: Params, batch: Tensor, key: Tensor | None
    ) -> tuple[Tensor, Tensor, Params]:
        outputs = self._call({**params, **buffers}, batch, key)
        return outputs.square().sum(), outputs, buffers

    def _run_with_seed(self, seed: int) -> Any:
        with use_seed(seed):
            return self._run(self.first, self.key)

    def _copy_model(self) -> Params:
        return {name: value.clone() for name, value in self.model.items()}

    def _call(self, model: Params, batch: Tensor, key: Tensor | None = None, mask: Tensor | None = None) -> Any:
        return self.task.call(model, batch, key=key, mask=mask)

    def _run(
        self, batch: Tensor, key: Tensor | None = None, model: Params | None = None, mask: Tensor | None = None
    ) -> Any:
        """The model's outputs; raises BadInput with one line for any error."""
        try:
            return self._call(model or self._copy_model(), batch, key, mask)
        except BadInput:
            raise
        except Exception as error:
            mode = "in evaluation" if key is None else "in training"
            way = (
                "it must take any number of rows"
                if len(batch) == 1
                else f"it is given batches [B, {', '.join(map(str, batch.shape[1:]))}]"
            )
            if isinstance(error, IndexError):  # of an embedding
                way += "; codes that it looks up need Federation.from_arrays(..., normalize='none')"
            self._refuse(f"fails {mode} on a batch of {len(batch)} ({describe_error(error)})", way)

    def _refuse(self, what: str, way: str) -> NoReturn:
        raise BadInput(f"{self.prefix}: {what}; {way}")


def _is_close(a: Tensor, b: Tensor, scale: float = 0.0) -> bool:
    """Whether two results differ only by rounding; `scale` is the magnitude of the results that they are a part of."""
    if not a.is_floating_point():
        return torch.equal(a, b)
    scale = max(scale, float(b.detach().abs().max()) if b.numel() else 0.0)
    return torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * max(scale, 1e-3), equal_nan=True)
