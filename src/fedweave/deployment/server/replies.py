"""What the server accepts of a reply, checked before anything of it is stored or enters its state.

The limits follow from the specification alone, so that privacy, robust rules or other settings do not change them.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedweave.deployment.wire import tensors
from fedweave.deployment.wire.messages import Reply, Request
from fedweave.deployment.wire.spec import AppSpec

ROWS = ("rows/train", "rows/val", "rows/test")
SCORES = ("pre/val", "pre/test", "post/val", "post/test")
RULES = ("control/Majority class", "control/Last value", "control/Training mean")
PERCENTAGES = ("accuracy", "balanced_accuracy")  # scores from 0 to 100
MAX_SCORE = 1e30  # of a metric without bounds, such as a squared error
MAX_ROWS = 2**53  # float64 cannot represent all larger integers
HEAD_BYTES, TENSOR_BYTES = 8192, 1024  # beside the numbers: names, types, shapes, headers


def reply_form(spec: AppSpec, request: Request) -> dict[str, Any]:
    """Name -> [shape, type] of the tensors that the reply to `request` may hold."""
    if request.kind == "enrol":
        return spec.enrolment_form(int(request.config["stage"]))
    if request.kind == "train" and request.config["takes_part"]:
        return spec.upload_form(int(request.config["round"]))
    return {}


def max_bytes(form: Mapping[str, Any]) -> int:
    """The most bytes of a message with the tensors of `form`."""
    return HEAD_BYTES + tensors.nbytes(form) + sum(TENSOR_BYTES + len(name.encode()) for name in form)


def inspect(spec: AppSpec, request: Request, reply: Reply, client: int | None) -> Reply | str:
    """The reply, or why it is refused. If only the upload is refused, the reply without it.

    Args:
        client: identity of the node's client; None while it is not known.
    """
    if problem := _numbers_error(spec, request, reply.config):
        return f"a reply is refused: {problem}"
    if client is not None and reply.config["client"] != client:
        return f"a reply is refused: it is client {reply.config['client']}'s, but the node is client {client}'s"
    form = reply_form(spec, request) if reply.config.get("sound", True) else {}
    try:
        tensors.check(tensors.form_of(reply.upload), form, "upload")
    except tensors.UndeclaredTensor as error:
        empty = replace(reply, upload={}, refused=f"{error}")
        return replace(empty, config={**reply.config, "sound": False}) if request.kind == "train" else f"{error}"
    return reply


def _numbers_error(spec: AppSpec, request: Request, config: Mapping[str, Any]) -> str:
    """What is wrong with the numbers of a reply; empty if nothing is."""
    counts = {"client", *ROWS}
    for name in sorted({*config} | counts):
        value = config.get(name)
        if name in counts:
            if type(value) is not int or not (name == ROWS[0]) <= value < MAX_ROWS:  # at least one training row
                return f"{name!r} must be a count"
        elif name not in _number_names(request):
            return f"{name[:40]!r} is not a number of this message"
        elif name in ("sound", "kept"):
            if type(value) is not bool:
                return f"{name!r} must be true or false"
        elif problem := _number_error(spec, name, value):
            return problem
    if config.get("sound") and not math.isfinite(config.get("loss", math.nan)):
        return "'loss' must be finite"
    return ""


def _number_error(spec: AppSpec, name: str, value: Any) -> str:
    """What is wrong with a loss or a score; a score that is not a number stands for a part without rows."""
    if type(value) not in (int, float):
        return f"{name!r} must be a number"
    if name == "loss" or value != value:
        return ""
    low, high = (0.0, 100.001) if spec.task.score_metric.name in PERCENTAGES else (-MAX_SCORE, MAX_SCORE)
    return "" if low <= value <= high else f"{name!r} must be a score from {low:g} to {high:g}"


def _number_names(request: Request) -> tuple[str, ...]:
    """Names of the numbers that a reply may have, beside identity and rows."""
    if request.kind == "train":
        return (
            *(SCORES if request.config["evaluate"] else ()),
            *(("loss", "sound") if request.config["train"] else ()),
        )
    return {"enrol": RULES, "finish": ("kept",)}.get(request.kind, ())
