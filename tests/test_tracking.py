"""MLflow as a sink, against a real store: what is logged, that it is logged once, and that models come back."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fake_results
import mlflow
import numpy as np
import pytest
import torch
from mlflow import MlflowClient

from fedweave import data, models, results
from pipelines import tracking

# One worker for all of it, so that the store is made once.
pytestmark = pytest.mark.xdist_group("tracking")

SKILL = {"Local": -6.0, "FedAGHN": 0.0}


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store whose tables are made, to copy: making them takes seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def store(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of an empty store; the current folder is its own."""
    monkeypatch.chdir(tmp_path)
    yield fresh(template, "one")
    mlflow.set_tracking_uri(None)


def fresh(template: Path, name: str) -> str:
    """Another empty store in the current folder. MLflow keeps one connection per address, so no two tests may share one."""
    path = shutil.copy(template, Path.cwd() / f"{name}.db")
    return f"sqlite:///{path}"


def small(folder: Path, **options: Any) -> Path:
    """Made-up results of two methods, two seeds, four clients."""
    return fake_results.write_study(folder, methods=SKILL, seeds=(0, 1), clients=4, rounds=6, extras=False, **options)


def logged(uri: str, study: str) -> list[mlflow.entities.Run]:
    client = MlflowClient(uri)
    experiment = client.get_experiment_by_name(study)
    return list(client.search_runs([experiment.experiment_id])) if experiment else []


def children(runs: list[mlflow.entities.Run], parent: str) -> list[mlflow.entities.Run]:
    return [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parent]


def curve(uri: str, run_id: str, name: str) -> dict[int, float]:
    return {point.step: point.value for point in MlflowClient(uri).get_metric_history(run_id, name)}


def test_a_parent_per_run_and_a_child_per_seed_hold_what_the_files_hold(store: str, tmp_path: Path) -> None:
    folder = small(tmp_path / "results" / "toy")
    ids = tracking.log_study(folder, store)
    runs = logged(store, "toy")
    assert len(runs) == 2 * (1 + 2)
    for run, parent in zip(results.load_study(folder).runs, ids, strict=True):
        entry = MlflowClient(store).get_run(parent)
        assert entry.data.params["train.lr"] == "0.05"
        assert entry.data.tags["spec_hash"] == run.info["spec_hash"]
        assert [child.data.tags["seed"] for child in sorted(children(runs, parent), key=lambda r: r.info.start_time)] == ["0", "1"]
        final = results.chosen(run)
        for child in children(runs, parent):
            seed = int(child.data.tags["seed"])
            mine = run.evaluations.query("seed == @seed and point == 'post' and split == 'test'")
            assert curve(store, child.info.run_id, "accuracy/test_post") == pytest.approx(mine.groupby("round")["value"].mean().to_dict())
            values = final[final["seed"] == seed].set_index("client")["value"].to_dict()
            assert curve(store, child.info.run_id, "client/accuracy") == pytest.approx(values)
        assert entry.data.metrics["accuracy"] == pytest.approx(final.groupby("seed")["value"].mean().mean())
        assert entry.data.metrics["seconds"] == pytest.approx(run.rounds.groupby("seed")["seconds"].sum().mean())
        assert (entry.info.end_time - entry.info.start_time) / 1000 == pytest.approx(run.rounds["seconds"].sum(), abs=0.01)


def test_the_collaboration_graph_is_a_picture_and_a_file(store: str, tmp_path: Path) -> None:
    folder = small(tmp_path / "results" / "toy")
    ids = dict(zip(["blobs-fedaghn", "blobs-local"], tracking.log_study(folder, store), strict=True))
    client = MlflowClient(store)
    names = {run: {item.path for item in client.list_artifacts(run_id)} for run, run_id in ids.items()}
    assert {"collaboration.svg", "images", "run"} <= names["blobs-fedaghn"]
    assert "collaboration.svg" not in names["blobs-local"]
    assert "run/collaboration-0.npz" in {item.path for item in client.list_artifacts(ids["blobs-fedaghn"], "run")}


def test_logging_again_keeps_and_a_changed_run_is_replaced(store: str, tmp_path: Path) -> None:
    folder = small(tmp_path / "results" / "toy")
    first = tracking.log_study(folder, store)
    assert tracking.log_study(folder, store) == first
    info = folder / "runs" / "blobs-local" / "run.json"
    info.write_text(json.dumps(json.loads(info.read_text()) | {"note": "trained again"}))
    second = tracking.log_study(folder, store)
    assert second[0] == first[0]
    assert second[1] != first[1]
    assert tracking.log_run(info.parent, store) == second[1]
    assert len(logged(store, "toy")) == 2 * (1 + 2)


def test_a_half_logged_run_is_not_taken_for_whole(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = small(tmp_path / "results" / "toy") / "runs" / "blobs-fedaghn"

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tracking, "_log_graphs", killed)
        with pytest.raises(KeyboardInterrupt):
            tracking.log_run(folder, store)
    assert len(logged(store, "toy")) == 1
    parent = tracking.log_run(folder, store)
    assert {run.info.run_id for run in logged(store, "toy")} == {parent, *(c.info.run_id for c in children(logged(store, "toy"), parent))}
    assert len(logged(store, "toy")) == 3


def test_a_lost_database_is_made_again_from_the_files(store: str, template: Path, tmp_path: Path) -> None:
    folder = small(tmp_path / "results" / "toy")

    def content(uri: str) -> dict[str, tuple[dict[str, float], dict[str, str]]]:
        tracking.log_study(folder, uri)
        return {run.info.run_name: (run.data.metrics, run.data.params) for run in logged(uri, "toy")}

    assert content(store) == content(fresh(template, "two"))


def test_flatten_names_every_setting_and_cuts_long_ones() -> None:
    flat = tracking.flatten({"train": {"lr": 0.1, "clip": None}, "seeds": [0, 1], "empty": {}, "long": "x" * 2000})
    assert flat.keys() == {"train.lr", "train.clip", "seeds", "empty", "long"}
    assert (flat["train.lr"], flat["train.clip"], flat["seeds"], flat["empty"]) == ("0.1", "null", "[0, 1]", "{}")
    assert len(flat["long"]) == tracking.LONGEST


def with_models(folder: Path, dataset: data.Dataset, partition: data.Partition, model: dict[str, Any]) -> torch.nn.Module:
    """Give a run models of its own: client 0 holds the returned module, the others zeros. Writes its data too."""
    data.save_dataset(Path("data/features/blobs"), dataset)
    data.save_partition(Path("data/partitions/blobs/partition.npz"), partition)
    info = json.loads((folder / "run.json").read_text())
    info["spec"]["task"] = {"model": model, "normalize": "none"}
    (folder / "run.json").write_text(json.dumps(info))
    options = {name: value for name, value in model.items() if name != "name"}
    module = models.build(model["name"], dataset.x.shape[1:], dataset.classes, **options)
    stacked = {name: torch.stack([value, torch.zeros_like(value)]) for name, value in module.state_dict().items()}
    torch.save({"round": 3, "models": stacked}, folder / "models-0.pt")
    return module


def images(rng: np.random.Generator) -> tuple[data.Dataset, data.Partition]:
    x = rng.uniform(size=(8, 1, 8, 8)).astype(np.float32)
    rows = tuple(np.arange(4 * i, 4 * i + 4) for i in range(2))
    return data.Dataset("blobs", "images", x, np.arange(8) % 3, 3), data.Partition(rows, rows, rows)


def graph(rng: np.random.Generator) -> tuple[data.Dataset, data.Partition]:
    x = rng.normal(size=(8, 5)).astype(np.float32)
    ring = np.stack([np.arange(8), (np.arange(8) + 1) % 8])
    own = tuple(np.array([[0, 1, 1, 2], [1, 0, 2, 1]]) for _ in range(2))
    rows = tuple(np.arange(4) for _ in range(2))
    nodes = tuple(np.arange(4 * i, 4 * i + 4) for i in range(2))
    whole = data.Dataset("blobs", "graph", x, np.arange(8) % 3, 3, edges=np.concatenate([ring, ring[::-1]], axis=1))
    return whole, data.Partition(rows, rows, rows, nodes=nodes, edges=own)


@pytest.mark.parametrize("made", [(images, {"name": "mlp", "hidden": 6}), (graph, {"name": "gcn", "hidden": 6})], ids=["images", "graph"])
def test_the_first_clients_model_can_be_loaded_and_served(store: str, tmp_path: Path, made: Any) -> None:
    folder = small(tmp_path / "results" / "toy") / "runs" / "blobs-local"
    dataset, partition = made[0](np.random.default_rng(0))
    module = with_models(folder, dataset, partition, made[1])
    parent = tracking.log_run(folder, store)
    (found,) = MlflowClient(store).search_logged_models([MlflowClient(store).get_run(parent).info.experiment_id])
    served = mlflow.pyfunc.load_model(found.model_uri)
    example = served.input_example
    inputs: Any = torch.from_numpy(example)
    if dataset.kind == "graph":
        inputs = (inputs, *models.gcn_norm(torch.from_numpy(partition.edges[0]), 4))
    with torch.no_grad():
        assert np.allclose(served.predict(example), module(inputs).numpy(), atol=1e-6)
    assert served.metadata.signature.inputs.inputs[0].shape == (-1, *example.shape[1:])
