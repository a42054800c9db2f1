"""Run a Flower app on a task: python drive_flower.py APP PREDICT TASK OUTPUT, in an environment with Flower.

It imports nothing of fedweave. The app's ServerApp and ClientApp are those that its pyproject.toml names, and run as
they are: messages go from one to the other in this process, one client after the other, each with its own context. The
run config of the app has "fedweave-task" too, the folder of the task; a client's node config has "partition-id" and
"num-partitions". After the ServerApp has ended, PREDICT (module:function) gets the last message that a client got to
evaluate (else to train), and its context, and gives its predictions for validation and test rows.
"""

import json
import sys
import tomllib
from importlib import import_module
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.app import Context, RecordDict
from flwr.serverapp import Grid


class LocalGrid(Grid):
    """A grid whose nodes are clients in this process."""

    def __init__(self, client_app: Any, contexts: dict[int, Context]) -> None:
        self.client_app, self.contexts, self.replies = client_app, contexts, dict[str, Any]()
        self.last: dict[int, Any] = {}  # node -> the message with which it predicts
        self.bytes = {"up": 0, "down": 0}

    def set_run(self, run: Any) -> None:
        """There is one run."""

    @property
    def run(self) -> Any:
        """There is one run, without a record."""
        raise NotImplementedError("this grid has no record of a run")

    def create_message(
        self, content: Any, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Any:
        """As of `Grid`."""
        from flwr.app import Message

        return Message(content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> list[int]:
        """As of `Grid`."""
        return [*self.contexts]

    def push_messages(self, messages: Any) -> list[str]:
        """Give each message to its client and keep the reply."""
        ids = []
        for message in messages:
            node, number = message.metadata.dst_node_id, uuid4().hex
            message.metadata.__dict__.update({"_run_id": 1, "_src_node_id": 1, "_message_id": number})
            kind = message.metadata.message_type.partition(".")[0]
            if kind == "evaluate" or self.last.get(node) is None or self.last[node][0] != "evaluate":
                self.last[node] = kind, message
            self.bytes["down"] += count_bytes(message)
            self.replies[number] = reply = self.client_app(message, self.contexts[node])
            reply.metadata.__dict__.update({"_message_id": uuid4().hex})
            self.bytes["up"] += count_bytes(reply)
            ids.append(number)
        return ids

    def pull_messages(self, message_ids: Any) -> list[Any]:
        """As of `Grid`."""
        return [self.replies.pop(number) for number in message_ids if number in self.replies]

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Any]:
        """As of `Grid`."""
        return self.pull_messages(self.push_messages(messages))


def name_process() -> None:
    """Recent versions of Flower give each message the numbers of its process, which their launcher sets."""
    try:
        from flwr.supercore.task_identity import TaskIdentity
    except ImportError:
        return
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1


def count_bytes(message: Any) -> int:
    """Bytes of the arrays in a message."""
    return sum(records.count_bytes() for records in message.content.array_records.values()) if message.content else 0


def load(name: str) -> Any:
    """The object called module:attribute."""
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def main(app: Path, predict: str, task: Path, output: Path) -> None:
    """Train and predict."""
    about = json.loads((task / "task.json").read_text(encoding="utf-8"))
    if about["origins"]:
        raise SystemExit("test windows of forecasts come one at a time, which a Flower app does not know")
    declared = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
    config = dict(declared.get("config", {}))
    for name, value in about["settings"].items():  # Flower's names have hyphens, those of settings have none
        config[hyphened if (hyphened := name.replace("_", "-")) in config else name] = value
    config |= {"fedweave-task": str(task), "seed": about["seed"]}
    sys.path.insert(0, str(app))
    name_process()
    parts, count = declared["components"], len(about["clients"])
    contexts = {
        100 + i: Context(1, 100 + i, {"partition-id": i, "num-partitions": count}, RecordDict(), config)
        for i in range(count)
    }
    grid = LocalGrid(load(parts["clientapp"]), contexts)
    load(parts["serverapp"])(grid, Context(1, 1, {}, RecordDict(), config))
    answer = load(predict)
    for i, one in enumerate(about["clients"]):
        if not one["evaluated"]:
            continue
        if 100 + i not in grid.last:
            raise SystemExit(f"client {one['name']!r} got no message, so that it has no model")
        (output / one["folder"]).mkdir(parents=True)
        for part, rows in zip(("val", "test"), answer(grid.last[100 + i][1], contexts[100 + i]), strict=True):
            np.savez(output / one["folder"] / f"{part}.npz", outputs=rows)
    (output / "bytes.json").write_text(json.dumps(grid.bytes), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2], Path(sys.argv[3]), Path(sys.argv[4]))
