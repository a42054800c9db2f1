"""Requests and replies as messages of Flower: numbers in a ConfigRecord, trees in ArrayRecords."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from torch import Tensor

from fedweave.deployment.wire.messages import Reply, Request
from fedweave.deployment.wire.tensors import UndeclaredTensor, decode
from fedweave.errors import format_value

CONFIG, UPLOAD = "config", "upload"
MAX_REASON_LENGTH = 300  # characters
Arrays = dict[int, tuple[Tensor, Array]]  # id of a tensor -> the tensor, and its array


def to_record(tensors: Mapping[str, Tensor], cache: Arrays | None = None) -> ArrayRecord:
    """Named tensors as an ArrayRecord. Messages with the same `cache` share arrays of the same tensors."""
    arrays: Arrays = {} if cache is None else cache
    for tensor in tensors.values():
        if id(tensor) not in arrays:
            arrays[id(tensor)] = tensor, Array(tensor.detach().cpu().contiguous().numpy())
    return ArrayRecord({name: arrays[id(tensor)][1] for name, tensor in tensors.items()})


def to_tensors(record: ArrayRecord) -> dict[str, Tensor]:
    """The inverse of `to_record`, on the CPU."""
    return {name: torch.from_numpy(np.array(array.numpy())) for name, array in record.items()}


def decode_tensors(record: ArrayRecord, form: Mapping[str, Any]) -> dict[str, Tensor]:
    """The tensors of a record from a node; each is compared with `form` before it is read.

    Raises:
        UndeclaredTensor: one that `form` does not have, or that has another shape or type there.
    """
    for name in record:
        if name not in form:
            raise UndeclaredTensor("upload", f"the tensor {format_value(name)} is not declared in spec.json")
    decoded: dict[str, Tensor] = {}
    for name, array in record.items():
        shape, dtype = form[name]
        decoded[name] = torch.from_numpy(decode(array.data, shape, dtype, name))
    return decoded


def to_content(request: Request, cache: Arrays) -> RecordDict:
    """A request as the content of a message."""
    records: dict[str, Any] = {part: to_record(tensors, cache) for part, tensors in request.parts.items() if tensors}
    return RecordDict({CONFIG: ConfigRecord({"kind": request.kind, **request.config}), **records})


def to_request(content: RecordDict) -> Request:
    """The inverse of `to_content`."""
    config = dict(content.config_records[CONFIG])
    parts = {name: to_tensors(record) for name, record in content.array_records.items()}
    shared, own, evaluated = (parts.get(name, {}) for name in ("shared", "own", "evaluated"))
    return Request(config.pop("kind"), config, shared, own, evaluated)


def message_type(request: Request) -> str:
    """Flower's type of a request: training, evaluation or a query. Training without an upload counts as evaluation."""
    if request.kind != "train":
        return f"{MessageType.QUERY}.{request.kind}"
    return MessageType.TRAIN if request.config["takes_part"] else MessageType.EVALUATE


def to_reply(message: Message, sent: int, request: Request) -> Reply:
    """The reply to `request` that a message holds; `sent` bytes went to the node.

    Raises:
        KeyError: it holds records that no reply has.
        ValueError: it has more bytes than the request allows, or tensors that are not declared.
    """
    content = message.content
    unknown = {*content} - {CONFIG, UPLOAD}
    if unknown:
        raise KeyError(f"records {', '.join(sorted(unknown))[:80]}")
    size = nbytes(content)
    if size > request.max_bytes:
        raise ValueError(f"{size} bytes, but the tensors of spec.json make at most {request.max_bytes}")
    upload = decode_tensors(content.array_records[UPLOAD], request.form) if UPLOAD in content else {}
    return Reply(dict(content.config_records[CONFIG]), upload, (sent, size))


def describe_error(error: Exception) -> str:
    """Why a reply whose reading raised `error` is refused."""
    return f"a reply that cannot be read ({type(error).__name__}: {str(error)[:MAX_REASON_LENGTH]})"


def from_reply(reply: Reply) -> RecordDict:
    """A reply as the content of a message."""
    records: dict[str, Any] = {UPLOAD: to_record(reply.upload)} if reply.upload else {}
    return RecordDict({CONFIG: ConfigRecord(dict(reply.config)), **records})


def nbytes(item: Any) -> int:
    """Bytes of a record as Flower sends it: everything but the frames of HTTP and TLS."""
    children = item.children or {}
    return len(item.deflate()) + sum(map(nbytes, children.values()))
