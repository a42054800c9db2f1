"""Several splits of one task: every repetition has its own split, and tests include the variance of splits."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave import data, results
from fedweave.pipelines.stages import partition as stage
from fedweave.results import statistics
from fedweave.runs import archive, repetition
from fedweave.study import spec, validate
from tests.study.test_spec import one_run

BLOCK = {"name": "dirichlet", "clients": 5, "beta": 0.5}
TRAIN = {"rounds": 2, "epochs": 1, "batch_size": 32, "lr": 0.05}
SEEDS, SPLITS = [0, 1], [7, 3]


def compare_methods(training: list[int], **splits: object) -> fw.Comparison:
    """Two methods on digits."""
    federation = fw.Federation.from_dataset("digits", {**BLOCK, **splits}, normalize="unit", setting="own")
    return fw.compare(federation, ["local", "fedavg_ft"], seeds=training, **TRAIN, progress=False)


def test_every_repetition_is_a_run_on_its_own_split(tmp_path: Path) -> None:
    """Scores are those of a run with this seed on this split alone, in `compare` and in a study. Tests are mixed."""
    both = compare_methods(SEEDS, seeds=SPLITS)
    ours = both["fedavg_ft"].run
    for seed, split in zip(SEEDS, SPLITS, strict=True):
        alone = compare_methods([seed], seed=split)["fedavg_ft"].run.evaluations
        mine = ours.evaluations[ours.evaluations["seed"] == seed].reset_index(drop=True)
        pd.testing.assert_frame_equal(mine, alone, check_exact=True)
    assert ours.info["splits"] == SPLITS
    assert [path.name for path in ours.folder.glob("models-*.pt")] == ["models-0.pt"]
    scores = results.scores_by_method([both[name].run for name in ("fedavg_ft", "local")], results.clients(both.study))
    labels = tuple(scores)
    assert both.test("fedavg_ft", "local").p == statistics.compare_pairs(scores, [labels], True)[0].p
    task = {
        "dataset": "digits",
        "setting": "own",
        "normalize": "unit",
        "model": {"name": "mlp"},
        "train": TRAIN,
        "partition": {**BLOCK, "seeds": SPLITS},
    }
    run = validate.check(spec.parse(one_run(task, "fedavg_ft"))).run("own-fedavg_ft")
    dataset = data.load("digits", tmp_path)
    bench = repetition.prepare(run, dataset, data.partition(dataset, **data.splits(run.task.partition)[0]))
    histories = repetition.run_repetitions(bench, tmp_path / "checkpoints")
    archive.write(tmp_path / run.key, bench, histories)
    again = pd.read_parquet(tmp_path / run.key / "evaluations.parquet")
    pd.testing.assert_frame_equal(again, ours.evaluations, check_exact=True)


def test_the_stage_records_the_digest_of_every_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training depends on dataset.json, which has a digest of each further split."""
    monkeypatch.chdir(tmp_path)
    dataset = data.load("digits", tmp_path)
    data.save_dataset(Path("data/features/digits"), dataset)
    block = {**BLOCK, "seeds": SPLITS}
    task = {"dataset": "digits", "setting": "own", "model": {"name": "mlp"}, "train": TRAIN, "partition": block}
    Path("params.yaml").write_text(json.dumps(one_run(task, "local")))
    stage.main("own")
    facts = json.loads(Path("data/partitions/own/dataset.json").read_text())
    first, second, third = (data.partition(dataset, **BLOCK, seed=seed) for seed in (*SPLITS, 4))
    assert facts["splits"] == {str(SPLITS[1]): stage.digest(second)}
    assert len({stage.digest(partition) for partition in (first, second, third)}) == 3
    stored = data.load_partition(Path("data/partitions/own/partition.npz"))
    assert stage.digest(stored) == stage.digest(first)


def test_tuning_and_attacks_are_refused_with_several_splits() -> None:
    """Each is refused in one line. `compare` refuses them as a study does."""
    for change, words in (
        ({"seeds": 3}, "partition.seeds: 3"),
        ({"seeds": [1, 1]}, "twice"),
        ({"seeds": [1, 2, 3]}, "3 splits, but 2 seeds"),
    ):
        with pytest.raises(fw.BadInput, match=words.replace("[", r"\[")):
            compare_methods(SEEDS, **change)
    federation = fw.Federation.from_dataset("digits", BLOCK, seeds=SPLITS)
    with pytest.raises(fw.BadInput, match="test rows of the others"):
        fw.compare(federation, ["local", "ditto"], seeds=2, tune=2, **TRAIN, progress=False)


def test_better_needs_agreement_of_the_splits() -> None:
    """All clients agree within each of three splits, but the splits differ too much for a decision. The same scores of
    fixed models, which no split changes, are decided over clients.
    """
    draws = np.random.default_rng(1)
    values = {"a": np.array([[2.0], [0.2], [1.0]]) + 0.1 * draws.normal(size=(3, 30)), "b": np.zeros((3, 30))}
    over_splits, fixed = (statistics.compare_pairs(values, [("a", "b")], True, fixed=way)[0] for way in (False, True))
    assert (over_splits.verdict, over_splits.over) == ("open", "seeds and clients")
    assert (fixed.verdict, fixed.over) == ("better", "clients")
