"""The files of a package or plug-in that the stage `code` records. The stage `sources` depends on them."""

from pathlib import Path

import pytest

from fedweave.files.atomic import read_table
from fedweave.pipelines.stages import code


def recorded_files(name: str) -> set[str]:
    """The files of a package in the output of the stage."""
    return {*read_table(Path(f"data/code/packages/{name}.csv"), ("file", "digest"), "")["file"]}


def test_only_fedweaves_own_pipelines_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project may be inside a folder `pipelines`, and a plug-in may have one. Bytecode is left out too."""
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
