"""Names in a params.yaml edited by hand: `dvc repro` passes none of them to a shell and removes nothing."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedweave.errors import BadInput
from fedweave.pipelines.stages import names
from tests.servers import Project
from tests.small_project import params

pytestmark = [pytest.mark.xdist_group("code"), pytest.mark.timeout(600)]

SHELL = "x' $(touch pwn) '"
ABOVE = f"{SHELL}/../digits"  # a path to files that an earlier run may have left
DIGITS: dict[str, Any] = yaml.safe_load(params())["tasks"]["digits"]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A project with the files that an earlier run leaves, and a table of the user."""
    prepared = Project(tmp_path_factory.mktemp("names"), params())
    (prepared.folder / "mine.csv").write_text("a\n")
    for stage in ("names", "code@fedweave", "sources"):
        prepared.python("dvc", "repro", "-s", stage)
    return prepared


CHANGES = [
    {"uses": {SHELL: "src/fedweave/errors.py"}},
    {"datasets": [ABOVE, "digits-graph"]},
    {"tasks": {ABOVE: DIGITS}, "runs": {}},
    {"graphs": {SHELL: "mine.csv"}},
    {"uses": {"../../../mine": "src/fedweave/errors.py"}},
    {"uses": {f"{SHELL}/../../../../mine": "src/fedweave/errors.py"}},
    {"datasets": ["digits", "digits-graph", SHELL]},
    {"datasets": ["digits\n touch pwn\n", "digits-graph"]},
    {"tasks": {SHELL: DIGITS}, "runs": {}},
    {"runs": {SHELL: {"task": "digits", "method": "fedavg"}}},
    {"runs": {"a": {"task": ABOVE, "method": "fedavg"}}},
    {"ablate": {SHELL: {"run": "digits-fedavg", "variants": {}}}},
    {"ablate": {ABOVE: {"run": "digits-fedavg", "variants": {}}}},
    {"study": SHELL},
    {"study": "../../x"},
]


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: str(changes)[:60])
def test_the_first_stage_refuses_names(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(yaml.safe_dump(yaml.safe_load(params()) | changes))
    with pytest.raises(BadInput, match=r"^params\.yaml: "):
        names.main()
    assert not Path("data").exists()


def test_dvc_runs_no_text_of_a_name(tmp_path: Path) -> None:
    """Nothing has run in the project. The first stage refuses the file before any other stage starts."""
    project = Project(tmp_path / "project", "")
    (project.folder / "mine.csv").write_text("a\n")
    assert_refused(project, CHANGES[0])


@pytest.mark.acceptance
@pytest.mark.parametrize("changes", CHANGES[:3], ids=lambda changes: str(changes)[:60])
def test_dvc_runs_no_text_of_a_name_after_an_earlier_run(changes: dict[str, Any], project: Project) -> None:
    """Here a name that is a path leads to an existing file."""
    assert_refused(project, changes)


def assert_refused(project: Project, changes: dict[str, Any]) -> None:
    """The first stage refuses the name. No other stage runs, no shell gets the name, and no file is lost."""
    (project.folder / "params.yaml").write_text(yaml.safe_dump(yaml.safe_load(params()) | changes))
    done = project.python("dvc", "repro", check=False)
    output = done.stdout + done.stderr
    assert done.returncode != 0
    assert output.count("error: params.yaml: ") == 1
    assert re.findall(r"Running stage '([^']*)'", output) == ["names"]
    assert not [*project.folder.rglob("pwn")]
    assert (project.folder / "mine.csv").exists()
