"""Graphs that a study reads from files and runs: DVC knows the files, and a change of a file trains again."""

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from dvc.repo import Repo
from dvc.repo.reproduce import plan_repro

from fedweave.errors import BadInput
from fedweave.graphs import setting
from fedweave.pipelines.commands import studies
from fedweave.pipelines.scheduling.dvc_graph import stale_stages
from fedweave.pipelines.stages import graphs, names, sources
from fedweave.study import spec
from tests.servers import DIGITS, ROOT

RUN = "results/other/runs/digits-x"


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A params.yaml with every kind of stored graph, and the files that it names."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / RUN).mkdir(parents=True)
    np.savetxt("m.csv", np.eye(10), delimiter=",")
    np.savez(f"{RUN}/collaboration-0.npz", weights=np.eye(10)[None, None], rounds=np.array([1]))
    (tmp_path / RUN / "run.json").write_text("{}")
    words = {"own": "learned", "again": "replayed:digits-own", "other": "replayed:other/digits-x"}
    runs = {
        f"digits-{key}": {"task": "digits", "method": "fedaghn", "set": {"graph": word}} for key, word in words.items()
    }
    runs["digits-given"] = {"task": "digits", "method": "sfl"}
    ablate = {"graph": {"run": "digits-own", "variants": {"given": {"graph": "given:m.csv"}}}}
    methods = {"fedaghn": {}, "sfl": {"graph": "given:m.csv"}}
    made = {
        "study": "small",
        "seeds": [0],
        "datasets": ["digits"],
        "tasks": {"digits": DIGITS},
        "runs": runs,
        "methods": methods,
        "tune": {"trials": 0},
        "ablate": ablate,
    }
    return {**made, "graphs": graphs.graph_paths(made)}


def project(content: dict[str, Any]) -> Repo:
    """Make the current folder a project of DVC with this params.yaml."""
    Path("params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    Path("src/fedweave").mkdir(parents=True)
    shutil.copy(ROOT / "dvc.yaml", "dvc.yaml")
    return Repo.init(no_scm=True)


def written(content: dict[str, Any]) -> dict[str, str]:
    """The output of `sources` for the runs and ablations of this params.yaml."""
    Path("params.yaml").write_text(yaml.safe_dump(content))
    sources.main()
    folder = Path("results/small/code")
    return {file.stem: file.read_text() for part in ("runs", "ablations") for file in (folder / part).glob("*.json")}


def test_dvc_knows_the_files_of_graphs(content: dict[str, Any]) -> None:
    """The stages of graphs come before `sources`, which also runs again when settings of a method change."""
    assert {*content["graphs"].values()} == {"m.csv", RUN}
    repo = project(content)
    stages = {stage.name: stage for stage in repo.index.stages}
    files = {dep.def_path for name, stage in stages.items() if name.startswith("graphs@") for dep in stage.deps}
    assert {"m.csv", RUN} <= files
    sources_deps = {parent.name for parent in repo.index.graph.successors(stages["sources"])}
    assert {name for name in stages if name.startswith("graphs@")} <= sources_deps
    assert "params.yaml" in {dep.def_path for dep in stages["sources"].deps}
    repo.close()


def test_a_changed_graph_trains_the_runs_that_read_it_again(content: dict[str, Any]) -> None:
    """A file and a run of another study count by their content, a run of the same study by everything that determines
    it.
    """
    before = written(content)
    np.savetxt("m.csv", np.ones((10, 10)), delimiter=",")
    given = written(content)
    assert {name for name in before if before[name] != given[name]} == {"digits-given", "graph"}
    np.savez(f"{RUN}/collaboration-0.npz", weights=np.ones((1, 1, 10, 10)))
    other = written(content)
    assert {name for name in before if given[name] != other[name]} == {"digits-other"}
    content["runs"]["digits-own"]["set"]["train.lr"] = 0.123
    own = written(content)
    assert {name for name in before if other[name] != own[name]} == {
        "digits-again"
    }  # DVC compares the run's own settings


def test_the_digest_of_a_graph_changes_with_its_file(content: dict[str, Any]) -> None:
    Path("params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    for name, place in content["graphs"].items():
        graphs.main(name)
        table = Path("data/code/packages", f"{name}.csv")
        before = table.read_text()
        assert place in before
        if Path(place).is_dir():
            np.savez(f"{place}/collaboration-0.npz", weights=np.ones((1, 1, 10, 10)))
        else:
            np.savetxt(place, np.ones((10, 10)), delimiter=",")
        graphs.main(name)
        assert table.read_text() != before


def test_a_graph_that_params_do_not_name_is_refused(content: dict[str, Any]) -> None:
    """DVC would not notice a change of the file."""
    del content["graphs"]
    with pytest.raises(BadInput, match=r"params\.yaml: graphs: m\.csv is missing, .* write graphs: \{graph-.*: m\.csv"):
        written({**content, "runs": {"digits-given": content["runs"]["digits-given"]}, "ablate": {}, "margins": {}})


WRONG = {
    "given:none.csv": ["no such file", "none.csv"],
    "replayed:nope": ["holds no finished run", "train it first"],
    "replayed:other/digits-y": ["results/other/runs/digits-y holds no finished run"],
    "given:small.csv": ["[5, 5]", "needs [10, 10]"],
    "given:wrong.npy": ["[10]", "needs [10, 10]"],
    "given:negative.csv": ["row 2, column 3 is -0.5"],
    "given:nan.csv": ["row 2, column 3 is nan"],
    "given:header.csv": ["the first line has names, and no other line begins with one of them", "and no names or"],
    "given:damaged.npz": ["damaged"],
    "replayed:digits-fedavg": ["fedavg has no collaboration graph"],
    "replayed:digits-bad": ["this is the run itself"],
    "replayed:digits-late": ["trained after", "write digits-bad below digits-late"],
}


def write_wrong() -> None:
    """Write files that are not graphs of ten clients."""
    square = np.eye(10)
    np.savetxt("small.csv", square[:5, :5], delimiter=",")
    np.save("wrong.npy", square[0])
    for name, value in {"negative": -0.5, "nan": np.nan}.items():
        square[1, 2] = value
        np.savetxt(f"{name}.csv", square, delimiter=",")
    Path("header.csv").write_text("a,b\n1,2\n")
    Path("damaged.npz").write_bytes(b"PK")


def study_file(*methods: str) -> str:
    """A study of the digits with these entries of `methods`."""
    entries = "".join(f"      - {entry}\n" for entry in methods)
    return f"seeds: [0]\nwithout_controls: a test\ntasks:\n  digits:\n    base: digits\n    methods:\n{entries}"


@pytest.mark.parametrize("word", WRONG)
def test_wrong_graphs_are_refused_before_anything_is_trained(word: str, content: dict[str, Any]) -> None:
    """`fedweave study use` and the first stage refuse them. The message has the run, its setting as written, and the
    way out.
    """
    write_wrong()
    Path("studies").mkdir()
    shutil.copy(ROOT / "studies" / "base.yaml", "studies/base.yaml")
    bad = f"bad: {{method: fedaghn, set: {{graph: {word!r}}}}}"
    Path("mine.yaml").write_text(study_file("fedavg", bad, "late: {method: fedaghn}"))
    with pytest.raises(BadInput) as refused:
        studies.use("mine.yaml")
    assert str(refused.value).startswith(f"mine.yaml: runs.digits-bad.graph: {word!r}: ")
    assert [part for part in WRONG[word] if part not in str(refused.value)] == []
    assert not Path("params.yaml").exists()
    Path("params.yaml").write_text(studies.dump(studies.select_study("mine.yaml", None, None)))
    with pytest.raises(BadInput) as edited:
        names.main()
    assert str(edited.value) == str(refused.value).replace("mine.yaml", "params.yaml", 1)
    assert not Path("data").exists()


def test_valid_graphs_are_accepted(content: dict[str, Any]) -> None:
    """A word that a method defines is not a file."""
    assert not setting.stored_graphs({"methods": {"shn": {"graph": "given"}}})
    Path("params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    names.main()
    assert Path("data/code/names.txt").exists()


def test_a_replayed_run_with_another_number_of_clients_is_refused(content: dict[str, Any]) -> None:
    content["tasks"]["few"] = {**DIGITS, "partition": {**DIGITS["partition"], "clients": 4}}
    content["runs"]["digits-again"]["task"] = "few"
    with pytest.raises(BadInput, match=r"'replayed:digits-own': its graph is of 10 clients, and this run has 4"):
        graphs.check(spec.parse(content), "params.yaml")


def test_a_searched_run_cannot_replay_a_run_of_the_same_study(content: dict[str, Any]) -> None:
    """Searches come before training. A run that differs in its graph alone uses the other run's values."""
    content["tune"] = {"trials": 2, "spaces": {"fedaghn": {"train.lr": {"low": 0.1, "high": 0.2}}}}
    graphs.check(spec.parse(content), "params.yaml")
    content["runs"]["digits-again"]["set"]["train.epochs"] = 2
    with pytest.raises(BadInput, match=r"runs\.digits-again\.graph: 'replayed:digits-own'.*tune\.trials: 0"):
        graphs.check(spec.parse(content), "params.yaml")


def test_graphs_of_search_spaces_and_variants_are_checked(content: dict[str, Any]) -> None:
    del content["runs"]["digits-again"]
    spaces = {"sfl": {"graph": {"choices": ["given:m.csv", "given:none.csv"]}}}
    with pytest.raises(BadInput, match=r"^params\.yaml: tune\.spaces\.sfl\.graph: 'given:none\.csv'"):
        graphs.check(spec.parse({**content, "tune": {"trials": 2, "spaces": spaces}}), "params.yaml")
    content["ablate"]["graph"]["variants"]["other"] = {"graph": "given:none.csv"}
    with pytest.raises(BadInput, match=r"^params\.yaml: ablate\.graph\.other\.graph: 'given:none\.csv'"):
        graphs.check(spec.parse(content), "params.yaml")


def test_a_file_that_became_invalid_is_refused_by_its_own_stage(content: dict[str, Any]) -> None:
    """The first stage does not run again while params.yaml is unchanged."""
    Path("params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    Path("m.csv").write_text("")
    name = next(key for key, place in content["graphs"].items() if place == "m.csv")
    with pytest.raises(BadInput, match=r"runs\.digits-given\.graph: 'given:m\.csv': the file is empty"):
        graphs.main(name)


def test_a_replayed_run_is_trained_first(content: dict[str, Any]) -> None:
    """`dvc repro` follows the order of the list. Flows train in parallel, and wait for the replayed run."""
    repo = project(content)
    order = [stage.name for stage in plan_repro(repo.index.graph)]
    assert order.index("train@digits-own") < order.index("train@digits-again")
    repo.close()
    needs = {stage.name: stage.needs for stage in stale_stages()}
    assert "train@digits-own" in needs["train@digits-again"]
    assert "train@digits-own" not in needs["train@digits-other"]


def digests(content: dict[str, Any], name: str) -> str:
    """The output of the stage `graphs` for the entry `name`."""
    Path("params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    graphs.main(name)
    return Path("data/code/packages", f"{name}.csv").read_text()


def test_a_changed_file_of_weights_trains_the_runs_that_start_from_it_again(content: dict[str, Any]) -> None:
    """DVC knows the file; only runs and variants whose model reads it have other digests."""
    tensors = {"vectors": torch.zeros(4, 3)}
    torch.save(tensors, "vectors.pt")
    model = {"name": "word_vectors", "weights": "vectors.pt"}
    content["tasks"]["texts"] = {**DIGITS, "model": model}
    content["runs"] |= {"texts-fedavg": {"task": "texts", "method": "fedavg"}}
    content["ablate"]["start"] = {"run": "digits-own", "variants": {"v": {f"model.{k}": v for k, v in model.items()}}}
    content["graphs"] = graphs.graph_paths(content)
    (name,) = (name for name, path in content["graphs"].items() if path == "vectors.pt")
    before, first = written(content), digests(content, name)
    torch.save({"vectors": tensors["vectors"] + 1}, "vectors.pt")
    os.utime("vectors.pt", (1, 1))
    after = written(content)
    assert {key for key in before if before[key] != after[key]} == {"texts-fedavg", "start"}
    assert digests(content, name) != first
    del content["graphs"][name]
    with pytest.raises(BadInput, match=r"graphs: vectors\.pt is missing, .* write graphs: \{weights-.*: vectors\.pt\}"):
        written(content)
