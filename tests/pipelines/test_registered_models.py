"""Models in MLflow: registered, moved with the leader, served; and everything back by one command."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
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
from fedweave.pipelines.mlflow_records import tracking
from fedweave.runs import serving
from tests import trained
from tests.mlflow_store import fresh

ROOT = Path(__file__).resolve().parents[2]


# One worker for all of it, so that the store is made once.
pytestmark = [pytest.mark.xdist_group("tracking"), pytest.mark.timeout(600)]


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
