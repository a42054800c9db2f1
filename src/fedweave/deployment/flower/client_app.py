"""The ClientApp of an exported federation: `Node` answers each message."""

from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedweave.deployment.flower.records import from_reply, to_request
from fedweave.deployment.flower.secure import mask_upload
from fedweave.deployment.node.node import Node, open_node
from fedweave.deployment.wire import spec as specification
from fedweave.deployment.wire.spec import HASH_DIGITS
from fedweave.errors import BadInput


def client_app(path: Path) -> ClientApp:
    """The app whose specification is the file `path`."""
    app = ClientApp()

    def answer(message: Message, context: Context) -> Message:
        node = node_from_config(path, context.node_config)
        return Message(from_reply(node.answer(to_request(message.content))), reply_to=message)

    def train(message: Message, context: Context) -> Message:
        spec = specification.read(path)
        return mask_upload(spec, message, context, answer) if spec.secure else answer(message, context)

    def evaluate(message: Message, context: Context) -> Message:
        if to_request(message.content).config.get("takes_part"):  # its upload would leave the node unmasked
            raise BadInput(
                "message", "it asks for an upload, but is not of the type that masks uploads; this node refuses it"
            )
        return answer(message, context)

    app.train()(train)
    app.evaluate()(evaluate)
    for kind in ("who", "enrol", "finish"):
        app.query(kind)(evaluate)
    return app


def node_from_config(path: Path, config: dict[str, Any]) -> Node:
    """The node of its own configuration: `spec`, `data`, `state`, and `device`, which is "cpu" by default.

    Raises:
        BadInput: the node's owner has not agreed to this specification, or its files are missing.
    """
    for key in ("spec", "data", "state"):
        if key not in config:
            raise BadInput("node-config", f"{key} is missing; start the node with: python -m fedweave.deployment node")
    spec = specification.read(path)
    check_agreement(spec.hash, str(config["spec"]))
    data = Path(str(config["data"]))
    file = data / f"{spec.short_hash}.pt" if data.is_dir() else data
    return open_node(spec, file, Path(str(config["state"])), str(config.get("device", "cpu")))


def check_agreement(hash: str, agreed: str) -> None:
    """Refuse a specification that the node's owner has not agreed to."""
    words = agreed.replace(",", " ").split()
    if not any(len(word) >= HASH_DIGITS and hash.startswith(word) for word in words):
        raise BadInput(
            f"this app has the specification {hash[:HASH_DIGITS]}, but this node agreed to {agreed}, and refuses it"
        )
