"""Secure aggregation by Flower's SecAgg+ (Bell et al. 2020): the server learns the mean of uploads, and no upload.

Nodes run Flower's own mod, and the server its workflow, stage by stage. Each pair of nodes shares a mask that cancels
in the sum; shares of the keys let the others remove the masks of a node that is lost while it trains.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitIns, FitRes, Parameters, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key
from flwr.compat.common import recorddict_compat as compat
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.server.workflow.secure_aggregation.secaggplus_workflow import WorkflowState

from fedweave.deployment.flower import records
from fedweave.deployment.server.replies import reply_form
from fedweave.deployment.wire.messages import Reply, Request
from fedweave.deployment.wire.tensors import decode
from fedweave.errors import BadInput

if TYPE_CHECKING:
    from fedweave.deployment.wire.spec import AppSpec

RANGE = 8.0  # numbers of an upload must lie in ±RANGE, which 2^22 steps divide
THRESHOLD = 2 / 3  # of the nodes must stay, so that masks can be removed
SHARES = 2048  # at most so many bytes of keys and shares for each other node
MASKED = "int64"  # type of masked numbers
TOO_FEW_NODES = "secure aggregation: too few nodes stayed to remove the masks"


class MessageDelivery(Protocol):
    """What delivers messages to nodes: the channel of the server."""

    context: Context

    def deliver(self, messages: Sequence[Message]) -> dict[int, Message | str]: ...


class _MeanStrategy(FedAvg):
    """The strategy of the workflow: it chooses all nodes, and stores the mean."""

    def __init__(self, nodes: Sequence[int]) -> None:
        super().__init__()
        self.proxies = [_Proxy(node) for node in nodes]
        self.results: list[tuple[Any, FitRes]] = []

    def configure_fit(self, *_: Any, **__: Any) -> list[tuple[Any, FitIns]]:
        """All nodes; the content of their messages is added later."""
        return [(proxy, FitIns(Parameters([], ""), {})) for proxy in self.proxies]

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> tuple[None, dict[str, Any]]:
        """Store the results, each of which has the mean."""
        del server_round, failures
        self.results = list(results)
        return None, {}


@dataclass(frozen=True)
class _Proxy:
    node_id: int


@dataclass
class _CountingGrid:
    """The grid of the workflow: it counts bytes by node, and leaves out answers that do not fit.

    Attributes:
        channel: delivers the messages.
        requests: by node.
        shapes: of the tensors of an upload, in the order of their names.
        bytes: node -> (sent, received) so far.
        numbers: node -> the numbers of its reply.
        reasons: node -> why it is left out.
        connection_error: why the SuperLink could not be reached.
    """

    channel: MessageDelivery
    requests: Mapping[int, Request]
    shapes: list[tuple[int, ...]]
    bytes: dict[int, tuple[int, int]] = field(default_factory=dict)
    numbers: dict[int, dict[str, Any]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    connection_error: Exception | None = None

    def send_and_receive(self, messages: Sequence[Message], *, timeout: float | None = None) -> list[Message]:
        """The answers that fit."""
        del timeout
        accepted = []
        sizes = {message.metadata.dst_node_id: records.nbytes(message.content) for message in messages}
        for node, answer in self._deliver(messages).items():
            down, up = self.bytes.get(node, (0, 0))
            self.bytes[node] = down + sizes[node], up
            if reason := answer if isinstance(answer, str) else self._refusal(node, answer):
                self.reasons.setdefault(node, reason)
            elif not isinstance(answer, str):
                accepted.append(answer)
        return accepted

    def _deliver(self, messages: Sequence[Message]) -> dict[int, Message | str]:
        try:
            return self.channel.deliver(messages)
        except Exception as error:
            self.connection_error = error
            raise

    def _refusal(self, node: int, answer: Message) -> str:
        """Why the answer of a node is left out; empty if it fits. Its bytes are counted."""
        try:
            size = records.nbytes(answer.content)
            self.bytes[node] = self.bytes[node][0], self.bytes[node][1] + size
            return self._content_error(node, answer.content, size)
        except Exception as error:  # what another host sends can raise nearly anything
            return records.describe_error(error)

    def _content_error(self, node: int, content: RecordDict, size: int) -> str:
        # A masked number has eight bytes, a tensor of the smallest declared type one.
        limit = 8 * self.requests[node].max_bytes + SHARES * len(self.requests)
        if size > limit:
            return f"a reply of {size} bytes, but at most {limit} are declared"
        if content.array_records and any(len(record) for record in content.array_records.values()):
            return "a reply with tensors that are not masked"
        keys = content.config_records.get(RECORD_KEY_CONFIGS, ConfigRecord({}))
        if Key.MASKED_PARAMETERS in keys:
            for part, shape in zip(keys[Key.MASKED_PARAMETERS], [(1,), *self.shapes], strict=True):
                decode(part, shape, MASKED, "masked")
            self.numbers[node] = dict(content.config_records.get(records.CONFIG, {}))
        return ""


def aggregate(
    channel: MessageDelivery, requests: Mapping[int, Request], contents: Mapping[int, RecordDict]
) -> dict[int, Reply | str]:
    """Node -> its numbers, with the weighted mean of the uploads of all nodes that stayed as its upload."""
    form = next(iter(requests.values())).form
    names = sorted(form)
    grid = _CountingGrid(channel, requests, [tuple(form[name][0]) for name in names])
    strategy = _MeanStrategy([*requests])
    try:
        complete = _run_stages(grid, strategy, channel.context, {node: contents[node] for node in requests})
    except Exception as error:  # what a node sends to a stage of the workflow can raise nearly anything
        if error is grid.connection_error:
            raise
        complete, grid.reasons = False, {**dict.fromkeys(requests, f"secure aggregation: {error}"), **grid.reasons}
    mean: dict[str, torch.Tensor] = {}
    if complete and strategy.results:
        arrays = parameters_to_ndarrays(strategy.results[0][1].parameters)
        dtypes = [getattr(torch, form[name][1]) for name in names]
        mean = {
            name: torch.from_numpy(np.array(array)).to(dtype)
            for name, array, dtype in zip(names, arrays, dtypes, strict=True)
        }
    senders = {proxy.node_id for proxy, _ in strategy.results}
    return {node: _build_reply(grid, node, mean if node in senders else {}) for node in requests}


def _build_reply(grid: _CountingGrid, node: int, mean: Mapping[str, torch.Tensor]) -> Reply | str:
    if node not in grid.numbers:
        return grid.reasons.get(node, TOO_FEW_NODES)
    reply = Reply(grid.numbers[node], dict(mean), grid.bytes[node])
    if mean:
        return reply
    return replace(reply, config={**reply.config, "sound": False}, refused=TOO_FEW_NODES)


def _run_stages(
    grid: _CountingGrid, strategy: _MeanStrategy, context: Context, contents: dict[int, RecordDict]
) -> bool:
    """Run the four stages; returns whether all were completed."""
    request = next(iter(grid.requests.values()))
    largest = max(request.weight for request in grid.requests.values())
    workflow = SecAggPlusWorkflow(1.0, THRESHOLD, max_weight=largest, clipping_range=RANGE)
    legacy, state = LegacyContext(context, strategy=strategy), WorkflowState()
    numbers = {WorkflowKey.CURRENT_ROUND: int(request.config["round"])}
    legacy.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord(numbers)
    legacy.state.array_records[MAIN_PARAMS_RECORD] = compat.parameters_to_arrayrecord(Parameters([], ""), True)
    if not workflow.setup_stage(grid, legacy, state):
        return False
    state.nid_to_fitins = contents
    stages: tuple[Callable[..., bool], ...] = (
        workflow.share_keys_stage,
        workflow.collect_masked_vectors_stage,
        workflow.unmask_stage,
    )
    return all(stage(grid, legacy, state) for stage in stages)


def mask_upload(
    spec: "AppSpec", message: Message, context: Context, answer: Callable[[Message, Context], Message]
) -> Message:
    """A node's answer to a message of training: Flower's mod masks the upload before it leaves.

    Raises:
        BadInput: an upload that is not finite at the client, or has a number outside of ±`RANGE`.
    """

    def answer_unmasked(message: Message, context: Context) -> Message:
        reply = answer(message, context)
        numbers = reply.content.config_records[records.CONFIG]
        if not numbers["sound"]:
            raise BadInput("the upload is not finite, so that it is not sent")
        form = reply_form(spec, records.to_request(message.content))
        upload = {name: array.numpy() for name, array in reply.content.array_records[records.UPLOAD].items()}
        largest = max(float(np.abs(array).max(initial=0.0)) for array in upload.values())
        if largest > RANGE:
            raise BadInput(f"the upload has a number of size {largest:.3g}, but secure aggregation carries ±{RANGE:g}")
        weight = 1 if spec.method.training.uniform_mean else numbers["rows/train"]
        arrays = ndarrays_to_parameters([upload[name] for name in sorted(form)])
        result = FitRes(Status(Code.OK, ""), arrays, int(weight), {})
        content = compat.fitres_to_recorddict(result, False)
        content.config_records[records.CONFIG] = numbers
        return Message(content, reply_to=message)

    return secaggplus_mod(message, context, answer_unmasked)
