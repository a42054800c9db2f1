"""A federation of Flower's own processes on loopback, with TLS and node authentication: its bits, and kills."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
from hosts import Hosts, planned

import fedweave as fw
from fedweave.deployment.flower.processes import add_nodes, local_federation
from fedweave.deployment.flower.run_monitor import follow, launch
from fedweave.deployment.node import client_data
from fedweave.deployment.server import checkpoint
from fedweave.deployment.server.message_log import MessageLog
from fedweave.deployment.wire import status
from fedweave.runs.history import SPLITS
from tests.servers import alive, until

pytestmark = [pytest.mark.acceptance, pytest.mark.timeout(600)]
METHODS = {"fedrep": {}, "fedamp": {}, "pfedhn": {"width": 8, "hidden": 1}}  # one of each of three families
NODES = 5
PATIENCE = 420.0  # seconds; the first round of an app waits for its processes
ROUNDS = 24  # enough for a killed node to return, since rounds continue without it


@pytest.fixture(scope="module")
def digits() -> fw.Federation:
    return fw.Federation.from_dataset("digits", "dirichlet", clients=NODES, beta=0.5)


def export_hosts(folder: Path, method: Any, federation: fw.Federation, secure: bool = False, **train: Any) -> Hosts:
    return Hosts(folder, planned(method, federation, model={"name": "mlp", "hidden": [16]}, **train), secure)


def test_five_nodes_and_three_families_have_the_bits_of_the_simulation(flower, digits, tmp_path):
    """Three federations run at the same time on the same SuperNodes. The test inspects every message."""
    from fedweave.methods import METHODS as CLASSES

    runs = {name: export_hosts(tmp_path / name, CLASSES[name](**options), digits) for name, options in METHODS.items()}
    places = [tmp_path / "data" / f"host-{i}" for i in range(NODES)]
    for i, place in enumerate(places):
        place.mkdir(parents=True)
        for hosts in runs.values():
            shutil.copy(hosts.folder / "data" / f"client-{i}.pt", place / f"{hosts.spec.hash[:16]}.pt")
    hashes = [hosts.spec.hash[:16] for hosts in runs.values()]
    started: dict[str, str] = {}
    with local_federation(tmp_path / "federation", places, hashes, flower) as host:
        for name, hosts in runs.items():
            started[name] = launch(host, hosts.folder / "app", tmp_path / "server" / name, timeout=240.0)
        for name, run in started.items():
            follow(tmp_path / "server" / name, host, run)
    for name, hosts in runs.items():
        server = tmp_path / "server" / name
        check_bits(hosts, server)
        check_messages(hosts, server)
        assert len([*(tmp_path / "federation" / "nodes").rglob(f"{hosts.spec.hash[:16]}/*/model.pt")]) == NODES


def check_bits(hosts: Hosts, server: Path) -> None:
    """Scores, losses and bytes in the result files are those of the simulation."""
    expected, folder = hosts.simulation(), server / "results" / "hosts" / "runs" / hosts.spec.run.key
    table = pd.read_parquet(folder / "evaluations.parquet").sort_values(["round", "client"])
    for point, part in SPLITS:
        mine = table[(table["point"] == point) & (table["split"] == part)]["value"].tolist()
        assert mine == [value for values in expected.scores[f"{point}/{part}"] for value in values]
    rounds = pd.read_csv(folder / "rounds.csv")
    assert rounds["train_loss"].tolist() == [row.train_loss for row in expected.ledger]
    assert rounds[["bytes_down", "bytes_up"]].to_numpy().tolist() == [[row[1], row[2]] for row in expected.ledger]
    assert len(fw.load(server / "results" / "hosts").leaderboard()) == 1


def check_messages(hosts: Hosts, server: Path) -> None:
    """The server has received exactly the declared tensors, and their bytes are counted."""
    forms = hosts.spec.forms["train"]
    lines = MessageLog(server).lines()
    assert {line["client"] for line in lines} == {*range(NODES)}
    for line in lines:
        declared = hosts.spec.upload_form(line["round"]) if line["kind"] == "train" else {}
        assert line["tensors"] in (declared, {})
    trained = [line for line in lines if line["tensors"]]
    assert len(trained) == 2 * NODES
    assert all(
        line["content"] <= line["up"] <= line["content"] + 600 * len(forms[0]["tensors"]) + 2000 for line in trained
    )
    measured = pd.read_csv(server / "connection.csv").set_index("round")
    counted = pd.read_csv(next(server.rglob("rounds.csv"))).set_index("round")
    assert (measured.loc[[0, 1], "bytes_up"].to_numpy() >= counted.loc[[1, 2], "bytes_up"].to_numpy()).all()


def flower_processes(out: Path) -> list[psutil.Process]:
    """Processes of Flower whose files are in `out`."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.environ().get("FLWR_HOME", "").startswith(str(out)):
                found.append(process)
    return found


def test_simulate_ends_when_its_server_is_killed_and_leaves_nothing_after_a_signal(flower, tmp_path):
    few = fw.Federation.from_dataset("digits", "dirichlet", clients=3, beta=0.5)
    hosts, out = export_hosts(tmp_path / "run", "fedavg", few, rounds=500), tmp_path / "federation"
    arguments = ["-m", "fedweave.deployment", "simulate", hosts.folder / "app", "--data", hosts.folder / "data"]
    server = out / "server"
    with tempfile.TemporaryDirectory() as short:  # a socket's path must be short
        for number in (signal.SIGKILL, signal.SIGTERM):
            command = subprocess.Popen(
                [flower, *arguments, "--out", out],
                env=os.environ | {"TMPDIR": short},
                stderr=subprocess.PIPE,
                text=True,
            )
            assert until(
                lambda command=command: status.read(server).get("round", 0) >= 1 or command.poll() is not None, PATIENCE
            )
            assert flower_processes(out)
            killed = number == signal.SIGKILL
            os.kill(int(status.read(server)["pid"]) if killed else command.pid, number)
            _, output = command.communicate(timeout=60)
            assert command.returncode == (2 if killed else 128 + number)
            line = (output.splitlines() or [""])[-1]  # a signal in the first round leaves no line
            assert line.startswith("error: ") == killed
            assert ("the server of the federation was killed" in line) == killed
            assert until(lambda: not flower_processes(out), 120)
            assert not [*Path(short).iterdir()]
            (server / status.STATUS).unlink()
        time.sleep(3)
        assert not (server / status.STATUS).exists()  # no process writes to it any more


def test_kills_and_newcomers(flower, tmp_path):
    """A node is killed and returns with a new key. The server is killed and continues. A node with another
    specification, a node with another client's number, and a newcomer join.
    """
    few = fw.Federation.from_dataset("digits", "dirichlet", clients=3, beta=0.5)
    hosts = export_hosts(tmp_path / "run", "fedrep", few, rounds=ROUNDS)
    server, out, files = tmp_path / "server", tmp_path / "federation", sorted((tmp_path / "run" / "data").iterdir())
    log, spec_hashes, timeouts = MessageLog(server), [hosts.spec.hash], {"timeout": 40.0, "wait": 240.0}
    stranger, impostor, newcomer = (tmp_path / f"{name}.pt" for name in ("stranger", "impostor", "newcomer"))
    shutil.copy(files[0], stranger)
    shutil.copy(files[1], impostor)
    replace(client_data.read(files[0]), client=7).save(newcomer)

    with local_federation(out, files, spec_hashes, flower, database=True) as host:
        add_nodes(host, out, [stranger], ["0" * 16], clients=[8])
        add_nodes(host, out, [impostor], spec_hashes, clients=[9])
        launch(host, hosts.folder / "app", server, **timeouts)
        assert until(lambda: status.read(server).get("round", 0) >= 1, PATIENCE)
        host.stop("client-1", signal.SIGKILL)
        assert until(lambda: any(line["client"] == 1 and "error" in line for line in log.lines()), PATIENCE)
        done = status.read(server)["round"]
        (out / "keys" / "client-1").unlink()  # its owner makes a new key, and the server's registers it
        add_nodes(host, out, files[1:2], spec_hashes)
        assert until(
            lambda: any(line["client"] == 1 and line["round"] > done and line.get("tensors") for line in log.lines()),
            PATIENCE,
        )
        slow = int(status.read(server)["pid"])
        os.kill(slow, signal.SIGSTOP)
        host.stop("superlink", signal.SIGKILL)
        assert until(lambda: not alive(slow))  # it would go on as soon as it is continued
        reached = checkpoint.restore(server, hosts.spec.hash)
        host.start_superlink(out / "keys")
        add_nodes(host, out, [newcomer], spec_hashes, clients=[7])
        run = launch(host, hosts.folder / "app", server, **timeouts)
        follow(server, host, run)
    final = checkpoint.restore(server, hosts.spec.hash)
    assert done <= reached.round < ROUNDS
    assert [row.round for row in final.history.ledger] == [*range(1, ROUNDS + 1)]
    assert {row.client for row in final.history.dropped} == {1}
    assert 7 in final.members
    errors = {line["error"] for line in log.lines() if line["kind"] == "who" and "error" in line}
    assert any("refuses" in error for error in errors)
    assert "it says that it is client 1, but its key is that of client 9" in errors
    assert not any(line["client"] is None and line.get("tensors") for line in log.lines())
    assert len([*(out / "nodes").rglob("model.pt")]) == len(final.members)


def test_secure_aggregation_gives_the_server_the_mean_only(flower, tmp_path):
    """A node is killed in the middle. The others remove its masks, or the round is skipped. The node returns."""
    few = fw.Federation.from_dataset("digits", "dirichlet", clients=4, beta=0.5)
    hosts = export_hosts(tmp_path / "run", "fedprox", few, secure=True, rounds=6)
    server, out, files = tmp_path / "server", tmp_path / "federation", sorted((tmp_path / "run" / "data").iterdir())
    log, spec_hashes = MessageLog(server), [hosts.spec.hash]
    with local_federation(out, files, spec_hashes, flower) as host:
        run = launch(host, hosts.folder / "app", server, timeout=60.0, wait=240.0)
        assert until(lambda: status.read(server).get("round", 0) >= 2, PATIENCE)
        host.stop("client-3", signal.SIGKILL)
        assert until(lambda: any(line["client"] == 3 and "error" in line for line in log.lines()), PATIENCE)
        add_nodes(host, out, files[3:], spec_hashes)
        follow(server, host, run)
    final, expected = checkpoint.restore(server, hosts.spec.hash).history, hosts.simulation()
    for part in ("pre/test", "post/val"):  # the mean consists of numbers in 2^22 steps
        assert final.scores[part][0] == pytest.approx(expected.scores[part][0], abs=0.03)
    losses = [[row.train_loss for row in history.ledger[:2]] for history in (final, expected)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    uploads = [line for line in log.lines() if line.get("tensors")]
    assert uploads
    assert all(line["masked"] for line in uploads)
    assert all(line["up"] > 2 * line["content"] for line in uploads)  # a masked number has eight bytes
    assert np.isfinite([row.train_loss for row in final.ledger[-1:]]).all()
    assert {row.client for row in final.dropped} >= {3}
