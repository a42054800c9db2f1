"""FedPer (Arivazhagan et al., 2019, arXiv:1912.00818).

Server keeps the body B; the head H stays with the client. Both are trained together; B goes down and up (2|B|).
With low-rank adapters and `personal: [head, "*.B"]` it is FedSA-LoRA (Guo et al., ICLR 2025, arXiv:2410.01463).
"""

from dataclasses import dataclass
from typing import Annotated

from fedweave.engine.registry import method
from fedweave.errors import BadInput, format_value
from fedweave.families import GlobalModel, SplitClient
from fedweave.models.base import is_named


@method("fedper")
@dataclass(frozen=True, kw_only=True)
class FedPer(SplitClient, GlobalModel):
    """A shared body with private heads."""

    personal: Annotated[
        tuple[str, ...],
        "what stays with the client: head, layers or parts with layers in them by the last words of their names, * for "
        "any text",
    ] = ("head",)

    label = "FedPer"

    @property
    def private(self) -> tuple[str, ...]:
        return tuple(name for name in self.task.params if any(name in self._named(word) for word in self.personal))

    def _named(self, word: str) -> tuple[str, ...]:
        names = tuple(name for name in self.task.params if is_named(name, word))
        if word == "head" or names:
            return self.task.head if word == "head" else names
        raise BadInput(
            "fedper.personal",
            f"{format_value(word)} names no layer; choices: head, {', '.join(filter(None, self.task.layers))}",
        )
