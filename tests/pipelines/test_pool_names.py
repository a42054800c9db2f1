"""Names of pools and deployments, without a server."""

import os
from importlib.util import find_spec
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


def test_the_server_is_known_before_a_schedule_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check imports Prefect, which reads the address once: a later one made it register at a temporary server."""
    monkeypatch.setenv("PREFECT_API_URL", "")
    monkeypatch.setattr(workers, "_server_address", lambda: "http://server/api")

    def check(_cron: str) -> None:
        raise BadInput(f"the server is {os.environ['PREFECT_API_URL']}")

    monkeypatch.setattr(workers, "_check_schedule", check)
    with pytest.raises(BadInput, match="the server is http://server/api"):
        workers.deploy(schedule="0 2 * * *")


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


def test_a_life_has_a_deployment_only_where_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The schedule is for it then; the folder must be that of a life in the project."""
    monkeypatch.chdir(tmp_path)
    Path("prefect.yaml").write_bytes((ROOT / "prefect.yaml").read_bytes())
    Path("lives", "flights").mkdir(parents=True)
    with pytest.raises(BadInput, match=r"--life: 'lives/flights' is no life in this project"):
        workers.deployments("vision", life="lives/flights")
    Path("lives", "flights", "life.json").touch()
    *others, night = workers.deployments("vision", "0 2 * * *", "lives/flights")["deployments"]
    assert others == workers.deployments("vision")["deployments"]
    assert (night["name"], night["parameters"]) == ("life-lives-flights-vision", {"life": "lives/flights"})
    assert night["schedules"] == [{"cron": "0 2 * * *", "timezone": "UTC", "active": True}]
    assert night["work_pool"] == {"name": "vision", "work_queue_name": "writer"}
    module, _, name = night["entrypoint"].rpartition(".")
    assert f"def {name}(life: str)" in Path(str(getattr(find_spec(module), "origin", ""))).read_text(encoding="utf-8")


@pytest.mark.parametrize("text", [None, "{}\n", "name: a\ndeployments: []\n"])
def test_a_project_without_deployments_is_refused(
    text: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    if text:
        Path("prefect.yaml").write_text(text)
    with pytest.raises(BadInput, match=r"prefect\.yaml"):
        workers.deployments(pool_names.DEFAULT)
