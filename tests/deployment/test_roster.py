"""The roster of keys: the client of each node; replies contain only declared values; the recorded messages."""

import json
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from hosts import Hosts, planned, rows_of

from fedweave.deployment.__main__ import main
from fedweave.deployment.server import replies
from fedweave.deployment.server.node_registry import NodeRegistry
from fedweave.deployment.wire.messages import Reply, Request
from fedweave.deployment.wire.roster import Roster, RosterEntry, fingerprint
from fedweave.errors import BadInput

NODES = {900: 0, 899: 1, 898: 2}  # node -> client, as `Hosts.calls` has them


@pytest.fixture(scope="module")
def rows():
    return rows_of()


def test_a_corrected_node_gets_requests_again(rows, tmp_path):
    """Its owner started it with the file of another client, and restarts it with the correct one."""
    hosts = Hosts(tmp_path, planned("fedavg", rows))
    roster, lines, calls = write_roster(tmp_path / "roster.json", NODES), [], hosts.calls()
    calls.nodes_[898] = hosts.node(0)
    registry = NodeRegistry(hosts.spec, calls, roster.clients, say=lines.append)
    log = hosts.message_log()
    for round in (0, 0, 1):
        assert {*registry.refresh(round, log)} == {0, 1}
    assert len(calls.sent) == 4  # once in each round
    assert len(lines) == 1
    calls.offline = {898}
    registry.refresh(1, log)
    calls.offline, calls.nodes_[898] = set(), hosts.node(2)
    assert {*registry.refresh(1, log)} == {0, 1, 2}


def write_roster(path, owners) -> Roster:
    """A roster of the nodes `owners`."""
    roster = Roster(path)
    with roster.edit() as entries:
        entries |= {client: RosterEntry(client, f"SHA256:{client}", node) for node, client in owners.items()}
    return roster


def test_a_node_with_another_clients_key_is_refused_until_the_roster_changes(rows, tmp_path):
    """The key of node 899 belongs to client 2, and that of node 898 to no client. Then the server's owner corrects the
    roster.
    """
    hosts = Hosts(tmp_path, planned("fedavg", rows))
    roster, lines, calls = write_roster(tmp_path / "roster.json", {900: 0, 899: 2}), [], hosts.calls()
    settings = {"owners": roster.clients, "say": lines.append}
    with pytest.raises(BadInput, match="only 1 of 3 clients"):
        hosts.run(calls, **settings)
    assert "node 899 is left out: it says that it is client 1, but its key is that of client 2" in lines
    assert "node 898 is left out: its key is in no row of the roster; register it to let it in" in lines
    assert 898 not in {node for node, _, _ in calls.sent}
    assert {line["client"] for line in hosts.message_log().lines() if "error" not in line} == {0}
    write_roster(tmp_path / "roster.json", NODES)
    assert hosts.run(hosts.calls(), **settings).members == (0, 1, 2)


@pytest.mark.acceptance
def test_a_key_may_be_replaced_during_a_run(rows, tmp_path):
    """Client 1's old node is refused. Its new node continues from the state on its disk."""
    hosts = Hosts(tmp_path, planned("fedrep", rows))
    roster = write_roster(tmp_path / "roster.json", NODES)
    hosts.run(until=1, owners=roster.clients)
    write_roster(tmp_path / "roster.json", {950: 1})
    calls = hosts.calls()
    calls.nodes_[950] = hosts.node(1)
    history = hosts.run(calls, owners=roster.clients).history
    assert not history.dropped
    assert history.ledger[1].train_loss == hosts.simulation().ledger[1].train_loss
    assert 899 not in {node for node, _, _ in calls.sent}


HOSTILE = {
    "loss": ("train", {"loss": "high"}),
    "infinite": ("train", {"loss": float("inf")}),
    "scores": ("train", {"pre/test": [0.5]}),
    "score": ("train", {"post/val": float("inf")}),
    "accuracy": ("train", {"pre/test": 750.0}),
    "negative": ("train", {"pre/val": -1e300}),
    "long": ("train", {"pre/val": 10**400}),
    "control": ("enrol", {"control/Majority class": float("-inf")}),
    "names": ("train", {"x" * 10**6: 1.0}),
    "identity": ("train", {"client": 0}),
    "rows": ("enrol", {"rows/train": -5}),
    "rule": ("enrol", {"control/mine": 1.0}),
    "text": ("who", {"client": "zero"}),
}


@pytest.fixture(scope="module")
def finished(rows, tmp_path_factory):
    """A finished federation, and its messages by kind."""
    hosts = Hosts(tmp_path_factory.mktemp("honest"), planned("fedavg", rows))
    calls = hosts.calls()
    hosts.run(calls)
    return hosts.spec, {request.kind: (request, reply) for node, request, reply in calls.sent if node == 899}


@pytest.mark.parametrize("case", HOSTILE)
def test_impossible_numbers_are_refused(case, finished):
    spec, sent = finished
    kind, numbers = HOSTILE[case]
    request, reply = sent[kind]
    assert replies.inspect(spec, request, reply, 1) is reply
    wrong = replies.inspect(spec, request, replace(reply, config={**reply.config, **numbers}), 1)
    assert isinstance(wrong, str)
    assert len(wrong) < 200


def test_a_score_of_a_part_without_rows_is_nan(finished):
    spec, sent = finished
    request, reply = sent["train"]
    empty = replace(reply, config={**reply.config, "pre/val": float("nan")})
    assert replies.inspect(spec, request, empty, 1) is empty


def corrupt_reply(request: Request, reply: Reply, upload: bool) -> Reply:
    """An upload of another shape, or a loss that is not a number."""
    if not reply.upload:
        return reply
    if not upload:
        return replace(reply, config={**reply.config, "loss": "high"})
    name, value = next(iter(reply.upload.items()))
    return replace(reply, upload={**reply.upload, name: torch.zeros(2, *value.shape)})


@pytest.mark.parametrize(
    "train",
    [
        {"privacy": {"clip": 1.0, "noise": 0.5}},
        pytest.param({"robust": {"rule": "clip"}}, marks=pytest.mark.acceptance),
    ],
    ids=["noise", "robust"],
)
def test_uploads_of_another_size_are_refused_with_every_protection(train, rows, tmp_path):
    """The limit follows from the declared tensors. Nothing of a refused upload is stored, and the server continues."""
    hosts = Hosts(tmp_path, planned("fedavg", rows, **train))
    calls = hosts.calls()
    calls.change = lambda node, request, reply: corrupt_reply(request, reply, node == 899) if node != 900 else reply
    history = hosts.run(calls).history
    assert [(row.round, row.client) for row in history.dropped] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    assert np.isfinite([row[:2] for row in history.scores["pre/test"]]).all()  # only its upload is refused
    refused = [line for line in hosts.message_log().lines() if "error" in line]
    assert [(line["client"], line.get("tensors", {})) for line in refused] == [(1, {}), (2, {})] * 2
    assert "is declared" in refused[0]["error"]
    assert "'loss' must be a number" in refused[1]["error"]
    training_requests = [request for _, request, _ in calls.sent if request.kind == "train" and request.config["train"]]
    form = hosts.spec.forms["train"][0]["tensors"]
    assert {request.max_bytes for request in training_requests} == {replies.max_bytes(form)}
    assert replies.max_bytes(form) < sum(value.nbytes for value in hosts.spec.task.init(0).values()) + 20_000


def test_the_fingerprint_is_that_of_ssh(tmp_path, capsys):
    pytest.importorskip("cryptography")
    assert main(["keys", str(tmp_path), "--node", "ann"]) == 0
    public = tmp_path / "ann.pub"
    assert fingerprint(public) in capsys.readouterr().out
    assert fingerprint(public).startswith("SHA256:")
    with pytest.raises(BadInput, match="no public key"):
        fingerprint(tmp_path / "ann")
    if not shutil.which("ssh-keygen"):
        pytest.skip("no ssh-keygen to compare with")
    output = subprocess.run(["ssh-keygen", "-lf", public], capture_output=True, text=True, check=True).stdout
    assert fingerprint(public) in output


def test_invalid_rosters_are_refused(tmp_path, capsys):
    """A missing or damaged file, keys without a client, a client without a key."""
    path = tmp_path / "roster.json"
    with pytest.raises(BadInput, match=r"not found, so that no node is known; register the keys"):
        Roster(path).clients()
    path.write_text('{"version": 1, "nodes": [{"client": "a"}]}')
    with pytest.raises(BadInput, match=r"roster\.json: damaged"):
        Roster(path).clients()
    path.unlink()
    for words in (
        ["register", "a.pub", "--client", "1", "--client", "2"],
        ["register", "a.pub", "--client", "-1"],
        ["register", "a.pub", "--client", "1"],
        ["unregister", "--client", "3"],
    ):
        assert main([*words, "--roster", str(path)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 4
    assert all(line.startswith("error: ") for line in lines)


def test_an_incomplete_line_of_a_killed_server_is_removed(rows, tmp_path):
    """The next line is not appended to it. At the end the table of bytes is written."""
    hosts = Hosts(tmp_path, planned("fedavg", rows, rounds=3))
    hosts.run(until=1)
    file, before = tmp_path / "server" / "messages.jsonl", hosts.message_log().lines()
    file.write_bytes(file.read_bytes() + b'{"round": 1, "kind": "tr')
    assert hosts.message_log().lines() == before
    hosts.run()
    assert b'"tr{' not in file.read_bytes()
    assert all(json.loads(line) for line in file.read_text().splitlines())
    assert [line["round"] for line in hosts.message_log().lines()[: len(before)]] == [line["round"] for line in before]
    assert pd.read_csv(tmp_path / "server" / "connection.csv")["round"].tolist() == [0, 1, 2, 3]
    file.write_bytes(b"\0\0" + file.read_bytes())  # a line that the disk has lost
    hosts.message_log().write_traffic()
