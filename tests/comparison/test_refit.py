"""Models that predict are trained on training and validation rows; scores stay those of the training rows alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedweave as fw
from fedweave.files.atomic import load_tensors

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
QUIET: dict[str, Any] = {"progress": False, "device": "cpu", "executor": "loop", "central": False, "lr": 0.2}


def rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[str]]:
    draws = np.random.default_rng(seed)
    x = draws.normal(size=(120, 3)).astype(np.float32)
    return x, (x.sum(1) > 0).astype(int), ["Ann", "Bob", "Cy"] * 40


def federation() -> fw.Federation:
    x, y, client = rows()
    return fw.Federation.from_arrays(x, y, client=client, shares={"train": 0.4, "val": 0.3, "test": 0.3})


def compare(data: fw.Federation, method: Any = "ditto", **arguments: Any) -> fw.Comparison:
    return fw.compare(data, [method], rounds=4, seeds=[3], **{**QUIET, **arguments})


def test_the_models_are_those_of_a_training_on_both_kinds_of_rows_up_to_the_chosen_round(tmp_path: Path) -> None:
    data = federation()
    result = compare(data, out=tmp_path)["ditto"]
    before = result.scores.copy()
    line, rounds = result.refit(), int(result.select_scores()["round"].iloc[0])
    assert line.startswith(f"refitted on training and validation rows for {rounds} round")
    assert f" with lr={result.run.info['spec']['train']['lr']:.3g}" in line
    partition = data.partition
    joined = tuple(np.sort(np.concatenate(pair)) for pair in zip(partition.train, partition.val, strict=True))
    whole = replace(data, partition=replace(partition, train=joined, val=tuple(part[:0] for part in partition.val)))
    options = {name: value for name, value in QUIET.items() if name != "central"}
    direct = fw.fit("ditto", whole, rounds=rounds, seed=3, evaluate={"select": "last"}, **options)
    new = rows(1)[0]
    np.testing.assert_allclose(
        result.predict_proba(new, "Bob").to_numpy(), direct.predict_proba(new, "Bob").to_numpy(), atol=1e-6
    )
    plain = result.predict_proba(new, "Bob", refit=False).to_numpy()
    assert np.abs(plain - result.predict_proba(new, "Bob").to_numpy()).max() > 1e-3
    assert result.scores.equals(before)


def test_a_second_use_trains_nothing_and_a_loaded_folder_has_the_same_models(tmp_path: Path) -> None:
    result = compare(federation(), out=tmp_path)["ditto"]
    new = rows(1)[0]
    expected = result.predict_proba(new, "Cy")
    (file,) = (tmp_path / "refit").rglob("models-3.pt")
    written, weights = file.stat().st_mtime_ns, load_tensors(file)["models"]
    loaded = fw.load(tmp_path)["ditto"]
    assert loaded.predict_proba(new, "Cy").equals(expected)
    assert compare(federation(), out=tmp_path)["ditto"].predict_proba(new, "Cy").equals(expected)
    assert file.stat().st_mtime_ns == written
    file.parent.joinpath("run.json").unlink()  # as after an interruption: it is trained again, with the same bits
    compare(federation(), out=tmp_path)["ditto"].refit()
    again = load_tensors(file)["models"]
    assert all(torch.equal(again[name], weights[name]) for name in weights)


def test_an_export_says_on_which_rows_it_was_trained(tmp_path: Path) -> None:
    result = compare(federation(), out=tmp_path / "out")["ditto"]
    for folder, options, words in (
        ("both", {}, "refitted on training and validation rows"),
        ("one", {"refit": False}, "trained on training rows"),
    ):
        target = result.export(tmp_path / folder, "Ann", **options)  # type: ignore[arg-type]
        assert json.loads((target / "export.json").read_text(encoding="utf-8"))["trained"].startswith(words)
        assert f"The model was {words}" in (target / "README.md").read_text(encoding="utf-8")


def test_where_no_refit_is_possible_one_line_says_why(tmp_path: Path) -> None:
    new = rows(1)[0]
    result = compare(federation(), out=tmp_path)["ditto"]
    loaded = fw.load(tmp_path)
    line = "ditto: trained on training rows, not refitted: the rows are not in memory"
    with pytest.warns(UserWarning, match=f"^{line}$") as caught:
        answers = [loaded["ditto"].predict_proba(new, "Ann") for _ in range(2)]
    assert len(caught) == 1
    assert all(answer.equals(result.predict_proba(new, "Ann", refit=False)) for answer in answers)
    data = federation()
    empty = replace(data, partition=replace(data.partition, val=tuple(part[:0] for part in data.partition.val)))
    bare = compare(empty, evaluate={"select": "last"})["ditto"]
    assert bare.refit() == "trained on training rows, not refitted: there are no validation rows"
    own = compare(federation(), "knn_per")["knn_per"]
    assert own.refit() == "trained on training rows, not refitted: the method learns from validation rows itself"
    each = compare(federation(), evaluate={"select": "per_client_best_val"})["ditto"]
    if each.select_scores()["round"].nunique() > 1:
        assert "no round was chosen for all clients together" in each.refit()


def test_the_model_of_fit_is_as_it_was_trained() -> None:
    options = {name: value for name, value in QUIET.items() if name != "central"}
    result = fw.fit("fedavg", federation(), rounds=2, **options)
    assert result.refit() == "trained on training rows"
    new = rows(1)[0]
    assert result.predict_proba(new, "Ann").equals(result.predict_proba(new, "Ann", refit=False))
