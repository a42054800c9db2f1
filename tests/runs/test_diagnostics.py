"""Diagnostics of the server that are logged with the scores, and what a run stores of them."""

import csv
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tiny
import torch
from tiny import seeded_numbers as numbers

from fedweave import data
from fedweave.data import Dataset
from fedweave.engine.engine import run
from fedweave.engine.evaluation import diagnose
from fedweave.engine.executors import Loop
from fedweave.engine.protocol import Server
from fedweave.engine.records import Settings
from fedweave.families.networks import GCNEncoder
from fedweave.families.networks.sheaf import build_sheaf, reverse_of
from fedweave.graphs.quality import FROM_SELF, FROM_UNIFORM, MEANING, SIMILARITY, SOURCES, VARIATION
from fedweave.graphs.weights import complete_graph, dirichlet_energy, relation_graph, smoothness
from fedweave.runs import archive, federations, repetition
from fedweave.runs import history as histories
from fedweave.study import spec
from fedweave.tensors import trees
from tests.study.test_spec import good

N = 6


def test_dirichlet_energy_is_the_laplacian_form() -> None:
    """½ tr(xᵀ (D − A) x). It is 0 exactly where neighbours agree, and is quadratic in x."""
    edges, x = relation_graph(tiny.ring(N), N), numbers(N, 3)
    adjacency = torch.zeros(N, N, dtype=torch.float64).index_put(
        (edges[0], edges[1]), torch.ones((), dtype=torch.float64)
    )
    laplacian = torch.diag(adjacency.sum(1)) - adjacency
    torch.testing.assert_close(dirichlet_energy(x, edges), 0.5 * torch.trace(x.T @ laplacian @ x))
    assert dirichlet_energy(torch.ones(N, 3), edges) == 0
    assert dirichlet_energy(torch.tensor([[1.0], [1.0], [2.0], [2.0]]), torch.tensor([[0, 1, 2, 3], [1, 0, 3, 2]])) == 0
    first, scaled = smoothness(x, edges), smoothness(3 * x, edges)
    torch.testing.assert_close(scaled["Dirichlet energy"], 9 * first["Dirichlet energy"])
    torch.testing.assert_close(scaled["Dirichlet quotient"], first["Dirichlet quotient"])


@pytest.mark.parametrize("augmented", [True, False])
def test_sheaf_energy_vanishes_on_global_sections(augmented: bool) -> None:
    """Features that agree along every edge, D^{1/2} of a section, have energy 0. Constants have a positive energy
    unless all maps are the identity.
    """
    edges = complete_graph(N)
    frames = torch.linalg.qr(numbers(N, 2, 2)).Q
    degree = N - 1 + augmented
    maps = frames[edges[0]].mT.contiguous()  # F_v = O_vᵀ, so that x_v = O_v c is a section
    sheaf = build_sheaf(edges, reverse_of(edges, N), maps, N, orthogonal=True, augmented=augmented)
    section = math.sqrt(degree) * frames @ numbers(2, 4, seed=1)
    assert sheaf.energy(section) < 1e-20
    constant = numbers(1, 2, 4, seed=2).expand(N, -1, -1)
    assert sheaf.energy(constant) > 1e-3
    trivial = build_sheaf(
        edges,
        reverse_of(edges, N),
        torch.eye(2, dtype=torch.float64).expand(edges.shape[1], -1, -1),
        N,
        orthogonal=True,
    )
    assert trivial.energy(constant).abs() < 1e-12


def test_graph_convolutions_oversmooth() -> None:
    """The quotient decreases towards 0 with depth."""
    edges, x = relation_graph(tiny.ring(8), 8), numbers(8, 5)
    torch.manual_seed(0)
    deep = [
        smoothness(GCNEncoder(5, 5, width=16, depth=depth).double()(x, edges), edges)["Dirichlet quotient"]
        for depth in (1, 4, 32)
    ]
    assert deep[0] > 3 * deep[1] > 30 * deep[2]


@pytest.mark.parametrize(
    ("name", "kind"),
    [("ghn", "rows"), ("shn", "rows"), ("panacea", "rows"), ("fedsheafhn", "nodes"), ("pfedhn", "rows")],
)
def test_the_portrait_has_the_vectors_that_models_are_generated_from(name: str, kind: str) -> None:
    """There is one vector per client. Energies are those of the vectors on the method's own graph. Numbers of the graph
    are logged too.
    """
    method, federation = tiny.pair(name, kind, **({"dropout": 0.0} if name == "fedsheafhn" else {}))
    reports = list(run(method, federation, Settings(rounds=2, seed=2, every=2), Loop()))
    report = reports[-1]
    vectors = method.portrait(report.state.server)
    assert len(vectors) == tiny.CLIENTS
    assert {n: v for r in reports[:-1] for n, v in r.diagnostics.items()} == {}
    assert report.diagnostics == diagnose(method, report.state.server, federation)
    assert (MEANING[SOURCES] in report.diagnostics) == (method.collaboration(report.state.server) is not None)
    if name == "pfedhn":
        assert report.diagnostics == {}
        return
    edges = report.state.server["fixed"].get("edges", complete_graph(tiny.CLIENTS))
    assert report.diagnostics["Dirichlet energy"] == pytest.approx(float(dirichlet_energy(vectors, edges)), rel=1e-12)
    if kind == "rows":
        models = method.generate(report.state.server["phi"], report.state.server["fixed"], torch.arange(tiny.CLIENTS))
        generated = method.hypernetwork(vectors.shape[1]).run(report.state.server["phi"]["hyper"], vectors)
        assert all(torch.equal(models[n], generated[n]) for n in models)
    assert ("sheaf energy" in report.diagnostics) == (name == "shn")


@pytest.mark.parametrize("name", ["ghn", "shn", "panacea"])
def test_descriptions_are_without_dropout(name: str) -> None:
    """The portrait and the energies of a server are those without dropout, for any rate of the training."""
    task, federation = tiny.rows_task(), tiny.rows_federation()
    method = tiny.method(name, task, "rows", dropout=0.5)
    *_, report = run(method, federation, Settings(rounds=2, seed=2, every=2), Loop())
    still, server = replace(method, dropout=0.0), report.state.server
    assert torch.equal(method.portrait(server), still.portrait(server))
    assert diagnose(method, server, federation) == diagnose(still, server, federation)
    one = torch.arange(1)
    assert not torch.equal(*(trees.to_matrix(m.generate(server["phi"], server["fixed"], one)) for m in (method, still)))


def test_sheaf_energy_is_that_of_the_last_layer() -> None:
    """The energy is that of the output of the diffusion, in the sheaf of the last layer."""
    method, federation = tiny.pair("shn")
    *_, report = run(method, federation, Settings(rounds=2, seed=2), Loop())
    fixed, phi = report.state.server["fixed"], report.state.server["phi"]
    encoder = method.encoder(fixed["x"].shape[1])().double()
    encoder.load_state_dict(phi["encoder"])
    *_, (sheaf, features) = encoder.steps(fixed["x"], fixed["edges"])
    assert report.diagnostics["sheaf energy"] == pytest.approx(float(sheaf.energy(features).detach()), rel=1e-12)
    assert report.diagnostics["sheaf energy"] > 0


def prepare_run(method: str, partition: dict, rounds: int = 3, **settings: object) -> repetition.PreparedRun:
    """A run on digits-like blobs in memory."""
    g = np.random.default_rng(0)
    y = np.arange(600) % 10
    x = np.clip(g.normal(0.5, 0.2, (600, 1, 8, 8)) + 0.1 * (y % 2)[:, None, None, None], 0, 1).astype(np.float32)
    blobs = Dataset(name="digits", kind="images", x=x, y=y, classes=10)
    content = good()
    content["tasks"]["digits"] |= {
        "partition": {"clients": 5, "seed": 1, **partition},
        "model": {"name": "mlp", "hidden": 8},
    }
    content["tasks"]["digits"]["train"]["rounds"] = rounds
    content["runs"] = {"digits-it": {"task": "digits", "method": method, "set": settings}}
    chosen = spec.parse(content).run("digits-it")
    return repetition.prepare(chosen, blobs, data.partition(blobs, **chosen.task.partition))


def test_a_run_stores_diagnostics_graphs_groups_and_portrait(tmp_path: Path) -> None:
    """diagnostics.csv has the reported values. Small graphs are stored in every round, with the groups."""
    prepared_run = prepare_run(
        "shn", {"name": "grouped", "groups": 5}, stage1_rounds=2, width=8, hidden=1, channels=4, k=2
    )
    history = repetition.run_repetition(prepared_run, 0)
    archive.write(tmp_path, prepared_run, {0: history})
    info = json.loads((tmp_path / "run.json").read_text())
    assert info["client_names"] == [f"client {i}" for i in range(prepared_run.federation.clients)]
    assert (info["group"], info["group_names"]) == (prepared_run.federation.group.tolist(), None)
    named = replace(prepared_run, names=tuple("abcdefghij"), group_names=tuple("vwxyz"))
    archive.write(tmp_path / "named", named, {0: history})
    info = json.loads((tmp_path / "named" / "run.json").read_text())
    assert (info["client_names"], info["group_names"]) == ([*"abcdefghij"], [*"vwxyz"])
    with (tmp_path / "diagnostics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert {row["name"] for row in rows} == {
        "Dirichlet energy",
        "Dirichlet quotient",
        "sheaf energy",
        *(MEANING[name] for name in (VARIATION, SIMILARITY, SOURCES, FROM_UNIFORM, FROM_SELF)),
    }
    assert [int(row["round"]) for row in rows if row["name"] == "sheaf energy"] == history.rounds == [3, 4, 5]
    with np.load(tmp_path / "collaboration-0.npz") as stored:
        assert stored["rounds"].tolist() == [3, 4, 5]
        assert stored["group"].tolist() == [0, 1, 2, 3, 4]
        np.testing.assert_allclose(stored["divergence"], prepared_run.federation.divergence, rtol=1e-6)
    with np.load(tmp_path / "portrait-0.npz") as stored:
        assert (int(stored["round"]), len(stored["vectors"])) == (5, 5)
    assert not json.loads((tmp_path / "run.json").read_text())["leaks"]


def test_a_portrait_is_computed_once_in_an_evaluated_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """By the engine, in its checks; the history takes it from there."""
    prepared_run = prepare_run("pfedhn", {"name": "grouped", "groups": 5})
    method, servers = type(prepared_run.method), []
    compute = method.portrait

    def count(self: Any, server: Server) -> Any:
        servers.append(server)
        return compute(self, server)

    monkeypatch.setattr(method, "portrait", count)
    history = repetition.run_repetition(prepared_run, 0)
    assert len(servers) == len(history.rounds) > 1
    assert torch.equal(history.portrait[1], compute(prepared_run.method, servers[-1]).detach())


def test_large_graphs_are_stored_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The budget limits the stored rounds. The first and the last are among them, and at least a few are stored."""
    prepared_run = prepare_run("fedaghn", {"name": "iid"}, rounds=12)
    layers = len(prepared_run.method.task.layers)
    monkeypatch.setattr(histories, "CELLS", 25 * layers * 4)
    assert [r for r, _ in repetition.run_repetition(prepared_run, 0).graphs] == [1, 3, 6, 9, 12]
    monkeypatch.setattr(histories, "CELLS", 1)
    assert [r for r, _ in repetition.run_repetition(prepared_run, 0).graphs] == [1, 3, 6, 9, 12]


def test_labels_name_test_feedback() -> None:
    """The label and the record have it. The record lists newcomers and attackers."""
    leaky, plain = (prepare_run("pfedgat", {"name": "iid"}, gat_split=split) for split in ("test", "val"))
    assert ("leaky" in archive.label(leaky), "leaky" in archive.label(plain)) == (True, False)
    assert (leaky.method.leaks, plain.method.leaks) == (True, False)
    late = prepare_run("fedavg_ft", {"name": "iid"}, **{"train.newcomers": 2, "train.join_round": 1})
    assert federations.cohorts(late.run, late.federation) == {"newcomers": [3, 4], "from the start": [0, 1, 2]}
    assert federations.cohorts(plain.run, plain.federation) == {}
