"""Results in MLflow, with a real store: what is logged, that it is logged once, and that models can be loaded."""

import json
import shutil
from pathlib import Path

import fake_results
import numpy as np
import pandas as pd
import pytest
from mlflow import MlflowClient

from fedweave import results
from fedweave.graphs.quality import AUC, EDGES
from fedweave.pipelines.mlflow_records import tracking, views, writer
from tests.mlflow_store import SKILL, children, current, fresh, logged, small

# One worker runs all tests of this file, so that the store is made once.
pytestmark = [pytest.mark.xdist_group("tracking"), pytest.mark.timeout(600)]


def curve(uri: str, run_id: str, name: str) -> dict[int, float]:
    return {point.step: point.value for point in MlflowClient(uri).get_metric_history(run_id, name)}


def test_a_parent_per_run_and_a_child_per_seed_have_the_content_of_the_files(store: str, toy: Path) -> None:
    ids = tracking.log_study(toy, store).ids
    runs = logged(store, "toy")
    assert len(runs) == 2 * (1 + 2)
    for run, parent in zip(results.load_study(toy).runs, ids, strict=True):
        entry = MlflowClient(store).get_run(parent)
        assert entry.data.params["train.lr"] == "0.05"
        assert entry.data.tags["spec_hash"] == run.info["spec_hash"]
        assert [
            child.data.tags["seed"] for child in sorted(children(runs, parent), key=lambda r: r.info.start_time)
        ] == ["0", "1"]
        final = results.select_scores(run)
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


def test_a_run_names_its_user_and_a_source(store: str, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """MLflow shows them as "Created by" and "Source", the latter with the commit."""
    monkeypatch.setenv("LOGNAME", "ann")
    writer.provenance.cache_clear()
    tracking.log_study(toy, store)
    writer.provenance.cache_clear()
    for run in logged(store, "toy"):
        assert (run.data.tags["mlflow.user"], run.data.tags["mlflow.source.name"]) == ("ann", "fedweave")


def test_a_contestant_has_tags_that_say_how_it_ran(store: str, toy: Path) -> None:
    file = next(toy.glob("runs/*local/run.json"))
    about = {"how": "program", "unequal": ["its budget is its own"], "command": "python mine.py", "timeout": 60.0}
    file.write_text(json.dumps(json.loads(file.read_text()) | {"contestant": about}))
    ids = tracking.log_study(toy, store).ids
    tags = [MlflowClient(store).get_run(run_id).data.tags for run_id in ids]
    found = [{key: value for key, value in one.items() if key.startswith("contestant")} for one in tags]
    own = {"command": "python mine.py", "how": "program", "timeout": "60.0", "unequal": '["its budget is its own"]'}
    assert found == [{}, {f"contestant.{key}": value for key, value in own.items()}]


def test_the_collaboration_graph_is_a_picture_and_a_file(store: str, toy: Path) -> None:
    ids = dict(zip(["blobs-fedaghn", "blobs-local"], tracking.log_study(toy, store).ids, strict=True))
    client = MlflowClient(store)
    names = {run: {item.path for item in client.list_artifacts(run_id)} for run, run_id in ids.items()}
    assert {"collaboration.svg", "images", "run"} <= names["blobs-fedaghn"]
    assert "collaboration.svg" not in names["blobs-local"]
    assert "run/collaboration-0.npz" in {item.path for item in client.list_artifacts(ids["blobs-fedaghn"], "run")}


def test_a_run_has_the_quality_of_its_graph(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The values are those of the leaderboard. A record from before gets them too."""
    folder = small(tmp_path / "results" / "toy", tasks={"blobs": {"group": [0, 0, 1, 1], "group_names": ["a", "b"]}})
    client = MlflowClient(store)
    with monkeypatch.context() as before:
        before.setattr(results, "MEANING", {})
        first = tracking.log_study(folder, store).ids
    graph, local = tracking.log_study(folder, store).ids
    assert [graph, local] == first
    row = results.compute_tables(results.load_study(folder)).board.set_index("run").loc["blobs-fedaghn"]
    shown = client.get_run(graph).data.metrics
    expected = row[[*results.MEANING]].dropna().to_dict()
    assert AUC in expected
    assert {name: value for name, value in shown.items() if name in results.MEANING} == pytest.approx(expected)
    assert not {*results.MEANING} & {*client.get_run(local).data.metrics}
    assert EDGES not in shown
    # Four sources of two learners, in each seed; the file belongs to the run, which is logged again
    rows = [(seed, 6, i, j, w, w) for seed in (0, 1) for i in (0, 1) for j, w in ((2, 0.1), (3, 0.4))]
    lines = ["seed,round,learner,source,weight,gain", *(",".join(map(str, row)) for row in rows)]
    (folder / "runs" / "blobs-fedaghn" / "edges.csv").write_text("\n".join(lines) + "\n")
    again = tracking.log_study(folder, store).ids[0]
    assert client.get_run(again).data.metrics[EDGES] == pytest.approx(1.0)


def state(uri: str) -> dict[str, tuple[str, str]]:
    """The name and record of every run, by its id."""
    return {run.info.run_id: (run.info.run_name, run.data.tags["record"]) for run in logged(uri, "toy")}


def test_a_replaced_run_is_kept_and_is_current_again_after_a_revert(store: str, toy: Path) -> None:
    first = tracking.log_study(toy, store)
    assert first.new == 2
    assert tracking.log_study(toy, store) == first._replace(new=0)
    info = toy / "runs" / "blobs-local" / "run.json"
    before = info.read_text()
    changed = json.loads(before)
    changed["spec"]["method"]["lam"] = 3.0
    info.write_text(json.dumps(changed))
    second = tracking.log_study(toy, store)
    assert (second.new, second.superseded) == (1, 1)
    assert second.ids[0] == first.ids[0]
    assert second.ids[1] != first.ids[1]
    old = MlflowClient(store).get_run(first.ids[1])
    assert old.data.tags["superseded.reason"] == "method.lam: 1.0 -> 3.0"
    assert {"superseded.commit", "superseded.at"} <= {*old.data.tags}
    assert [record for _, record in state(store).values()].count("superseded") == 1 + 2
    info.write_text(before)
    third = tracking.log_study(toy, store)
    assert (third.ids, third.new, third.restored, third.superseded) == (first.ids, 0, 1, 1)
    back = MlflowClient(store).get_run(first.ids[1])
    assert not [tag for tag in back.data.tags if tag.startswith("superseded")]
    assert [record for _, record in state(store).values()].count("superseded") == 1 + 2


def test_a_run_that_is_missing_from_the_results_is_superseded(store: str, toy: Path, tmp_path: Path) -> None:
    ids = tracking.log_study(toy, store).ids
    shutil.move(toy / "runs" / "blobs-local", tmp_path / "aside")
    assert tracking.log_study(toy, store).superseded == 1
    alone = MlflowClient(store).get_run(ids[0])
    assert (alone.data.tags["record"], alone.data.metrics["rank"]) == ("current", 1)
    assert MlflowClient(store).get_run(ids[1]).data.tags["superseded.reason"] == "not among the results any more"


def test_ranks_and_verdicts_change_with_the_other_runs(store: str, toy: Path) -> None:
    """The files of FedAGHN are unchanged, but its rank and verdict change."""
    ids = tracking.log_study(toy, store).ids
    file = toy / "runs" / "blobs-local" / "evaluations.parquet"
    table = pd.read_parquet(file)
    table.assign(value=99.0).to_parquet(file, index=False)
    assert tracking.log_study(toy, store).ids[0] == ids[0]
    assert MlflowClient(store).get_run(ids[0]).data.metrics["rank"] == 2
    current(store, toy)


def test_a_lost_database_is_rebuilt_from_the_files(store: str, template: Path, toy: Path) -> None:

    def content(uri: str) -> dict[str, tuple[dict[str, float], dict[str, str]]]:
        tracking.log_study(toy, uri)
        return {run.info.run_name: (run.data.metrics, run.data.params) for run in logged(uri, "toy")}

    assert content(store) == content(fresh(template, "two"))


def test_flatten_names_every_setting_and_shortens_long_values() -> None:
    flat = writer.flatten({"train": {"lr": 0.1, "clip": None}, "seeds": [0, 1], "empty": {}, "long": "x" * 2000})
    assert flat.keys() == {"train.lr", "train.clip", "seeds", "empty", "long"}
    assert (flat["train.lr"], flat["train.clip"], flat["seeds"], flat["empty"]) == ("0.1", "null", "[0, 1]", "{}")
    assert len(flat["long"]) == writer.MAX_PARAM_LENGTH


def test_searches_and_ablations_are_parents_of_their_trials_and_variants(store: str, tmp_path: Path) -> None:
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
        "1": 78.0,
        "3": 80.1,
        "5": 79.5,
    }


def test_a_saved_view_lists_the_methods_of_a_task(store: str, tmp_path: Path) -> None:
    tasks = {"blobs": {"dataset": "blobs"}, "rings": {"dataset": "rings"}}
    folder = small(tmp_path / "results" / "toy", tasks=tasks)
    tracking.log_study(folder, store)
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("toy")
    view = json.loads(json.loads(experiment.tags["mlflow.sharedViewState.blobs"])["state"])
    assert "viewStateShareKey=rings" in experiment.tags["mlflow.note.content"]
    names = ("accuracy", *views.COLUMNS)  # MLflow orders them by name; more of them would hide the last ones
    assert {*view["selectedColumns"]} == {"tags.`verdict`", *(f"metrics.`{name}`" for name in names)}
    assert "a method's score is one of the two: `accuracy` (accuracy, %)." in experiment.tags["mlflow.note.content"]
    runs = client.search_runs([experiment.experiment_id], view["searchFilter"], order_by=[view["orderByKey"] + " DESC"])
    board = results.compute_tables(results.load_study(folder)).board.query("task == 'blobs'")
    assert [run.info.run_name for run in runs] == board["run"].tolist()
    assert [run.data.metrics["rank"] for run in runs] == [1, 2]


@pytest.mark.parametrize(
    ("key", "kind", "verdict"), [("pools", "method", "not federated"), ("leaks", "leaky", "trained on test rows")]
)
def test_a_run_that_may_not_be_compared_has_scores_and_no_rank(
    key: str, kind: str, verdict: str, store: str, toy: Path
) -> None:
    rng = np.random.default_rng(0)
    file = fake_results.write_run(toy, "blobs", "Central", 5.0, {}, (0, 1), 4, 6, rng) / "run.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {key: True}))
    assert len(tracking.log_study(toy, store).ids) == len(SKILL)
    runs = sorted(logged(store, "toy"), key=lambda run: run.info.run_name)
    parent, *seeds = (run for run in runs if run.info.run_name.startswith("blobs-central"))
    tags, metrics = parent.data.tags, parent.data.metrics
    assert (tags["kind"], tags["verdict"], len(seeds)) == (kind, verdict, 2)
    assert metrics["accuracy"] == pytest.approx(np.mean([run.data.metrics["accuracy"] for run in seeds]))
    assert not {"rank", "p_adjusted"} & metrics.keys()
    assert sorted(run.data.metrics["rank"] for run in runs if "rank" in run.data.metrics) == [1, 2]
    again = tracking.log_study(toy, store)
    assert (again.new, again.restored, again.superseded) == (0, 0, 0)


def test_the_machines_load_is_logged_as_system_metrics(store: str, toy: Path) -> None:
    parent = tracking.log_study(toy, store).ids[1]
    history = MlflowClient(store).get_metric_history(parent, "system/cpu_utilization_percentage")
    assert [(point.value, point.timestamp) for point in history] == [
        (50.0, 1_700_000_000_000),
        (99.0, 1_700_000_001_000),
    ]


def test_each_layer_of_a_graph_is_a_step(store: str, toy: Path) -> None:
    parent = tracking.log_study(toy, store).ids[0]
    names = [item.path for item in MlflowClient(store).list_artifacts(parent, "images")]
    for layer in ("conv1", "fc2", "all layers"):
        assert sum(layer.replace(" ", "%20") in name or layer in name for name in names) >= 2
