"""What `evaluate` does with folders of results that params.yaml does not name."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fedweave.pipelines.stages.evaluate import remove_undeclared_folders


def test_what_dvc_has_not_stored_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Such as what `fw.compare(out="results/toy")` has written; what DVC's cache has goes, what is declared stays."""
    monkeypatch.chdir(tmp_path)
    Path("dvc.lock").write_text("stages:\n  train@old:\n    outs:\n    - path: results/toy/runs/old\n")
    study: Any = SimpleNamespace(name="toy", runs={"declared": 1}, ablate={})
    for content in ("first", "second"):
        for name in ("runs/declared", "runs/old", "runs/mine", "ablations/mine"):
            Path("results/toy", name).mkdir(parents=True, exist_ok=True)
            Path("results/toy", name, "run.json").write_text(content)
        remove_undeclared_folders(study)
    assert [path.name for path in Path("results/toy").glob("*/*")] == ["declared"]
    kept = {path.read_text() for path in Path(".fedweave/removed/results/toy/runs").rglob("run.json")}
    assert kept == {"first", "second"}
    assert "results/toy/runs/mine: is not in params.yaml; moved to .fedweave/removed/results/toy/runs/mine" in (
        capsys.readouterr().out
    )
