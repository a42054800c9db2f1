"""What the stage `code` records of a package or plug-in, on which the stage `sources` depends."""

from pathlib import Path

import pytest

from fedweave.files import read_table
from fedweave.pipelines.stages import code


def recorded_files(name: str) -> set[str]:
    """The files of a package in what the stage has written."""
    return {*read_table(Path(f"data/code/packages/{name}.csv"), ("file", "digest"), "")["file"]}


def test_folders_named_pipelines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project may lie in one, and a plug-in may have one; only fedweave's own stages are left out, and bytecode."""
    project = tmp_path / "pipelines" / "project"
    for name in ("own.py", "pipelines/steps.py", "__pycache__/own.cpython-311.pyc"):
        (project / "mybench" / name).parent.mkdir(parents=True, exist_ok=True)
        (project / "mybench" / name).write_bytes(b"A = 1\n")
    (project / "params.yaml").write_text("study: x\nuses: {mybench: mybench}\n")
    monkeypatch.chdir(project)
    code.main()
    assert recorded_files("mybench") == {"mybench/own.py", "mybench/pipelines/steps.py"}
    assert "fedweave/methods/ditto.py" in recorded_files("fedweave")
    assert not [name for name in recorded_files("fedweave") if name.startswith("fedweave/pipelines/")]
