"""How PyTorch's operations become instructions: a table of rules by name.

A rule gets the builder, the recorded result, and the arguments of the call.
"""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor

from fedweave.tensors.array_programs import BLOCK, ArrayProgram, Builder, Recorder, Unsupported, whole_vectors
from fedweave.tensors.image_rules import IMAGE_RULES
from fedweave.tensors.instructions import CODES, Place

Rule = Callable[..., None]


def _unary(name: str) -> Rule:
    def rule(b: Builder, out: Tensor, value: Tensor) -> None:
        if b.kind(out) != "real":
            raise Unsupported(f"{name} of whole numbers")
        b.elementwise(name, out, b.tensor(value, out.dtype))

    return rule


def _rsqrt(b: Builder, out: Tensor, value: Tensor) -> None:
    _unary("sqrt")(b, out, value)
    b.elementwise("reciprocal", out, out)


def _expm1(b: Builder, out: Tensor, value: Tensor) -> None:
    _unary("exp")(b, out, value)
    b.elementwise("sub", out, out, b.scalar(1, out.dtype))


def _log1p(b: Builder, out: Tensor, value: Tensor) -> None:
    b.elementwise("add", out, b.tensor(value, out.dtype), b.scalar(1, out.dtype))
    _unary("log")(b, out, out)


def _arithmetic(name: str) -> Rule:
    """name(a, alpha c) of tensors or numbers, in the type of the result."""

    def rule(b: Builder, out: Tensor, a: Any, c: Any, alpha: float = 1, rounding_mode: str | None = None) -> None:
        kind = b.kind(out)
        instruction = name if kind == "real" else f"{kind}_{name}"
        if instruction not in CODES or rounding_mode:
            raise Unsupported(f"{instruction} is no operation")
        left, right = b.tensor(a, out.dtype), b.tensor(c, out.dtype)
        if kind == "real" and alpha != 1:
            b.elementwise("multiply_add", out, left, right, b.scalar(-alpha if name == "sub" else alpha, out.dtype))
        elif alpha != 1:
            raise Unsupported(f"{name} with a factor")
        else:
            b.elementwise(instruction, out, left, right)

    return rule


def _comparison(name: str, swapped: bool = False) -> Rule:
    def rule(b: Builder, out: Tensor, a: Any, c: Any) -> None:
        dtype = torch.result_type(a, c)
        left, right = b.tensor(a, dtype), b.tensor(c, dtype)
        pair = (right, left) if swapped else (left, right)
        kind = b.kind_of(dtype)
        if kind == "bool":
            raise Unsupported(f"{name} of truth values")
        b.elementwise(name if kind == "real" else f"int_{name}", out, *pair)

    return rule


def _logical_not(b: Builder, out: Tensor, value: Tensor) -> None:
    if value.dtype != torch.bool:
        raise Unsupported("not of numbers")
    b.elementwise("bool_not", out, value)


def _softplus(name: str) -> Rule:
    def rule(b: Builder, out: Tensor, *args: Any) -> None:
        values = [arg for arg in args if isinstance(arg, Tensor)]
        if args[len(values) :] not in ((), (1, 20)):
            raise Unsupported("softplus with other settings")
        b.elementwise(name, out, *values)

    return rule


def _power(b: Builder, out: Tensor, value: Any, exponent: Any) -> None:
    x = b.tensor(value, out.dtype)
    if isinstance(exponent, Tensor):
        _arithmetic("power")(b, out, x, exponent)
    elif exponent == 0:
        b.fill(out, 1)
    elif exponent == 1:
        b.copy(out, x)
    elif exponent in (2, 3) and b.kind(out) == "real":
        b.elementwise("mul", out, x, x)
        if exponent == 3:
            b.elementwise("mul", out, out, x)
    elif exponent == 0.5:
        b.elementwise("sqrt", out, x)
    else:
        _arithmetic("power")(b, out, x, exponent)


def _where(b: Builder, out: Tensor, condition: Tensor, a: Tensor, c: Tensor) -> None:
    name = {"real": "where", "int": "int_where"}.get(b.kind(out))
    if name is None or condition.dtype != torch.bool:
        raise Unsupported("where of truth values")
    b.elementwise(name, out, condition, b.tensor(a, out.dtype), b.tensor(c, out.dtype))


def _masked_fill(b: Builder, out: Tensor, value: Tensor, mask: Tensor, fill: Any) -> None:
    _where(b, out, mask, b.tensor(fill, out.dtype), value)


def _clamp(b: Builder, out: Tensor, value: Tensor, min: Any = None, max: Any = None) -> None:
    prefix = "" if b.kind(out) == "real" else "int_"
    value = b.tensor(value, out.dtype)
    for name, bound in (("maximum", min), ("minimum", max)):
        if bound is not None:
            b.elementwise(prefix + name, out, value, b.tensor(bound, out.dtype))
            value = out


def _threshold_backward(b: Builder, out: Tensor, grad: Tensor, value: Tensor, threshold: float) -> None:
    if threshold != 0:
        raise Unsupported(f"threshold {threshold}")
    b.elementwise("relu_backward", out, grad, value)


def _copy(b: Builder, out: Tensor, value: Tensor, *_: Any, **__: Any) -> None:
    b.copy(out, value)


def _copy_into(b: Builder, out: Tensor, target: Tensor, value: Tensor, *_: Any) -> None:
    b.copy(target, value)


def _filled(number: float) -> Rule:
    return lambda b, out, *_, **__: b.fill(out, number)


def _full(b: Builder, out: Tensor, _: Any, number: Any, **__: Any) -> None:
    b.copy(out, b.tensor(number, out.dtype))


def _constant(b: Builder, out: Tensor, *_: Any, **__: Any) -> None:
    b.constant(out)


def _empty(b: Builder, out: Tensor, *_: Any, **__: Any) -> None:
    del b, out


# --- sums -------------------------------------------------------------------------------------------------------------


def _axes(value: Tensor, dim: int | Sequence[int] | None) -> list[int]:
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return [*range(value.ndim)]
    return sorted(axis % value.ndim for axis in ([dim] if isinstance(dim, int) else dim))


def _sum(b: Builder, out: Tensor, value: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> None:
    del keepdim, dtype
    if b.kind(out) == "bool":
        raise Unsupported("a sum of truth values")
    b.accumulate(out, b.tensor(value, out.dtype), _axes(value, dim))


def _mean(b: Builder, out: Tensor, value: Tensor, dim: Any = None, keepdim: bool = False, dtype: Any = None) -> None:
    _sum(b, out, value, dim, keepdim, dtype)
    count = prod(value.shape[axis] for axis in _axes(value, dim))
    b.elementwise("div", out, out, b.scalar(count, out.dtype))


def _norm(b: Builder, out: Tensor, value: Tensor, order: float = 2, dim: Any = None, *_: Any, **__: Any) -> None:
    if order != 2 or b.kind(out) != "real":
        raise Unsupported(f"a norm of order {order}")
    squares = b.new(value.shape, value.dtype)
    b.elementwise("mul", squares, value, value)
    b.accumulate(out, squares, _axes(value, dim))
    b.elementwise("sqrt", out, out)


# --- rows -------------------------------------------------------------------------------------------------------------


def _softmax(name: str) -> Rule:
    """A result from one tensor, or from two in the backward pass, along an axis."""

    def rule(b: Builder, out: Tensor, *args: Any) -> None:
        values, dim = [arg for arg in args if isinstance(arg, Tensor)], next(a for a in args if isinstance(a, int))
        if not out.ndim:
            raise Unsupported(f"{name} of a number")
        target = out.movedim(dim, -1)
        result = target if target.is_contiguous() else b.new(target.shape, out.dtype)
        n = target.shape[-1]
        places = [(part, (n, 1)) for part in (result, *(b.contiguous(value.movedim(dim, -1)) for value in values))]
        scratch = [] if name.endswith("backward") else [(b.new((BLOCK * n,), out.dtype), (0, 0))]
        b.emit(name, (target.numel() // n, n), *places, *scratch)
        if result is not target:
            b.copy(target, result)

    return rule


def _index(b: Builder, out: Tensor, value: Tensor, indices: Sequence[Tensor | None]) -> None:
    """value[..., index, ...] with an index for one axis."""
    given = [axis for axis, index in enumerate(indices) if index is not None]
    if len(given) != 1:
        raise Unsupported("several indices at once")
    axis, index = given[0], indices[given[0]]
    assert index is not None
    result = out if out.is_contiguous() else b.new(out.shape, out.dtype)
    _take(b, result, value, axis, index, lowest=-value.shape[axis])
    if result is not out:
        b.copy(out, result)


def _take(b: Builder, out: Tensor, value: Tensor, axis: int, index: Tensor, lowest: int = 0) -> None:
    """`lowest` is the first index that is allowed; negative ones count from the end."""
    if index.dtype != torch.int64:
        raise Unsupported(f"an index in {index.dtype}")
    value, index = b.contiguous(value), b.contiguous(index)
    before, width = prod(value.shape[:axis]), prod(value.shape[axis + 1 :])
    count, positions = value.shape[axis], index.numel()
    if before == width == 1 and lowest and b.kind(out) == "real" and (window := b.find_window(index)):
        (rows, first), n = window, index.shape[-1]
        steps = [(0, 0, n, 1), (0, 0, 0, 1), (0, 0, rows.stride(0), 0), (0, count, first, 0)]
        b.emit("windows", (1, 1, positions // n, n), *zip((out, value, rows, None), steps, strict=True))
        return
    if b.kind(out) != "real":
        if before != 1 or width != 1:
            raise Unsupported("rows of whole numbers")
        places = [(out, (0, 0, 1)), (value, (0, 0, 1)), (index, (0, 0, 1)), (None, (count, lowest, 1))]
        b.emit(f"{b.kind(out)}_take", (1, 1, positions), *places)
        return
    size = (before, positions, 1, width)
    b.emit(
        "take",
        size,
        (out, (positions * width, width, 0, 1)),
        (value, (count * width, 0, 0, 1)),
        (index, (0, 1, 0, 0)),
        (None, (0, count, lowest, width)),
    )


def _embedding_backward(
    b: Builder, out: Tensor, grad: Tensor, index: Tensor, count: int, padding: int, scaled: bool
) -> None:
    if padding >= 0 or scaled:
        raise Unsupported("an embedding with padding or scaled gradients")
    width = grad.shape[-1]
    b.fill(out, 0)
    grad, index = b.contiguous(grad), b.contiguous(index)
    places = [(out, (0, 0, 0, 1)), (grad, (0, width, 0, 1)), (index, (0, 1, 0, 0)), (None, (0, count, 0, width))]
    b.emit("add_at", (1, index.numel(), 1, width), *places)


def _gather(b: Builder, out: Tensor, value: Tensor, dim: int, index: Tensor, **_: Any) -> None:
    places = [out, value, index]
    if dim % value.ndim != value.ndim - 1 or value.ndim > 4 or b.kind(out) != "real":
        raise Unsupported("gather along an axis that is not the last one")
    b.emit("gather", index.shape, *((place, place.stride()) for place in places), _bound(index, value))


def _scatter_add(b: Builder, out: Tensor, value: Tensor, dim: int, index: Tensor, source: Tensor) -> None:
    if dim % value.ndim != value.ndim - 1 or value.ndim > 4 or b.kind(out) != "real":
        raise Unsupported("scatter along an axis that is not the last one")
    if out is not value:
        b.copy(out, value)
    b.emit("scatter_add", index.shape, *((part, part.stride()) for part in (out, source, index)), _bound(index, value))


def _bound(index: Tensor, value: Tensor) -> Place:
    """How many positions an index along the last axis may have."""
    return None, (*(0,) * (index.ndim - 1), value.shape[-1])


# --- parts of tensors -------------------------------------------------------------------------------------------------


def _cat(b: Builder, out: Tensor, parts: Sequence[Tensor], dim: int = 0) -> None:
    start = 0
    for part in parts:
        if part.numel():
            b.copy(out.narrow(dim, start, part.shape[dim]), b.tensor(part, out.dtype))
            start += part.shape[dim]


def _stack(b: Builder, out: Tensor, parts: Sequence[Tensor], dim: int = 0) -> None:
    for position, part in enumerate(parts):
        b.copy(out.select(dim, position), b.tensor(part, out.dtype))


def _pad(b: Builder, out: Tensor, value: Tensor, pad: Sequence[int], number: float = 0) -> None:
    """Negative amounts cut."""
    b.fill(out, number)
    inside = out
    for i in range(len(pad) // 2):
        axis, before, after = value.ndim - 1 - i, pad[2 * i], pad[2 * i + 1]
        start = max(0, -before)
        value = value.narrow(axis, start, value.shape[axis] - start - max(0, -after))
        inside = inside.narrow(axis, max(0, before), value.shape[axis])
    b.copy(inside, value)


def _select_backward(b: Builder, out: Tensor, grad: Tensor, _shape: Any, dim: int, position: int) -> None:
    if out.shape[dim] != 1:
        b.fill(out, 0)
    b.copy(out.select(dim, position), grad)


def _slice_backward(
    b: Builder, out: Tensor, grad: Tensor, _shape: Any, dim: int, start: int, end: int, step: int
) -> None:
    b.fill(out, 0)
    index = [slice(None)] * out.ndim
    index[dim] = slice(start, end, step)
    b.copy(out[tuple(index)], grad)


# --- products ---------------------------------------------------------------------------------------------------------


def _product(b: Builder, out: Tensor, x: Tensor, y: Tensor, add: Tensor | None = None) -> None:
    """out [m, n] = x [m, k] y [k, n] + add, or for [b, ...] of each; `add` is read row by row."""
    batch, m, n, k = out.shape[0] if out.ndim == 3 else 1, out.shape[-2], out.shape[-1], x.shape[-1]
    if b.kind(out) != "real" or out.stride(-1) != 1 or not out.numel():
        raise Unsupported("a product of whole numbers, or a transposed one")
    if any(part.untyped_storage()._cdata == out.untyped_storage()._cdata for part in (x, y, add) if part is not None):
        raise Unsupported("a product in the memory of its operands")
    if add is not None and add.stride(-1) != 1 and n > 1:
        add = b.contiguous(add)

    def strides(value: Tensor | None, row: bool, column: bool, inner: bool) -> tuple[int, ...]:
        if value is None:
            return (0, 0, 0, 0)
        first = value.stride(0) if value.ndim == 3 else 0
        a, c = value.stride(-2), value.stride(-1)
        return (first, a if row else 0, c if column else 0, (c if row else a) if inner else 0)

    scratch = b.new((k, whole_vectors(n)), out.dtype)
    b.emit(
        "product",
        (batch, m, n, k),
        (out, strides(out, True, True, False)),
        (x, strides(x, True, False, True)),
        (y, strides(y, False, True, True)),
        (add, strides(add, True, True, False)),
        (scratch, (0, 0, 0, 0)),
    )


def _addmm(b: Builder, out: Tensor, add: Tensor, x: Tensor, y: Tensor, beta: float = 1, alpha: float = 1) -> None:
    if (beta, alpha) != (1, 1):
        raise Unsupported("a product with factors")
    _product(b, out, x, y, add.expand(out.shape))


# --- optimisers -------------------------------------------------------------------------------------------------------


def _foreach(rule: Rule, targets: str = "first") -> Rule:
    """A rule for lists: of tensors in place, or with a list of results."""

    def each(b: Builder, out: Any, values: Sequence[Tensor], *args: Any, **kwargs: Any) -> None:
        for position, value in enumerate(values):
            own = [arg[position] if isinstance(arg, list | tuple) else arg for arg in args]
            rule(b, value if targets == "first" else out[position], value, *own, **kwargs)

    return each


def _fused_adam(
    b: Builder,
    _out: Any,
    values: Sequence[Tensor],
    grads: Sequence[Tensor],
    first: Sequence[Tensor],
    second: Sequence[Tensor],
    _largest: Any,
    steps: Sequence[Tensor],
    *,
    lr: float,
    beta1: float,
    beta2: float,
    weight_decay: float,
    eps: float,
    amsgrad: bool,
    maximize: bool,
    **_: Any,
) -> None:
    if amsgrad or maximize or isinstance(lr, Tensor):
        raise Unsupported("a variant of Adam")
    numbers = b.constant(torch.tensor([lr, beta1, beta2, weight_decay, eps], dtype=b.real))
    for value, grad, m, v, t in zip(values, grads, first, second, steps, strict=True):
        if not (value.is_contiguous() and m.is_contiguous() and v.is_contiguous()):
            raise Unsupported("Adam on parameters with gaps")
        places = [(part, (1,)) for part in (value, b.contiguous(grad), m, v)]
        b.emit("adam", (value.numel(),), *places, (t, (0,)), (numbers, (1,)))


RULES: dict[str, Rule] = {
    **IMAGE_RULES,
    **{name: _unary(name) for name in ("neg", "relu", "sigmoid", "tanh", "erf", "exp", "log", "sqrt", "abs", "sgn")},
    "sign": _unary("sgn"),
    "reciprocal": _unary("reciprocal"),
    "rsqrt": _rsqrt,
    "expm1": _expm1,
    "log1p": _log1p,
    **{name: _arithmetic(name) for name in ("add", "sub", "mul", "div", "maximum", "minimum", "remainder")},
    "rsub": lambda b, out, a, c, alpha=1: _arithmetic("sub")(b, out, c, a, alpha),
    **{name: _comparison(name) for name in ("lt", "le", "eq", "ne")},
    "gt": _comparison("lt", swapped=True),
    "ge": _comparison("le", swapped=True),
    **{
        name: _arithmetic(name.rpartition("_")[2])
        for name in ("logical_and", "bitwise_and", "logical_or", "bitwise_or")
    },
    "bitwise_xor": _arithmetic("xor"),
    **{name: _arithmetic("shift") for name in ("__rshift__", "bitwise_right_shift")},
    **dict.fromkeys(("logical_not", "bitwise_not"), _logical_not),
    **{name: _softplus(name) for name in ("softplus", "softplus_backward")},
    "pow": _power,
    "where": _where,
    "masked_fill": _masked_fill,
    "clamp": _clamp,
    "clamp_min": _clamp,
    "threshold_backward": _threshold_backward,
    "sigmoid_backward": lambda b, out, grad, y: b.elementwise("sigmoid_backward", out, grad, y),
    "tanh_backward": lambda b, out, grad, y: b.elementwise("tanh_backward", out, grad, y),
    **dict.fromkeys(("clone", "_to_copy", "to", "_unsafe_view", "_reshape_copy"), _copy),
    "copy": _copy_into,
    **{name: _filled(0) for name in ("zeros", "zeros_like", "new_zeros", "zero")},
    **{name: _filled(1) for name in ("ones", "ones_like", "new_ones")},
    **dict.fromkeys(("full", "full_like", "new_full", "fill"), _full),
    **dict.fromkeys(("arange", "scalar_tensor", "lift_fresh", "eye"), _constant),
    **dict.fromkeys(("empty", "empty_like", "new_empty", "new_empty_strided", "empty_strided"), _empty),
    "sum": _sum,
    "mean": _mean,
    "linalg_vector_norm": _norm,
    "_log_softmax": _softmax("log_softmax"),
    "_softmax": _softmax("softmax"),
    "_log_softmax_backward_data": _softmax("log_softmax_backward"),
    "_softmax_backward_data": _softmax("softmax_backward"),
    "index": _index,
    "index_select": lambda b, out, value, dim, index: _take(b, out, value, dim % value.ndim, index),
    "embedding": lambda b, out, weight, index, *_: _take(b, out, weight, 0, index),
    "embedding_dense_backward": _embedding_backward,
    "gather": _gather,
    "scatter_add": _scatter_add,
    "cat": _cat,
    "stack": _stack,
    "constant_pad_nd": _pad,
    "select_backward": _select_backward,
    "slice_backward": _slice_backward,
    "mm": _product,
    "bmm": _product,
    "addmm": _addmm,
    "mv": lambda b, out, x, y: _product(b, out[:, None], x, y[:, None]),
    "dot": lambda b, out, x, y: _product(b, out[None, None], x[None], y[:, None]),
    "_foreach_add_": _foreach(_arithmetic("add")),
    "_foreach_sub_": _foreach(_arithmetic("sub")),
    "_foreach_mul_": _foreach(_arithmetic("mul")),
    "_foreach_div_": _foreach(_arithmetic("div")),
    "_foreach_norm": _foreach(_norm, "results"),
    "_fused_adam_": _fused_adam,
}


def record(
    function: Callable[[], Sequence[Tensor]], inputs: Sequence[Tensor], outputs: int, real: torch.dtype
) -> ArrayProgram:
    """What `function` does to `inputs`, as a program.

    Args:
        function: reads and writes `inputs`. It returns first `outputs` tensors, which the program writes to buffers of
            their own, and then a new value, or the input itself, for the first inputs in their order.
        inputs: contiguous tensors, each with a memory of its own.
        real: the floating type of all numbers.

    Raises:
        Unsupported: the function does something else than the operations of the kernel.
    """
    with Recorder(RULES) as recorder:
        results = function()
    builder = Builder(inputs, real)
    for call in recorder.calls:
        builder.add_call(RULES, *call)
    return builder.finish(results[:outputs], results[outputs:])
