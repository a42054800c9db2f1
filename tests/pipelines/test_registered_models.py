"""Models in MLflow: registered, moved with the leader, served, and restored by one command."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import fake_results
import mlflow
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

import fedweave as fw
from fedweave import results
from fedweave.errors import BadInput
from fedweave.pipelines.mlflow_records import registry, stamp, synchronise, tracking, writer
from fedweave.prediction import packing
from tests import trained
from tests.mlflow_store import fresh, logged
from tests.servers import answers, free_port, process, until

ROOT = Path(__file__).resolve().parents[2]


# One worker runs all tests of this file, so that the store is made once.
pytestmark = [pytest.mark.xdist_group("tracking"), pytest.mark.timeout(600)]


def test_the_leaders_models_are_registered_and_answer_for_every_client(store: str, tmp_path: Path) -> None:
    folder = trained.train("images", {"local": {}, "fedavg": {}}, normalize="standard")
    tracking.log_study(folder, store)
    ids = tracking.log_study(folder, store).ids
    client = MlflowClient(store)
    (version,) = client.search_model_versions("name = 'toy-blobs'")
    board = results.compute_tables(results.load_study(folder)).board
    assert client.get_model_version_by_alias("toy-blobs", "best").version == version.version
    assert version.run_id == dict(zip(["blobs-fedavg", "blobs-local"], ids, strict=True))[board["run"].iloc[0]]
    questions = [line.partition(":")[0] for line in version.description.splitlines()]
    assert questions == ["- Best", "- Does collaboration pay", "- Deploy"]
    experiment = client.get_experiment_by_name("toy").experiment_id
    models = {model.name: model for model in client.search_logged_models([experiment])}
    scores = {name: {m.key: m.value for m in model.metrics}["accuracy"] for name, model in models.items()}
    assert scores == dict(zip(board["run"], board["mean"], strict=True))
    model = models[board["run"].iloc[0]]
    pyfunc = mlflow.pyfunc.load_model(model.model_uri)
    assert pyfunc.metadata.signature.inputs.inputs[0].shape == (-1, 1, 4, 4)
    packing.pack(results.load_run(folder / "runs" / model.name), tmp_path)
    alone, x = packing.unpack(tmp_path), trained.dataset("images").x[:5]
    assert np.array_equal(pyfunc.predict(x, {"client": "client 2", "seed": 1}), alone.outputs(x, "client 2", 1))
    assert np.array_equal(pyfunc.predict(x, {"client": "2"}), alone.outputs(x, "client 2", 0))


def test_a_partly_written_model_is_deleted(store: str) -> None:
    """A kill leaves it pending, and an error leaves it failed. A ready model is found next to it."""
    place = writer.connect("toy", store)
    run_id = place.client.create_run(place.experiment).info.run_id
    models = [place.client.create_logged_model(place.experiment, "m", run_id) for _ in range(3)]
    place.client.finalize_logged_model(models[1].model_id, "FAILED")
    assert registry._find_model(place, run_id) is None
    assert not place.client.search_logged_models([place.experiment])
    ready = place.client.create_logged_model(place.experiment, "m", run_id)
    place.client.finalize_logged_model(ready.model_id, "READY")
    place.client.create_logged_model(place.experiment, "m", run_id)
    model = registry._find_model(place, run_id)
    assert model is not None
    assert model.model_id == ready.model_id


def models_of_current_runs(folder: Path, store: str, **options: bool) -> dict[str, Any]:
    """The model of every run in MLflow, after an update to the study `toy`."""
    tracking.log_study(folder, store, **options)
    client = MlflowClient(store)
    current = {run.info.run_id for run in logged(store, "toy") if run.data.tags["record"] == "current"}
    experiment = client.get_experiment_by_name("toy").experiment_id
    models = [model for model in client.search_logged_models([experiment]) if model.source_run_id in current]
    assert len(models) == len({model.name for model in models})
    return {model.name: model for model in models}


def test_mlflow_loads_the_models_of_every_run(store: str, tmp_path: Path) -> None:
    """Those of the leader are copied. The others are in the results, and are refused where these have changed."""
    folder = trained.train("images", {"local": {}, "fedavg": {}})
    leader, other = results.compute_tables(results.load_study(folder)).board["run"]
    models, x = models_of_current_runs(folder, store), trained.dataset("images").x[:5]
    assert models.keys() == {leader, other}
    assert {name: registry.LOCATION in model.tags for name, model in models.items()} == {leader: False, other: True}
    for name, model in models.items():
        (packed := tmp_path / name).mkdir()
        packing.pack(results.load_run(folder / "runs" / name), packed)
        answer = mlflow.pyfunc.load_model(model.model_uri).predict(x, {"client": "client 2", "seed": 1})
        assert np.array_equal(answer, packing.unpack(packed).outputs(x, "client 2", 1))
    assert "models of 2 runs can be loaded" in str(tracking.log_study(folder, store))
    again = models_of_current_runs(folder, store)
    assert {name: model.model_id for name, model in again.items()} == {name: m.model_id for name, m in models.items()}
    file = next((folder / "runs" / other).glob("models-*"))
    file.rename(tmp_path / file.name)
    with pytest.raises(BadInput, match="does not have the models of this run any more"):
        mlflow.pyfunc.load_model(models[other].model_uri)
    (tmp_path / file.name).rename(file)
    copies = models_of_current_runs(folder, store, models=True)
    assert not any(registry.LOCATION in model.tags for model in copies.values())
    file.unlink()
    assert mlflow.pyfunc.load_model(copies[other].model_uri)


def dethrone(folder: Path) -> tuple[str, str]:
    """Gives the leader of two runs scores below those of the other. Returns the earlier leader and the other."""
    leader, other = results.compute_tables(results.load_study(folder)).board["run"]
    file = folder / "runs" / leader / "evaluations.parquet"
    pd.read_parquet(file).assign(value=-1.0).to_parquet(file, index=False)
    return leader, other


def test_a_new_leader_is_copied_and_the_alias_moves(store: str) -> None:
    folder, client = trained.train("images", {"local": {}, "fedavg": {}}), MlflowClient(store)
    before = models_of_current_runs(folder, store)
    old = client.get_model_version_by_alias("toy-blobs", "best").tags["method"]
    leader, other = dethrone(folder)
    after = models_of_current_runs(folder, store)
    assert {name: registry.LOCATION in model.tags for name, model in after.items()} == {leader: True, other: False}
    assert after[other].source_run_id == before[other].source_run_id
    assert mlflow.pyfunc.load_model(after[other].model_uri)
    assert client.get_model_version_by_alias("toy-blobs", "best").tags["method"] != old
    assert len(client.search_model_versions("name = 'toy-blobs'")) == 2


def test_numbers_of_models_are_those_of_their_runs(store: str, tmp_path: Path) -> None:
    """Also after the results of another run have changed the ranks. A model has no p value of 0 for a missing one, and
    not the load of the machine.
    """
    folder = trained.train("images", {"local": {}, "fedavg": {}})
    before, client, ranks = models_of_current_runs(folder, store, models=True), MlflowClient(store), {}
    for model in before.values():
        missing = {name for name, value in client.get_run(model.source_run_id).data.metrics.items() if np.isnan(value)}
        assert not missing & {point.key for point in model.metrics}
    leader, other = dethrone(folder)
    after = models_of_current_runs(folder, store, models=True)
    assert after[other].model_id == before[other].model_id
    for name, model in after.items():
        run, numbers = client.get_run(model.source_run_id), {m.key: m.value for m in model.metrics}
        assert numbers == {name: run.data.metrics[name] for name in numbers}
        assert not [name for name in numbers if name.startswith("system/")]
        ranks[name] = numbers["rank"]
    assert ranks == {other: 1.0, leader: 2.0}
    assert [point.value for point in client.get_metric_history(after[other].source_run_id, "rank")] == [2.0, 1.0]


def test_the_method_to_deploy_has_an_alias_as_long_as_the_report_names_one(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be another method than the best one; with two seeds, which give no verdict, there is none."""
    folder = trained.train("images", {"local": {}, "fedavg": {}})
    board = results.compute_tables(results.load_study(folder)).board
    methods, client = [*board["method"]], MlflowClient(store)

    def aliases() -> dict[str, str]:
        model = client.get_registered_model("toy-blobs")
        found = {alias: client.get_model_version("toy-blobs", number) for alias, number in model.aliases.items()}
        assert all(mlflow.pyfunc.load_model(f"models:/toy-blobs@{alias}") for alias in found)
        return {alias: version.tags["method"] for alias, version in found.items()}

    tracking.log_study(folder, store)
    assert aliases() == {"best": methods[0]}
    answer = registry.answer
    for method in reversed(methods):
        with monkeypatch.context() as patch:
            patch.setattr(registry, "answer", lambda *given, m=method: answer(*given)._replace(method=m))
            tracking.log_study(folder, store)
        assert aliases() == {"best": methods[0], "deploy": method}
    tracking.log_study(folder, store)
    assert aliases() == {"best": methods[0]}


def test_a_name_of_another_study_is_not_taken(store: str) -> None:
    """The task "c" of "a-b" would have the name of the model of "a/b". All else of the study is logged."""
    made, folders = trained.train("images", {"local": {}}), [Path("results/a/b"), Path("results/a-b")]
    for folder in folders:
        shutil.copytree(made, folder)
        file, study = folder / "runs" / "blobs-local" / "run.json", folder.relative_to("results").as_posix()
        file.write_text(json.dumps(json.loads(file.read_text()) | {"study": study}))
    tracking.log_study(folders[0], store)
    client = MlflowClient(store)
    before = client.get_model_version_by_alias("a-b-blobs", "best")
    with pytest.raises(BadInput, match=r"models:/a-b-blobs: is the model of task 'blobs' of study 'a/b', so"):
        tracking.log_study(folders[1], store)
    assert client.get_model_version_by_alias("a-b-blobs", "best").run_id == before.run_id
    assert logged(store, "a-b")
    tracking.log_study(folders[0], store)


@contextmanager
def serving(store: str, model: str, folder: Path) -> Iterator[Callable[..., tuple[int, Any]]]:
    """`mlflow models serve`. Yields a function from a request to the status and the answer."""
    port = free_port()
    words = ["mlflow", "models", "serve", "-m", model, "--env-manager", "local", "--host", "127.0.0.1"]
    command = [sys.executable, "-m", *words, "--port", str(port)]

    def ask(**content: Any) -> tuple[int, Any]:
        body = json.dumps(content).encode()
        address = f"http://127.0.0.1:{port}/invocations"
        try:
            with urlopen(Request(address, body, {"Content-Type": "application/json"}), timeout=30) as answer:
                return answer.status, json.load(answer)
        except HTTPError as error:
            return error.code, json.load(error)

    with process(command, folder, {"MLFLOW_TRACKING_URI": store}, folder / "serve.log") as server:
        assert until(lambda: answers(f"http://127.0.0.1:{port}/ping") or server.poll() is not None, 300)
        yield ask


@pytest.mark.acceptance
def test_the_served_model_has_the_scores_of_the_run_on_stored_rows(store: str, tmp_path: Path) -> None:
    """Three clients with raw test rows: the accuracies are equal to the last bit. Wrong requests are refused."""
    folder = trained.train("images", {"local": {}}, normalize="standard")
    tracking.log_study(folder, store)
    run = results.load_run(folder / "runs" / "blobs-local")
    scores = results.select_scores(run).set_index(["seed", "client"])["value"]
    whole, partition = trained.dataset("images"), trained.partition("images")
    with serving(store, "models:/toy-blobs@best", tmp_path) as ask:
        for client, rows in enumerate(partition.test):
            status, answer = ask(inputs=whole.x[rows].tolist(), params={"client": client, "seed": 1})
            assert status == 200, answer
            right = np.array(answer["predictions"]).argmax(1) == whole.labels[rows]
            assert 100.0 * right.mean() == scores[1, client]
        x = whole.x[:1].tolist()
        for params, words in (
            ({"klient": "1"}, "klient: not a parameter; choices: client, seed"),
            ({"client": "99"}, "client: '99' is unknown"),
            ({"client": "1", "seed": 7}, "seed: 7 was not trained; choices: 0, 1"),
            ({"client": "1", "seed": "b"}, "seed: 'b' is not a whole number"),
            ({}, "client: missing; give its name or number"),
        ):
            status, answer = ask(inputs=x, params=params)
            assert status == 400
            assert answer["message"].startswith(words)
            assert len(answer["message"].splitlines()) == 1
            assert "stack_trace" not in answer


WRONG_REQUESTS = [
    ((2, 1, 4, 4), {"client": None}, "client: missing; "),
    ((2, 1, 4, 4), {"client": 0, "seed": "b"}, "seed: 'b' is not a whole number"),
    ((2, 1, 4, 4), {"client": 0, "seed": 1.5}, "seed: 1.5 is not a whole number"),
    ((2, 1, 4, 4), [1], 'params: [1] is no object; give {"client": ...}'),
    ((2, 1, 4, 3), {"client": 0}, "inputs: Shape of input (2, 1, 4, 3) does not match expected shape (-1, 1, 4, 4)."),
]


def test_a_loaded_model_refuses_wrong_requests_in_one_line(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow itself puts the whole input before the reason."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    tracking.log_study(trained.train("images", {"local": {}}), store)
    model = mlflow.pyfunc.load_model("models:/toy-blobs@best")
    for shape, params, line in WRONG_REQUESTS:
        with pytest.raises(MlflowException) as caught:
            model.predict(np.zeros(shape, np.float32), params)
        assert str(caught.value).startswith(line)
        assert "\n" not in str(caught.value)
    assert len(model.predict(np.zeros((2, 1, 4, 4), np.float32), {"client": np.int64(1), "seed": None})) == 2


def test_the_model_of_a_users_table_predicts_its_rows(store: str, tmp_path: Path) -> None:
    """`fw.compare` on a table with texts and a missing value: the raw test rows give each client's stored score."""
    rng, rows = np.random.default_rng(0), 180
    table = pd.DataFrame(
        {"site": np.arange(rows) % 3, "dose": rng.normal(50, 9, rows), "kind": rng.choice([*"ab"], rows)}
    )
    table["late"] = np.where((table["dose"] > 50) ^ (table["kind"] == "a"), "yes", "no")
    table["part"] = np.array(["train", "val", "test"])[np.arange(rows) // 3 % 3]
    table.loc[3, "dose"] = np.nan
    federation = fw.Federation.from_pandas(table, client="site", label="late", split="part", name="own")
    folder = Path("results/own")
    done = fw.compare(federation, ["local"], model="mlp", rounds=3, seeds=2, out=folder, progress=False, tune=0)
    done.save(folder)
    tracking.log_study(folder, store)
    (name,) = [model.name for model in MlflowClient(store).search_registered_models()]
    serving = mlflow.pyfunc.load_model(f"models:/{name}@best")
    scores = results.select_scores(done["local"].run).query("seed == 1").set_index("client")["value"]
    for place, site in enumerate(done.clients):
        mine = table[(table["site"].astype(str) == str(site)) & (table["part"] == "test")]
        outputs = serving.predict(mine[["dose", "kind"]], {"client": str(site), "seed": 1})
        right = np.array(["no", "yes"])[np.asarray(outputs).argmax(1)] == mine["late"].to_numpy()
        assert 100.0 * right.mean() == scores[place]


@pytest.mark.parametrize("way", ["moved", "copied"])
def test_a_record_of_another_folder_is_refused_and_then_rebuilt(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The models of a record are in the project's earlier folder. After the way out the best model loads from the new
    folder.
    """
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    monkeypatch.chdir(first)
    folder = trained.train("images", {"local": {}})
    results.write(folder)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", fresh(template, "mlflow"))
    tracking.log_study(folder)
    (shutil.move if way == "moved" else shutil.copytree)(first, second)
    monkeypatch.chdir(second)
    store = f"sqlite:///{second / 'mlflow.db'}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    assert synchronise.is_due(folder, "toy")
    with pytest.raises(BadInput, match=rf"mlflow\.db: was written in {first}; move it away, then: fedweave log toy$"):
        tracking.log_study(folder)
    Path("mlflow.db").rename("old.db")
    store = fresh(template, "new")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    ids = tracking.log_study(folder, store).ids
    assert not synchronise.is_due(folder, "toy")
    assert [mlflow.pyfunc.load_model("models:/toy-blobs@best").metadata.run_id] == ids
    mlflow.set_tracking_uri(None)


@pytest.mark.acceptance
def test_one_command_restores_a_deleted_database(
    template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`fedweave log` restores the same runs, metrics, parameters, tags and aliases of every study."""
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
        own = ("record", "fedweave.run", "fedweave.digest", "kind", "study", "method", "state", "seed", "verdict")
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


def test_artifacts_that_were_deleted_are_restored(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The database alone still lists them. The registered model gets a new version, as the files of the old one are
    lost.
    """
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    folder = trained.train("images", {"local": {}, "fedavg": {}}, normalize="standard")
    ids = tracking.log_study(folder, store).ids
    x, client = trained.dataset("images").x[:5], MlflowClient(store)
    expected = mlflow.pyfunc.load_model("models:/toy-blobs@best").predict(x, {"client": "2"})
    files = {run: [file.path for file in client.list_artifacts(run, "run")] for run in ids}
    assert stamp.is_current(folder, "toy", store)
    shutil.rmtree("mlruns")
    assert not stamp.is_current(folder, "toy", store)
    record = tracking.log_study(folder, store)
    assert (record.ids, record.new, record.models) == (ids, 0, 2)
    assert files == {run: [file.path for file in client.list_artifacts(run, "run")] for run in ids}
    assert all(files.values())
    assert np.array_equal(mlflow.pyfunc.load_model("models:/toy-blobs@best").predict(x, {"client": "2"}), expected)
    assert stamp.is_current(folder, "toy", store)
    assert client.get_model_version_by_alias("toy-blobs", "best").version == 2
    tracking.log_study(folder, store)
    assert len(client.search_model_versions("name = 'toy-blobs'")) == 2
