"""A run's models have the scores of the run outside of the federation."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from fedweave import results
from fedweave.errors import BadInput
from fedweave.prediction import packing
from fedweave.runs import serving
from tests import trained

# One case for each kind of task, and methods whose prediction is more than a forward pass: a memory, two heads, a gate,
# completed graphs, a mixture, a bias of features, prototypes.
CASES = {
    "images": {"local": {}, "knn_per": {}, "fedrod": {}, "fedcp": {}, "fedem": {}, "feddbe": {}, "fedproto": {}},
    "graph": {"fedavg_ft": {}, "fedsage": {"wide": 8, "generator_rounds": 1}, "fedsheafhn": {"enrol_epochs": 1}},
    "series": {"fedavg": {}, "fedem": {}},
}


def stored_scores(run: Path, seed: int) -> pd.Series:
    """The clients' test scores in the round whose models are stored."""
    point = json.loads((run / "run.json").read_text())["point"]
    round = torch.load(run / f"models-{seed}.pt", weights_only=True)["round"]
    table = (
        pd.read_parquet(run / "evaluations.parquet")
        .set_index(["seed", "round", "point", "split", "client"])["value"]
        .sort_index()
    )
    return table.loc[seed, round, point, "test"]


@pytest.mark.parametrize("kind", CASES)
def test_deployed_models_have_the_scores_of_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    folder, whole, partition = trained.train(kind, CASES[kind]), trained.dataset(kind), trained.partition(kind)
    for run in sorted((folder / "runs").iterdir()):
        packed = tmp_path / run.name
        packed.mkdir()
        example = packing.pack(results.load_run(run), packed)
        predictor = packing.unpack(packed)
        deployed = predictor.models
        assert np.isfinite(predictor.outputs(example, "client 0", None)).all()
        for seed in (0, 1):
            for client, value in stored_scores(run, seed).items():
                assert score(deployed, whole, partition, client, seed) == pytest.approx(value, rel=1e-5), (
                    run.name,
                    seed,
                    client,
                )


def score(
    deployed: serving.DeployedModels, whole: trained.Dataset, partition: trained.Partition, client: int, seed: int
) -> float:
    """Accuracy or MSE on the client's test rows, from inputs as a user would send them."""
    rows = partition.test[client]
    if whole.kind == "series":
        window = np.stack([[whole.x.ravel()[r : r + 7], whole.time[r % 60 : r % 60 + 7]] for r in rows]).transpose(
            0, 2, 1
        )
        hidden = window.copy()
        hidden[:, 4:, 0] = 0  # the values to forecast
        return float(np.square(deployed.answer(hidden, client, seed) - window[:, 4:, 0]).mean())
    if whole.kind == "graph":
        nodes = partition.nodes[client]
        return 100.0 * float(
            (deployed.answer(whole.x[nodes], client, seed)[rows].argmax(1) == whole.y[nodes][rows]).mean()
        )
    return 100.0 * float((deployed.answer(whole.x[rows], client, seed).argmax(1) == whole.y[rows]).mean())


def test_clients_differ_and_unknown_ones_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = trained.train("images", {"local": {}}, (0, 3)) / "runs" / "blobs-local"
    example = packing.pack(results.load_run(run), tmp_path)
    predictor = packing.unpack(tmp_path)
    assert np.array_equal(predictor.outputs(example, "client 0", None), predictor.outputs(example, "client 0", 0))
    assert not np.allclose(predictor.outputs(example, "client 0", 0), predictor.outputs(example, "client 1", 0))
    assert not np.allclose(predictor.outputs(example, "client 0", 0), predictor.outputs(example, "client 0", 3))
    with pytest.raises(BadInput, match="client: 'client 3' is unknown"):
        predictor.outputs(example, "client 3", None)
    with pytest.raises(BadInput, match="seed: 1 was not trained; choices: 0, 3"):
        predictor.outputs(example, "client 0", 1)


def test_a_run_may_store_no_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`evaluate.models: false` omits the models and changes no number."""
    monkeypatch.chdir(tmp_path)
    run, tables = Path("results/toy/runs/blobs-local"), []
    for models in (True, False):
        trained.train("images", {"local": {}}, models=models)
        tables.append(pd.read_parquet(run / "evaluations.parquet"))
        assert any(run.glob("models-*.pt")) == models
    pd.testing.assert_frame_equal(*tables)
    assert packing.pack(results.load_run(run), tmp_path) is None


def test_without_models_or_data_there_is_nothing_to_deploy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = trained.train("images", {"local": {}}) / "runs" / "blobs-local"
    (tmp_path / "data").rename(tmp_path / "aside")
    assert packing.pack(results.load_run(run), tmp_path) is None
    (tmp_path / "aside").rename(tmp_path / "data")
    for file in run.glob("models-*.pt"):
        file.unlink()
    assert packing.pack(results.load_run(run), tmp_path) is None
