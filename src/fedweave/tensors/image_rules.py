"""How convolutions and poolings of images become instructions: rules of `lowering.py`.

The kernel reads and writes images whose channels are next to each other in memory. Others are copied.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from fedweave.tensors.array_programs import LANES, Builder, Unsupported, whole_vectors

Pair = Sequence[int]


def _convolution(
    b: Builder, out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Pair, padding: Pair, *rest: Any
) -> None:
    """out [B, o, h', w'] from images [B, c, h, w], a kernel [o, c, k, l] and a bias [o]."""
    form, image = _form(weight, x, stride, padding, rest), _padded_size(x, padding)
    fan_in, channels = _kernel_size(weight, stride), whole_vectors(len(weight))
    x = _channels_last(b, x)
    bias = None if bias is None else b.contiguous(bias)
    scratch = b.new(((fan_in + 1) * channels + image,), out.dtype)
    with _written(b, out) as result:
        places = [*map(_pixels, (result, x)), (weight, weight.stride()), (bias, (0,) * 4), form, (scratch, (0,) * 4)]
        b.emit("convolution", _places(result), *places)


def _convolution_backward(
    b: Builder,
    results: Sequence[Tensor | None],
    grad: Tensor,
    x: Tensor,
    weight: Tensor,
    _bias: Any,
    stride: Pair,
    padding: Pair,
    *rest: Any,
) -> None:
    """The gradients of images, kernel and bias that `results` has."""
    form, image = _form(weight, x, stride, padding, rest[:-1]), _padded_size(x, padding)
    grad, (out_x, out_weight, out_bias) = _channels_last(b, grad), results
    fan_in, channels, (high, wide) = weight[0].numel(), len(weight), grad.shape[2:]
    if out_x is not None:
        scratch = b.new(((channels + wide) * whole_vectors(fan_in) + image,), grad.dtype)
        with _written(b, out_x) as result:
            places = [*map(_pixels, (result, grad)), (weight, weight.stride()), (None, (0,) * 4), form]
            b.emit("convolution_input", _places(grad), *places, (scratch, (0,) * 4))
    if out_weight is not None:
        rows = _kernel_size(weight, stride) + high * wide
        scratch = b.new((rows * whole_vectors(channels) + image,), grad.dtype)
        places = [(out_weight, out_weight.stride()), *map(_pixels, (_channels_last(b, x), grad)), (None, (0,) * 4)]
        b.emit("convolution_weight", _places(grad), *places, form, (scratch, (0,) * 4))
    if out_bias is not None:
        b.accumulate(out_bias, grad, (0, 2, 3))


def _max_pool(b: Builder, results: Sequence[Tensor], x: Tensor, size: Pair, *options: Any) -> None:
    """The largest numbers [B, c, h', w'] and their positions in the plane, from images [B, c, h, w]."""
    form, x = _windows(x, size, *options), _channels_last(b, x)
    out, positions = results
    with _written(b, out) as largest, _written(b, positions) as where:
        b.emit("max_pool", _places(largest), *map(_pixels, (largest, where, x)), (None, (0,) * 4), form)


def _max_pool_backward(
    b: Builder, out: Tensor, grad: Tensor, x: Tensor, size: Pair, *options_and_positions: Any
) -> None:
    *options, positions = options_and_positions
    _windows(x, size, *options)
    gradients = _channels_last(b, grad), _channels_last(b, positions)
    with _written(b, out) as result:
        b.emit("max_pool_backward", _places(grad), *map(_pixels, (result, *gradients)))


def _form(weight: Tensor, x: Tensor, stride: Pair, padding: Pair, rest: Sequence[Any]) -> Any:
    dilation, transposed, _, groups = rest
    if x.ndim != 4 or transposed or groups != 1 or {*dilation} != {1} or len({*stride}) > 1 or len({*padding}) > 1:
        raise Unsupported("a convolution with groups or dilation, or other steps in one direction than in the other")
    return None, (*weight.shape[2:], stride[0], padding[0])


def _windows(
    x: Tensor, size: Pair, stride: Pair = (), padding: Pair = (0,), dilation: Pair = (1,), ceil: bool = False
) -> Any:
    steps = {*(stride or size)[-1 if x.shape[2] == 1 else 0 :]}  # in an image of one row there are none down
    if len(size) != 2 or len(steps) > 1 or {*padding} != {0} or {*dilation} != {1} or ceil:
        raise Unsupported("a pooling with padding or dilation")
    return None, (*size, steps.pop(), 0)


def _kernel_size(weight: Tensor, stride: Pair) -> int:
    """Numbers of a kernel for one channel of the result, at most: with copies of itself for neighbours in a vector."""
    together = max(1, LANES // len(weight))
    return weight.shape[1] * weight.shape[2] * (weight.shape[3] + (together - 1) * stride[0])


def _padded_size(x: Tensor, padding: Pair) -> int:
    """Numbers of an image with zeros around it, and of a vector that is read behind them."""
    return x.shape[1] * (x.shape[2] + 2 * padding[0]) * (x.shape[3] + 2 * padding[0]) + LANES


def _pixels(images: Tensor) -> Any:
    """An operand with the strides of image, row, pixel and channel."""
    _, channels, high, wide = images.shape
    return images, (channels * high * wide, channels * wide, channels, 1)


def _places(images: Tensor) -> tuple[int, ...]:
    count, channels, high, wide = images.shape
    return count, high, wide, channels


def _is_channels_last(images: Tensor) -> bool:
    return images.permute(0, 2, 3, 1).is_contiguous()


def _channels_last(b: Builder, images: Tensor) -> Tensor:
    if images.ndim != 4:
        raise Unsupported("images without an axis of the batch")
    if _is_channels_last(images):
        return images
    packed = _like_images(b, images)
    b.copy(packed, images)
    return packed


@contextmanager
def _written(b: Builder, out: Tensor) -> Iterator[Tensor]:
    """`out`, or images with channels last that the block writes to and that become `out` after it."""
    result = out if _is_channels_last(out) else _like_images(b, out)
    yield result
    if result is not out:
        b.copy(out, result)


def _like_images(b: Builder, images: Tensor) -> Tensor:
    count, channels, high, wide = images.shape
    return b.new((count, high, wide, channels), images.dtype).permute(0, 3, 1, 2)


IMAGE_RULES: dict[str, Callable[..., None]] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "max_pool2d_with_indices": _max_pool,
    "max_pool2d_with_indices_backward": _max_pool_backward,
}
