"""Results in MLflow, against a real store: what is logged, that it is logged once, and that models come back."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import fake_results
import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from fedweave import results
from fedweave.pipelines.mlflow_records import tracking, writer
from fedweave.runs import serving
from tests import trained

ROOT = Path(__file__).resolve().parents[2]

# One worker for all of it, so that the store is made once.
pytestmark = [pytest.mark.xdist_group("tracking"), pytest.mark.timeout(600)]

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
    """Another empty store in the current folder.

    MLflow keeps one connection per address, so no two tests may share one.
    """
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
        assert [
            child.data.tags["seed"] for child in sorted(children(runs, parent), key=lambda r: r.info.start_time)
        ] == ["0", "1"]
        final = results.chosen(run)
        for child in children(runs, parent):
            seed = int(child.data.tags["seed"])
            mine = run.evaluations.query("seed == @seed and point == 'post' and split == 'test'")
            assert curve(store, child.info.run_id, "accuracy/test_post") == pytest.approx(
                mine.groupby("round")["value"].mean().to_dict()
            )
            values = final[final["seed"] == seed].set_index("client")["value"].to_dict()
            assert curve(store, child.info.run_id, "client/accuracy") == pytest.approx(values)
        assert entry.data.metrics["accuracy"] == pytest.approx(final.groupby("seed")["value"].mean().mean())
        assert entry.data.metrics["seconds"] == pytest.approx(run.rounds.groupby("seed")["seconds"].sum().mean())
        assert (entry.info.end_time - entry.info.start_time) / 1000 == pytest.approx(
            run.rounds["seconds"].sum(), abs=0.01
        )


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
    assert {run.info.run_id for run in logged(store, "toy")} == {
        parent,
        *(c.info.run_id for c in children(logged(store, "toy"), parent)),
    }
    assert len(logged(store, "toy")) == 3


def test_a_lost_database_is_made_again_from_the_files(store: str, template: Path, tmp_path: Path) -> None:
    folder = small(tmp_path / "results" / "toy")

    def content(uri: str) -> dict[str, tuple[dict[str, float], dict[str, str]]]:
        tracking.log_study(folder, uri)
        return {run.info.run_name: (run.data.metrics, run.data.params) for run in logged(uri, "toy")}

    assert content(store) == content(fresh(template, "two"))


def test_flatten_names_every_setting_and_cuts_long_ones() -> None:
    flat = writer.flatten({"train": {"lr": 0.1, "clip": None}, "seeds": [0, 1], "empty": {}, "long": "x" * 2000})
    assert flat.keys() == {"train.lr", "train.clip", "seeds", "empty", "long"}
    assert (flat["train.lr"], flat["train.clip"], flat["seeds"], flat["empty"]) == ("0.1", "null", "[0, 1]", "{}")
    assert len(flat["long"]) == writer.LONGEST


def test_a_search_is_a_parent_with_its_trials_and_an_ablation_one_with_its_variants(store: str, tmp_path: Path) -> None:
    folder = fake_results.write_study(
        tmp_path / "results" / "toy", methods=SKILL, seeds=(0,), clients=4, rounds=6, trials=5
    )
    tracking.log_study(folder, store)
    runs = logged(store, "toy")
    tracking.log_study(folder, store)
    assert {run.info.run_id for run in logged(store, "toy")} == {run.info.run_id for run in runs}
    kinds = {
        kind: [run for run in runs if run.data.tags["kind"] == kind]
        for kind in ("tuning", "trial", "ablation", "variant")
    }
    assert {kind: len(entries) for kind, entries in kinds.items()} == {
        "tuning": 2,
        "trial": 2 * 5,
        "ablation": 4,
        "variant": 13,
    }
    parent = next(run for run in kinds["tuning"] if run.data.tags["fedweave.run"] == "tuning/blobs-fedaghn")
    stored = json.loads((folder / "tuned" / "blobs" / "trials" / "blobs-fedaghn.json").read_text())
    trials = {run.info.run_name: run for run in children(runs, parent.info.run_id)}
    for number, trial in enumerate(stored["trials"]):
        run = trials[f"blobs-fedaghn trial {number}"]
        assert run.data.params == {name: str(value) for name, value in trial["params"].items()}
        assert run.data.metrics.get("validation_accuracy") == trial["value"]
        assert run.data.tags["state"] == ("pruned" if trial["value"] is None else "finished")
    assert parent.data.metrics["validation_accuracy"] == max(
        t["value"] for t in stored["trials"] if t["value"] is not None
    )
    assert parent.data.metrics["importance/lr"] == 0.7
    depth = next(run for run in kinds["ablation"] if run.info.run_name == "depth")
    assert {run.data.params["depth"]: run.data.metrics["accuracy"] for run in children(runs, depth.info.run_id)} == {
        "1": 78.0, "3": 80.1, "5": 79.5,
    }  # fmt: skip


def test_one_search_lists_the_methods_of_a_data_set(store: str, tmp_path: Path) -> None:
    tasks = {"blobs": {"dataset": "blobs"}, "rings": {"dataset": "rings"}}
    folder = small(tmp_path / "results" / "toy", tasks=tasks)
    tracking.log_study(folder, store)
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("toy")
    assert "tags.kind = 'method' AND tags.dataset = 'blobs'" in experiment.tags["mlflow.note.content"]
    runs = client.search_runs(
        [experiment.experiment_id],
        "tags.kind = 'method' AND tags.dataset = 'blobs'",
        order_by=["metrics.accuracy DESC"],
    )
    board = results.tables(results.load_study(folder)).board.query("task == 'blobs'")
    assert [run.info.run_name for run in runs] == board["run"].tolist()
    assert [run.data.metrics["rank"] for run in runs] == [1, 2]


def test_the_machines_load_is_there_as_system_metrics(store: str, tmp_path: Path) -> None:
    parent = tracking.log_run(small(tmp_path / "results" / "toy") / "runs" / "blobs-local", store)
    history = MlflowClient(store).get_metric_history(parent, "system/cpu_utilization_percentage")
    assert [(point.value, point.timestamp) for point in history] == [
        (50.0, 1_700_000_000_000),
        (99.0, 1_700_000_001_000),
    ]


def test_layers_are_stepped_through_one_by_one(store: str, tmp_path: Path) -> None:
    parent = tracking.log_run(small(tmp_path / "results" / "toy") / "runs" / "blobs-fedaghn", store)
    names = [item.path for item in MlflowClient(store).list_artifacts(parent, "images")]
    for layer in ("conv1", "fc2", "all layers"):
        assert sum(layer.replace(" ", "%20") in name or layer in name for name in names) >= 2


def test_the_leaders_models_are_registered_and_answer_for_every_client(store: str, tmp_path: Path) -> None:
    folder = trained.train("images", {"local": {}, "fedavg": {}})
    tracking.log_study(folder, store)
    ids = tracking.log_study(folder, store)
    client = MlflowClient(store)
    (version,) = client.search_model_versions("name = 'toy-blobs'")
    board = results.tables(results.load_study(folder)).board
    assert client.get_model_version_by_alias("toy-blobs", "best").version == version.version
    assert version.run_id == dict(zip(["blobs-fedavg", "blobs-local"], ids, strict=True))[board["run"].iloc[0]]
    assert version.description
    experiment = client.get_experiment_by_name("toy").experiment_id
    for model in client.search_logged_models([experiment]):
        pyfunc = mlflow.pyfunc.load_model(model.model_uri)
        example = pyfunc.input_example
        assert pyfunc.metadata.signature.inputs.inputs[0].shape == (-1, *example.shape[1:])
        (tmp_path / model.name).mkdir()
        serving.pack(folder / "runs" / model.name, tmp_path / model.name)
        alone = serving.load(tmp_path / model.name)
        assert np.array_equal(pyfunc.predict(example), alone.answer(example))
        assert np.array_equal(pyfunc.predict(example, {"client": 2, "seed": 1}), alone.answer(example, 2, 1))


def test_the_alias_moves_with_the_leader(store: str, tmp_path: Path) -> None:
    folder = trained.train("images", {"local": {}, "fedavg": {}})
    tracking.log_study(folder, store)
    client = MlflowClient(store)
    before = client.get_model_version_by_alias("toy-blobs", "best").tags["method"]
    leader = results.tables(results.load_study(folder)).board["run"].iloc[0]
    file = folder / "runs" / leader / "evaluations.parquet"
    table = pd.read_parquet(file)
    table.assign(value=-1.0).to_parquet(file, index=False)
    tracking.log_study(folder, store)
    assert client.get_model_version_by_alias("toy-blobs", "best").tags["method"] != before
    assert len(client.search_model_versions("name = 'toy-blobs'")) == 2


def test_the_best_model_is_served_over_http(store: str, tmp_path: Path) -> None:
    """`mlflow models serve` on the alias, and an answer for one client."""
    folder = trained.train("images", {"local": {}})
    tracking.log_study(folder, store)
    serving.pack(folder / "runs" / "blobs-local", tmp_path)
    x = trained.dataset("images").x[:3]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "mlflow",
        "models",
        "serve",
        "-m",
        "models:/toy-blobs@best",
        "--env-manager",
        "local",
    ]
    env = {**os.environ, "MLFLOW_TRACKING_URI": store}
    server = subprocess.Popen([*command, "--host", "127.0.0.1", "--port", str(port)], env=env, start_new_session=True)
    body = json.dumps({"inputs": x.tolist(), "params": {"client": 2, "seed": 1}}).encode()
    asked = Request(f"http://127.0.0.1:{port}/invocations", body, {"Content-Type": "application/json"})
    try:
        end = time.monotonic() + 90
        while True:
            try:
                with urlopen(asked, timeout=10) as answer:
                    said = json.load(answer)["predictions"]
                break
            except OSError:
                assert server.poll() is None
                assert time.monotonic() < end
                time.sleep(0.2)
    finally:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()
    assert np.allclose(said, serving.load(tmp_path).answer(x, 2, 1), atol=1e-6)


def test_everything_comes_back_by_one_command(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database deleted, `fedweave log`: the same runs, metrics, parameters, tags and aliases, of every study."""
    monkeypatch.chdir(tmp_path)
    trained.train("images", {"local": {}})
    fake_results.write_study(
        tmp_path / "results" / "paper" / "table1", methods={"FedAGHN": 0.0}, seeds=(0,), clients=4, rounds=2, trials=4
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}

    def content(name: str) -> dict[tuple[str, str], Any]:
        uri = fresh(template, name)
        command = [sys.executable, "-m", "fedweave.pipelines.commands.main", "log"]
        subprocess.run(command, env={**env, "MLFLOW_TRACKING_URI": uri}, check=True, capture_output=True)
        client = MlflowClient(uri)
        assert client.get_model_version_by_alias("toy-blobs", "best").version in (1, "1")
        own = ("fedweave.run", "fedweave.digest", "kind", "study", "method", "state", "seed", "verdict")
        answer = {
            (experiment.name, run.info.run_name): (
                run.data.metrics,
                run.data.params,
                {k: run.data.tags.get(k) for k in own},
            )
            for experiment in client.search_experiments()
            for run in client.search_runs([experiment.experiment_id])
        }
        Path(f"{name}.db").unlink()
        return answer

    first, second = content("one"), content("two")
    assert first == second
    assert {study for study, _ in first} == {"toy", "table1"}
    assert len(first) == (1 + 2) + (1 + 1 + 1 + 4 + 4 + 13)
