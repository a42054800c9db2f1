"""Names of pools and deployments, without a server."""

from pathlib import Path

import pytest

from fedweave.errors import BadInput
from fedweave.pipelines.scheduling import pool_names, workers
from fedweave.study.config import read_yaml
from tests.servers import ROOT


@pytest.mark.parametrize("name", ["Vision", "a b", "-a", "prefect-a", "a" * 41, "ä", "a\n"])
def test_an_invalid_name_of_a_pool_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal comes before a server is asked."""
    monkeypatch.setenv(pool_names.VARIABLE, name)
    with pytest.raises(BadInput, match=r"^FEDWEAVE_POOL: .* is not a name of a pool; give at most 40 lower-case"):
        pool_names.current_pool()
    for function in (workers.deploy, workers.worker):
        with pytest.raises(BadInput, match=r"^FEDWEAVE_POOL: "):
            function(pool=name)


def test_an_unnamed_pool_has_the_names_of_prefect_yaml(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then `prefect deploy` and `fedweave deploy` do the same."""
    monkeypatch.chdir(ROOT)
    assert workers.deployments(pool_names.DEFAULT) == read_yaml(ROOT / "prefect.yaml")


def test_a_named_pool_is_in_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parameters, schedules and places in queues are those of prefect.yaml."""
    monkeypatch.chdir(ROOT)
    plain, named = (workers.deployments(name)["deployments"] for name in (pool_names.DEFAULT, "vision"))
    for a, b in zip(plain, named, strict=True):
        assert b["name"] == f"{a['name']}-vision"
        assert b["tags"] == [
            *a["tags"][:-1],
            "vision",
        ]  # messages are selected by the tag, so it must not be that of another project
        assert b["work_pool"] == {**a["work_pool"], "name": "vision"}
        assert {**a, **{key: b[key] for key in ("name", "tags", "work_pool")}} == b


@pytest.mark.parametrize("text", [None, "{}\n", "name: a\ndeployments: []\n"])
def test_a_project_without_deployments_is_refused(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if text:
        Path("prefect.yaml").write_text(text)
    with pytest.raises(BadInput, match=r"prefect\.yaml"):
        workers.deployments(pool_names.DEFAULT)
