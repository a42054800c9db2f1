"""What `evaluate` does with result folders that params.yaml does not name."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedweave.pipelines.stages.evaluate import remove_undeclared_folders


def test_undeclared_results_are_removed_only_if_dvc_has_stored_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For example, results of `fw.compare(out="results/toy")` are kept. Declared results are kept too."""
    monkeypatch.chdir(tmp_path)
    Path("dvc.lock").write_text("stages:\n  train@old:\n    outs:\n    - path: results/toy/runs/old\n")
    study: Any = SimpleNamespace(name="toy", runs={"declared": 1}, ablate={})
    for content in ("first", "second"):
        for name in ("runs/declared", "runs/old", "runs/mine", "ablations/mine"):
            Path("results/toy", name).mkdir(parents=True, exist_ok=True)
            Path("results/toy", name, "run.json").write_text(content)
        remove_undeclared_folders(study)
    assert [path.name for path in Path("results/toy").glob("*/*")] == ["declared"]
    moved_records = {path.read_text() for path in Path(".fedweave/removed/results/toy/runs").rglob("run.json")}
    assert moved_records == {"first", "second"}
    assert "results/toy/runs/mine: is not in params.yaml; moved to .fedweave/removed/results/toy/runs/mine" in (
        capsys.readouterr().out
    )
