"""Graphs that a study reads from files and runs: what changes them trains again, and DVC knows the files."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from dvc.repo import Repo

from fedweave.errors import BadInput
from fedweave.pipelines.stages import graphs, sources
from tests.servers import DIGITS, ROOT

RUN = "results/other/runs/digits-x"


@pytest.fixture
def content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A params.yaml with every kind of stored graph, and the files it names."""
    monkeypatch.chdir(tmp_path)
    for file in (tmp_path / "m.csv", tmp_path / RUN / "collaboration-0.npz"):
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savetxt(file, np.eye(10), delimiter=",")
    (tmp_path / RUN / "run.json").write_text("{}")
    words = {"own": "learned", "again": "replayed:digits-own", "other": "replayed:other/digits-x"}
    runs = {f"digits-{key}": {"task": "digits", "method": "fedaghn", "set": {"graph": word}}
            for key, word in words.items()}  # fmt: skip
    runs["digits-given"] = {"task": "digits", "method": "sfl"}
    ablate = {"graph": {"run": "digits-own", "variants": {"given": {"graph": "given:m.csv"}}}}
    methods = {"fedaghn": {}, "sfl": {"graph": "given:m.csv"}}
    made = {"study": "small", "seeds": [0], "datasets": ["digits"], "tasks": {"digits": DIGITS}, "runs": runs,
            "methods": methods, "tune": {"trials": 0}, "ablate": ablate}  # fmt: skip
    return {**made, "graphs": graphs.named(made)}


def written(content: dict[str, Any]) -> dict[str, str]:
    """What `sources` writes for the runs and ablations of this params.yaml."""
    Path("params.yaml").write_text(yaml.safe_dump(content))
    sources.main()
    folder = Path("results/small/code")
    return {file.stem: file.read_text() for part in ("runs", "ablations") for file in (folder / part).glob("*.json")}


def test_dvc_knows_the_files_of_graphs(content: dict[str, Any]) -> None:
    """They come before `sources`, which runs again also when a method's settings change."""
    assert {*content["graphs"].values()} == {"m.csv", RUN}
    Path("params.yaml").write_text(yaml.safe_dump(content))
    Path("src/fedweave").mkdir(parents=True)
    shutil.copy(ROOT / "dvc.yaml", "dvc.yaml")
    repo = Repo.init(no_scm=True)
    stages = {stage.name: stage for stage in repo.index.stages}
    files = {dep.def_path for name, stage in stages.items() if name.startswith("graphs@") for dep in stage.deps}
    assert {"m.csv", RUN} <= files
    sources_deps = {parent.name for parent in repo.index.graph.successors(stages["sources"])}
    assert {name for name in stages if name.startswith("graphs@")} <= sources_deps
    assert "params.yaml" in {dep.def_path for dep in stages["sources"].deps}
    repo.close()


def test_a_changed_graph_trains_its_readers_again(content: dict[str, Any]) -> None:
    """A file and another study's run by what they hold, a run of the same study by all that decides about it."""
    before = written(content)
    np.savetxt("m.csv", np.ones((10, 10)), delimiter=",")
    given = written(content)
    assert {name for name in before if before[name] != given[name]} == {"digits-given", "graph"}
    np.savetxt(f"{RUN}/collaboration-0.npz", np.ones((10, 10)))
    other = written(content)
    assert {name for name in before if given[name] != other[name]} == {"digits-other"}
    content["runs"]["digits-own"]["set"]["train.lr"] = 0.123
    own = written(content)
    assert {name for name in before if other[name] != own[name]} == {"digits-again"}  # its own settings DVC compares


def test_the_digests_of_a_graph(content: dict[str, Any]) -> None:
    """Change where its file does."""
    Path("params.yaml").write_text(yaml.safe_dump(content))
    for name, place in content["graphs"].items():
        graphs.main(name)
        table = Path("data/code/packages", f"{name}.csv")
        before = table.read_text()
        assert place in before
        file = next(Path(place).glob("*.npz")) if Path(place).is_dir() else Path(place)
        file.write_text("1\n")
        graphs.main(name)
        assert table.read_text() != before


def test_a_graph_that_params_do_not_name(content: dict[str, Any]) -> None:
    """DVC would not notice a change of the file."""
    del content["graphs"]
    with pytest.raises(BadInput, match=r"params\.yaml: graphs: m\.csv is missing, .* write graphs: \{graph-.*: m\.csv"):
        written({**content, "runs": {"digits-given": content["runs"]["digits-given"]}, "ablate": {}})
