"""The messages between server and nodes, whatever carries them."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from torch import Tensor

Kind = Literal["who", "enrol", "train", "finish"]


@dataclass(frozen=True)
class Request:
    """A message to one node.

    Attributes:
        kind: "who": name your client. "enrol": describe yourself. "train": evaluate the last round if `evaluate`, then
            train round `round` if `train`. "finish": keep the model of round `round` as the one to deploy.
        config: numbers and flags; `round` is the number of rounds that are over.
        shared, own: the download, by name; `evaluated` is the download to evaluate with, where that differs.
        form: name -> [shape, type] of the tensors of the reply.
        max_bytes: of the reply; a longer one is refused before a tensor is decoded.
        weight: of the upload in the mean of secure aggregation; 0 where the upload is not masked.
    """

    kind: Kind
    config: Mapping[str, Any]
    shared: Mapping[str, Tensor] = field(default_factory=dict)
    own: Mapping[str, Tensor] = field(default_factory=dict)
    evaluated: Mapping[str, Tensor] = field(default_factory=dict)
    form: Mapping[str, Any] = field(default_factory=dict)
    max_bytes: int = 0
    weight: float = 0.0

    @property
    def parts(self) -> dict[str, Mapping[str, Tensor]]:
        """The tensors by the name of their part."""
        return {"shared": self.shared, "own": self.own, "evaluated": self.evaluated}


@dataclass(frozen=True)
class Reply:
    """The answer of a node.

    Attributes:
        config: numbers: identity, rows, loss, scores. Never a tensor.
        upload: the tensors that the specification declares, by name; empty if nothing has to be sent.
        nbytes: (bytes of the request, bytes of this reply), measured on the connection; 0 if nothing measures them.
        refused: why the server has left the upload out; empty if it has not.
    """

    config: Mapping[str, Any]
    upload: Mapping[str, Tensor] = field(default_factory=dict)
    nbytes: tuple[int, int] = (0, 0)
    refused: str = ""


class Channel(Protocol):
    """How the server reaches nodes. A node has a number; the node itself says which client it has."""

    def nodes(self) -> list[int]:
        """Numbers of the nodes that are connected now."""

    def exchange(self, requests: Mapping[int, Request]) -> dict[int, Reply | str]:
        """Node -> its reply, or why there is none; every request has an entry.

        The uploads of requests with a weight are the weighted mean of all of them, which is all that the server learns.
        """
