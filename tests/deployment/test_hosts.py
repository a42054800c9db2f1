"""A run on separate hosts has the bits of the simulation and survives kills. Only declared tensors leave a node."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from hosts import Hosts, graphs_of, planned, rows_of, same, series_of

import fedweave as fw
from fedweave import results
from fedweave.deployment import export
from fedweave.deployment.export import export_result
from fedweave.deployment.node import client_data, own_rows
from fedweave.deployment.node.node import device_of, open_node
from fedweave.deployment.stored_states import StoredStates
from fedweave.deployment.wire import spec, support, tensors
from fedweave.deployment.wire.messages import Reply, Request
from fedweave.engine.protocol import Method
from fedweave.errors import BadInput
from fedweave.files.atomic import load_tensors, save_tensors
from fedweave.methods import METHODS
from fedweave.tensors import trees

# One method of every family; settings that are quick on a toy.
SMALL = {"width": 8, "hidden": 1}
ROWS = {
    "fedavg": {},
    "fedrep": {"head_epochs": 1},
    "ditto": {},
    "fedala": {},
    "fedamp": {},
    "fedfomo": {},
    "pfedgraph": {},
    "knn_per": {"k": 3},
    "pfedhn": SMALL,
    "pfedla": {"vector_size": 4, "width": 4},
    "pfedgat": {"head_width": 3},
    "shn": {**SMALL, "channels": 4, "depth": 1, "stalk": 2, "stage1_rounds": 1},
    "fedaghn": {},
    "cfl": {},
    "sfl": {},
}
GRAPHS = {
    "fedsheafhn": {"width": 8, "channels": 4, "depth": 1, "enrol_epochs": 1},
    "fedsage": {"generator_rounds": 1, "width": 6, "narrow": 5, "wide": 8, "bank_size": 4, "most": 3},
    "fedpub": {"blocks": 2, "block_size": 10},
}


# `make acceptance` runs the others.
QUICK = ("fedavg", "fedrep", "fedala", "fedaghn", "pfedhn", "fedpub")


def marked(names):
    return [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.acceptance]) for name in names]


@pytest.fixture(scope="module")
def rows() -> fw.Federation:
    return rows_of()


@pytest.mark.parametrize("name", marked(ROWS))
def test_a_federation_has_the_bits_of_the_simulation(name, rows, tmp_path):
    hosts = Hosts(tmp_path, planned(METHODS[name](**ROWS[name]), rows))
    assert same(hosts.run().history, hosts.simulation())


def add_newcomer(hosts, calls):
    """Client 7, which the specification does not know, connects with the rows of client 0."""
    files = hosts.folder / "data"
    replace(client_data.read(files / "client-0.pt"), client=7).save(files / "client-7.pt")
    calls.nodes_[950] = hosts.node(7)


SERVER_WRITES = [
    ("init", 0, lambda start: trees.tree_leaves(start.model)[0].add_(1), "start.model."),
    ("download", 0, lambda server: trees.tree_leaves(server["model"])[0].mul_(2), "server.model."),
    ("aggregate", 2, lambda uploads: trees.tree_leaves(uploads)[0].mul_(2), "uploads."),
    ("aggregate", 3, lambda weights: weights.div_(weights.sum()), "weights, "),
    ("admit", 0, lambda server: trees.tree_leaves(server["model"])[0].mul_(2), "server.model."),
]


@pytest.mark.parametrize(("hook", "index", "write", "entry"), SERVER_WRITES)
def test_the_servers_hooks_do_not_write(hook, index, write, entry, rows, tmp_path, monkeypatch):
    """What they were given is used after the call, as in the simulation, and the same line refuses the write."""
    hosts = Hosts(tmp_path, planned("fedavg", rows))
    original = getattr(METHODS["fedavg"], hook)

    def writing(self, *arguments):
        write(arguments[index])
        return original(self, *arguments)

    monkeypatch.setattr(METHODS["fedavg"], hook, writing)
    calls = hosts.calls()
    if hook == "admit":
        hosts.run(calls, until=1)
        add_newcomer(hosts, calls)
    with pytest.raises(BadInput, match=rf"^FedAvg\.{hook}, or a function that it calls, writes into {entry}"):
        hosts.run(calls)


@pytest.mark.parametrize("method", [pytest.param("fedaghn"), pytest.param("fedper", marks=pytest.mark.acceptance)])
def test_a_sample_is_evaluated_as_in_the_simulation(method, rows, tmp_path):
    """Only the sampled clients have scores. Of the others, only participants get requests."""
    train = {"participation": 2, "rounds": 3}
    hosts = Hosts(tmp_path, planned(METHODS[method](), rows, evaluate={"clients": 2, "models": True}, **train))
    history = hosts.run().history
    assert same(history, hosts.simulation())
    assert {len(values) for values in history.scores["pre/test"]} == {2}


@pytest.mark.parametrize("name", marked(GRAPHS))
def test_clients_with_graphs_have_the_bits_of_the_simulation(name, tmp_path):
    hosts = Hosts(tmp_path, planned(METHODS[name](**GRAPHS[name]), graphs_of()))
    assert same(hosts.run().history, hosts.simulation())


def test_forecasts_have_the_bits_of_the_simulation(tmp_path):
    hosts = Hosts(tmp_path, planned("fedavg", series_of(), model="linear"))
    assert same(hosts.run().history, hosts.simulation())


@pytest.mark.parametrize(
    "train",
    [
        {"participation": 0.5, "rounds": 3},
        {"newcomers": 1, "join_round": 1, "rounds": 3},
        {"robust": {"rule": "clip"}},
        {"client_optimizer": "kept", "optimizer": "adam", "lr": 0.01},
    ],
    ids=["participation", "newcomers", "robust", "optimizer"],
)
@pytest.mark.parametrize("name", marked(["fedrep", "fedamp"]))
def test_settings_of_training_have_the_bits_of_the_simulation(name, train, rows, tmp_path):
    hosts = Hosts(tmp_path, planned(name, rows, **train))
    assert same(hosts.run().history, hosts.simulation())


def test_which_methods_cannot_run_on_separate_hosts():
    assert {name for name, cls in METHODS.items() if support.unsupported_reason(cls())} == {"central"}
    page = Path(__file__).resolve().parents[2] / "docs" / "federation.md"
    rows = []
    for cls in sorted(METHODS.values(), key=lambda cls: cls.label.lower()):
        reason = support.unsupported_reason(cls())
        describes = "clients upload a description of their data on joining" if cls.enrol is not Method.enrol else ""
        rows.append(f"| {cls.label} | {'no' if reason else 'yes'} | {reason or describes} |")
    table = "\n".join(["| method | on separate hosts | note |", "| --- | --- | --- |", *rows])
    assert table in page.read_text(encoding="utf-8")


def test_a_killed_server_continues_from_its_checkpoint(rows, tmp_path):
    """Nodes are a round ahead of the older checkpoint, and have been restarted, as after a loss of power."""
    plan = planned("fedrep", rows, rounds=4)
    whole, cut = Hosts(tmp_path / "whole", plan), Hosts(tmp_path / "cut", plan)
    expected = whole.run().history
    cut.run(until=3)
    newest = sorted((tmp_path / "cut" / "server").glob("server-*.pt"))[-1]
    newest.write_bytes(newest.read_bytes()[:100])  # the disk has damaged it
    assert same(cut.run().history, expected)


def test_an_absent_node_is_skipped_and_returns(rows, tmp_path):
    hosts = Hosts(tmp_path, planned("fedrep", rows, rounds=3))
    hosts.run(until=1)
    private = load_tensors(next((tmp_path / "nodes" / "1").rglob("state-000000001.pt")))["content"]
    calls = hosts.calls()
    calls.offline = {899}
    session = hosts.run(calls, until=2)
    assert session.last["dropped"] == [1]
    last = hosts.run()
    assert [(row.round, row.client) for row in last.history.dropped] == [(2, 1)]
    assert np.isnan(last.history.scores["pre/test"][0][1])
    assert np.isfinite(last.history.scores["pre/test"][2]).all()
    assert private["clients"]
    kept = sorted(p.name for p in (tmp_path / "nodes" / "1").rglob("state-*"))
    assert kept == ["state-000000001.pt", "state-000000003.pt"]


def test_a_node_continues_from_its_own_state(rows, tmp_path):
    """Private heads are only on the node's disk. Without the disk the result differs."""
    plan = planned("fedrep", rows, rounds=2)
    kept, lost = Hosts(tmp_path / "kept", plan), Hosts(tmp_path / "lost", plan)
    kept.run(until=1)
    lost.run(until=1)
    for file in (tmp_path / "lost" / "nodes").rglob("state-*.pt"):
        file.unlink()
    assert same(kept.run().history, kept.simulation())
    assert not same(lost.run().history, lost.simulation())


def test_a_client_that_the_specification_does_not_know_joins(rows, tmp_path):
    hosts = Hosts(tmp_path, planned("fedamp", rows, rounds=3))
    hosts.run(until=1)
    calls = hosts.calls()
    add_newcomer(hosts, calls)
    session = hosts.run(calls)
    assert session.members == (0, 1, 2, 7)
    assert len(session.history.scores["pre/test"][-1]) == 4
    assert len(session.server["seen"]) == 4


def test_only_declared_tensors_leave_a_node(rows, tmp_path):
    hosts = Hosts(tmp_path, planned("fedrep", rows))
    calls = hosts.calls()
    hosts.run(calls)
    declared = {name for part in hosts.spec.forms["train"] for name in part["tensors"]}
    assert declared == {"model|fc1.weight", "model|fc1.bias"}
    assert any(name.startswith("fc.") for name in hosts.spec.task.shapes())  # a head, which is private
    assert any(reply.upload for _, _, reply in calls.sent)
    numbers, of_parts = {"client", "loss", "sound", "kept"}, ("rows", "pre", "post", "control")
    for _, request, reply in calls.sent:
        allowed = declared if request.kind == "train" and request.config["train"] else set()
        assert {*reply.upload} <= allowed
        assert all(isinstance(value, int | float | bool) for value in reply.config.values())
        assert {name for name in reply.config if name.split("/")[0] not in of_parts} <= numbers


def test_an_undeclared_tensor_stays_on_the_node(rows, tmp_path):
    hosts = Hosts(tmp_path, planned("fedavg", rows))
    hosts.run(until=1)
    node = hosts.node(0)
    blank = replace(node.spec, forms={**node.spec.forms, "train": [{"from": 0, "tensors": {}}]})
    calls = hosts.calls()
    calls.nodes_ = {900: replace(node, spec=blank)}
    download = {name: torch.zeros(shape) for name, shape in node.spec.task.shapes().items()}
    flags = {"train": True, "takes_part": True, "evaluate": False, "apart": False}
    config = {"round": 1, "checkpoint": 0, "chosen": 0, **flags}
    with pytest.raises(tensors.UndeclaredTensor, match="not declared"):
        calls.nodes_[900].answer(Request("train", config, download))


@pytest.mark.parametrize(
    "damage", ["more", "nan", *(pytest.param(name, marks=pytest.mark.acceptance) for name in ("shape", "type"))]
)
def test_a_wrong_upload_is_refused(damage, rows, tmp_path):
    def change(node: int, request: Request, reply: Reply) -> Reply:
        if node != 899 or not reply.upload:
            return reply
        name, value = next(iter(reply.upload.items()))
        other = {
            "shape": {name: value[:1]},
            "more": {"extra": torch.zeros(10**6)},
            "nan": {name: value * torch.nan},
            "type": {name: value.double()},
        }[damage]
        return replace(reply, upload={**reply.upload, **other})

    hosts = Hosts(tmp_path, planned("fedavg", rows))
    calls = hosts.calls()
    calls.change = change
    history = hosts.run(calls).history
    assert [(row.round, row.client) for row in history.dropped] == [(1, 1), (2, 1)]
    assert np.isfinite([row.train_loss for row in history.ledger]).all()


def test_noise_is_new_in_every_message(rows, tmp_path):
    privacy = {"clip": 1.0, "noise": 0.5}
    runs = [Hosts(tmp_path / name, planned("fedavg", rows, privacy=privacy)) for name in ("a", "b")]
    losses = [[row.train_loss for row in hosts.run().history.ledger] for hosts in runs]
    assert losses[0][0] == losses[1][0]
    assert losses[0][1] != losses[1][1]


def test_numbers_of_rows_get_no_noise(rows, tmp_path):
    """Those that clients join with are weights of a mean, as in the simulation."""
    hosts = Hosts(tmp_path, planned("feddbe", rows, privacy={"clip": 1.0, "noise": 0.5}))
    calls = hosts.calls()
    hosts.run(calls, until=1)
    joined = [reply for _, request, reply in calls.sent if request.kind == "enrol"]
    assert [float(reply.upload["rows"]) for reply in joined] == [reply.config["rows/train"] for reply in joined]
    assert len(joined) == 3


def test_results_are_those_of_a_study(rows, tmp_path):
    hosts = Hosts(tmp_path, planned("fedrep", rows, rounds=3))
    hosts.run()
    board = fw.load(tmp_path / "server" / "results" / "hosts")
    alone = fw.compare(rows, ["fedrep"], rounds=3, lr=0.1, seeds=[3], executor="loop", central=False, progress=False)
    tables = [comparison.leaderboard().drop(columns=["seconds", "pooled"]) for comparison in (board, alone)]
    pd.testing.assert_frame_equal(*tables)
    run = results.load_run(tmp_path / "server" / "results" / "hosts" / "runs" / "toy-fedrep")
    assert run.info["controls"]["Majority class"] == alone["fedrep"].run.info["controls"]["Majority class"]
    for client in range(3):
        kept = load_tensors(next((tmp_path / "nodes" / str(client)).rglob("model.pt")))
        assert kept["model"].keys() == hosts.spec.task.init(0).keys()


def test_a_result_becomes_an_app(rows, tmp_path):
    comparison = fw.compare(rows, [METHODS["ditto"](lam=0.7)], rounds=2, seeds=1, central=False, progress=False, tune=0)
    app = export_result(comparison["ditto"], rows, tmp_path / "app", tmp_path / "data")
    assert app.method.lam == 0.7
    assert app.run.train.rounds == 2
    assert len([*(tmp_path / "data").iterdir()]) == 3


def test_an_app_contains_no_row(rows, tmp_path):
    hosts = Hosts(tmp_path, planned("fedavg", rows))
    app = tmp_path / "app"
    files = {path.relative_to(app).as_posix(): path for path in app.rglob("*") if path.is_file()}
    package = {f"fedweave_app/{name}" for name in ("__init__.py", "client.py", "server.py", "spec.json")}
    assert {*files} == {"README.md", "pyproject.toml", *package}
    content = b"".join(path.read_bytes() for path in files.values())
    for row in rows.dataset.x:
        assert row.tobytes() not in content
        assert row.astype(np.float64).tobytes() not in content
    # As text: four digits after the point are in every longer or shorter form of a value.
    numbers = {f"{float(number):.3f}" for number in re.findall(rb"-?\d+\.\d{3,}(?:e-?\d+)?", content)}
    assert not numbers & {f"{value:.3f}" for value in rows.dataset.x.ravel()}
    assert spec.text_of(hosts.spec) == spec.text_of(spec.read(app / "fedweave_app" / "spec.json"))
    changed = replace(hosts.spec, run=replace(hosts.spec.run, train=replace(hosts.spec.run.train, lr=0.2)))
    assert changed.hash != hosts.spec.hash


def test_a_file_of_a_client_contains_its_rows_only(rows, tmp_path):
    Hosts(tmp_path, planned("fedavg", rows))
    for client in range(3):
        file = client_data.read(tmp_path / "data" / f"client-{client}.pt")
        mine = np.concatenate([getattr(rows.partition, part)[client] for part in ("train", "val", "test")])
        assert np.array_equal(np.sort(file.arrays["x"].numpy(), 0), np.sort(rows.dataset.x[mine], 0))


def test_rows_of_an_owner_become_inputs_as_in_the_run(tmp_path):
    draws = np.random.default_rng(2)
    table = pd.DataFrame(
        {
            "shop": np.repeat(["A", "B"], 30),
            "hour": draws.integers(24, size=60),
            "kind": draws.choice(["x", "y"], 60),
            "late": draws.choice(["no", "yes"], 60),
        }
    )
    federation = fw.Federation.from_pandas(table, client="shop", label="late", name="shops")
    hosts = Hosts(tmp_path, planned("fedavg", federation))
    own = own_rows.of_table(hosts.spec, table[table["shop"] == "B"], "late", 1)
    mine = np.sort(np.concatenate([getattr(federation.partition, part)[1] for part in ("train", "val", "test")]))
    assert np.array_equal(own.arrays["x"].numpy(), federation.dataset.x[mine])
    assert own.arrays["y"].tolist() == federation.dataset.labels[mine].tolist()
    assert [len(own.parts[part]) for part in ("train", "val", "test")] == [18, 6, 6]
    for client in (1, 5):
        replace(own, client=client).save(tmp_path / "data" / f"client-{client}.pt")
    calls = hosts.calls()
    calls.nodes_[950] = hosts.node(5)
    assert np.isfinite(hosts.run(calls).history.scores["pre/test"][-1]).all()
    with pytest.raises(BadInput, match="'maybe' is not a class"):
        own_rows.of_table(hosts.spec, table.assign(late="maybe", shop="B"), "late", 1)


def test_an_impossible_federation_is_refused(rows, tmp_path):
    with pytest.raises(BadInput, match="central cannot run on separate hosts"):
        Hosts(tmp_path, planned("central", rows))
    hosts = Hosts(tmp_path / "b", planned("fedavg", rows))
    calls = hosts.calls()
    calls.offline = {898, 899, 900}
    with pytest.raises(BadInput, match="only 0 of 3 clients"):
        hosts.run(calls)


def test_a_store_survives_damage_and_refuses_another_federation(tmp_path):
    store = StoredStates(tmp_path, "a")
    store.prepare()
    for version in (1, 2, 3):
        store.save(version, {"w": torch.tensor(float(version))})
    store.path(3, "state").write_bytes(b"x")
    assert store.load_newest(3)["w"] == 2
    assert store.load_newest(1)["w"] == 1
    assert store.versions() == [1]
    with pytest.raises(BadInput, match="another folder"):
        StoredStates(tmp_path, "b").load(1)


@pytest.mark.parametrize("tree", [{"a": {"b.c": 1.0, "d/e": {}}, "f": 2.0}, 3.0], ids=["nested", "bare"])
def test_trees_and_flat_dictionaries(tree):
    def tensor(part):
        return {k: tensor(v) for k, v in part.items()} if isinstance(part, dict) else torch.tensor(part)

    assert tensors.unflatten(tensors.flatten(tensor(tree))) == tensor(tree)


def test_a_path_without_a_specification_is_refused(tmp_path):
    (Path(tmp_path) / "spec.json").write_text("{")
    with pytest.raises(BadInput, match="export it again"):
        spec.read(tmp_path / "spec.json")


DEVICES = ["cpu", "auto", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES[1:])
def test_a_node_trains_on_the_device_of_its_owner(device, rows, tmp_path):
    """Each node selects its device. Tensors that it stores and sends are on the CPU. A GPU's last bits may differ."""
    hosts = Hosts(tmp_path, planned("fedrep", rows))
    calls = hosts.calls()
    calls.nodes_[900] = open_node(hosts.spec, tmp_path / "data" / "client-0.pt", tmp_path / "nodes" / "0", device)
    assert calls.nodes_[900].device == ("cuda" if torch.cuda.is_available() else "cpu")
    history, expected = hosts.run(calls).history, hosts.simulation()
    losses = [[row.train_loss for row in one.ledger] for one in (history, expected)]
    assert losses[0] == (losses[1] if not torch.cuda.is_available() else pytest.approx(losses[1], rel=1e-4))


def test_a_missing_device_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [device_of(name) for name in ("cpu", "auto")] == ["cpu", "cpu"]
    with pytest.raises(BadInput, match=r"^device: 'cuda' but no CUDA device is visible; use auto or cpu"):
        device_of("cuda")
    with pytest.raises(BadInput, match="device: 'gpu' is unknown"):
        device_of("gpu")


OTHERS = {"fedamp": "needs more", "feddbe": "upload a description of their data", "cfl": "needs more"}


def hidden(name, federation, **settings) -> str:
    """The reason why secure aggregation does not support a method. Empty if it does."""
    try:
        plan = planned(METHODS[name](**settings), federation)
        inputs = plan.inputs.dataset, plan.inputs.partition
        prepared = export.prepare(plan.study.run(next(iter(plan.study.runs))), *inputs)
        return "" if export.specify(prepared, *inputs, True).secure else "it is not"
    except BadInput as error:
        return str(error)


@pytest.mark.parametrize("name", ["fedavg", "scaffold", *OTHERS])
def test_secure_aggregation_supports_the_declared_methods(name, rows):
    """It supports methods whose server takes the same step on the mean of random uploads as on the uploads."""
    assert OTHERS.get(name, "") in hidden(name, rows)
    assert bool(hidden(name, rows)) == (name in OTHERS)


@pytest.mark.acceptance
def test_the_page_names_the_methods_with_secure_aggregation(rows):
    page = (Path(__file__).resolve().parents[2] / "docs" / "federation.md").read_text(encoding="utf-8")
    listed = re.split(", | and ", " ".join(re.search(r"These are (.*?)\.\n", page, re.DOTALL)[1].split()))
    tried = {name: cls for name, cls in METHODS.items() if not cls.pools}
    means = {cls.label for name, cls in tried.items() if not hidden(name, rows, **ROWS.get(name, {}))}
    assert means == {*listed} - {"FedBN"}  # their models need batch normalisation
    assert len(listed) == len({*listed})


@pytest.mark.parametrize(
    ("train", "words"),
    [({"participation": 0.5}, "needs 3 clients a round, but 2 take part"), ({"robust": {"rule": "median"}}, "robust")],
    ids=["few", "robust"],
)
def test_settings_without_support_for_secure_aggregation_are_refused(train, words, rows, tmp_path):
    with pytest.raises(BadInput, match=words):
        Hosts(tmp_path, planned("fedavg", rows, **train), secure=True)


def test_a_clients_file_of_another_version_is_refused(tmp_path):
    save_tensors(tmp_path / "client-0.pt", {"version": 2, "client": 0, "rows": {}})
    with pytest.raises(BadInput, match=r"client-0\.pt: version 2, but this fedweave reads 1; write it again$"):
        client_data.read(tmp_path / "client-0.pt")
