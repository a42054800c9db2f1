"""Two projects on one Prefect server: each has its own pool, deployments, flow runs and workers."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import toy_project

from fedweave.errors import BadInput
from fedweave.pipelines.mlflow_records import owner as projects
from fedweave.pipelines.scheduling import pool, pool_names, pool_owner, workers
from tests.servers import ROOT, prefect_server, process, python, until

pytestmark = [pytest.mark.acceptance, pytest.mark.xdist_group("prefect"), pytest.mark.timeout(900)]
MAIN = "fedweave.pipelines.commands.main"
PAGE = (ROOT / "docs/workers.md").read_text()
TYPED = re.search(r"^## Several projects.*?```\n# .*?\n(.*?)```", PAGE, re.M | re.S)
DEPLOY, WORK, RUN = TYPED[1].splitlines() if TYPED else ("", "", "")
FREE = "prefect variable unset fedweave-vision"


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server for the tests of this file, because other files leave a pool on theirs."""
    with prefect_server(tmp_path_factory.mktemp("shared")) as address:
        yield address


@pytest.fixture
def client(api: str) -> Iterator[Any]:
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_API_URL, temporary_settings

    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as opened:
        yield opened


@pytest.fixture(autouse=True)
def unnamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of the tests names no pool."""
    monkeypatch.delenv(pool_names.VARIABLE, raising=False)


class Folder:
    """A toy project on the server."""

    def __init__(self, place: Path, api: str) -> None:
        self.place = place
        place.mkdir()
        toy_project.make(place)
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.env = {"PREFECT_API_URL": api, "PATH": path, "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}

    def type(self, line: str, code: int = 0) -> str:
        """Runs a command as a user types it. Returns its output."""
        done = python(*command(line)[1:], folder=self.place, **self.env)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    @contextmanager
    def works(self, line: str) -> Iterator[None]:
        """Runs a worker in this folder during the block."""
        with process(command(line), self.place, self.env, self.place.parent / f"{self.place.name}.log"):
            yield

    @property
    def finished(self) -> bool:
        """Whether the stages of the project have run."""
        return (self.place / "made-a.txt").is_file() and (self.place / "made-b.txt").is_file()


def command(line: str) -> list[str]:
    """The arguments of a typed line: `fedweave` of this checkout, or another program of the environment."""
    program, *words = shlex.split(line)
    return [sys.executable, "-m", {"fedweave": MAIN}.get(program, program), *words]


def records(client: Any, name: str) -> dict[str, Any]:
    """The records of a pool's project on the server: limits, deployments with their schedules, runs, automations."""
    from prefect.client.schemas.filters import FlowRunFilter

    mine = [deployment for deployment in client.read_deployments() if deployment.work_pool_name == name]
    filters = FlowRunFilter.model_validate({"deployment_id": {"any_": [deployment.id for deployment in mine]}})
    dumped = [
        one.model_dump(include={"id", "name", "tags", "parameters", "schedules", "work_queue_name", "updated"})
        for one in sorted(mine, key=lambda one: one.name)
    ]
    automations = client.read_automations_by_name(pool_names.deployment("fedweave: lost workers", name))
    return {
        "pool": client.read_work_pool(name).description,
        "owner": client.read_variable_by_name(f"fedweave-{name}").value,
        "queues": {one.name: one.concurrency_limit for one in client.read_work_queues(work_pool_name=name)},
        "deployments": dumped,
        "runs": sorted((str(run.id), run.state_name) for run in client.read_flow_runs(flow_run_filter=filters)),
        "automations": [one.model_dump(include={"id", "trigger"}) for one in automations],
    }


def test_each_worker_executes_the_runs_of_its_own_project(api: str, client: Any, tmp_path: Path) -> None:
    """The first project has the names of a project without a named pool. Deploying the second one changes nothing of
    it. The second one runs the commands of docs/workers.md. None of its runs starts while only the first one has a
    worker.
    """
    first, second = Folder(tmp_path / "first", api), Folder(tmp_path / "second", api)
    assert first.type('fedweave deploy --schedule "0 2 * * *"').splitlines() == [
        "deployments reproduce, nightly, tune, stage; pool gpu-pool: one training stage at once",
        "next: fedweave worker; on every other host: fedweave worker --role stages",
        f"then: PREFECT_API_URL={api} prefect deployment run reproduce/reproduce",
        "scheduled: nightly at 0 2 * * * UTC",
    ]
    assert until(lambda: bool(records(client, "gpu-pool")["runs"]))  # future nights
    before = records(client, "gpu-pool")
    (line,) = second.type("fedweave deploy", 2).splitlines()
    assert line.startswith(f"error: pool gpu-pool: belongs to the project in {first.place} on ")
    assert "fedweave deploy --pool NAME" in line
    second.type(DEPLOY)
    known = {entry["id"] for entry in before["deployments"]}
    mine = records(client, "vision")
    assert [entry["name"] for entry in mine["deployments"]] == [
        f"{name}-vision" for name in ("nightly", "reproduce", "stage", "tune")
    ]
    assert not known & {entry["id"] for entry in mine["deployments"]}
    assert all("vision" in entry["tags"] for entry in mine["deployments"])
    assert (mine["queues"]["stages"], before["queues"]["stages"]) == (2, 1)
    assert str(second.place) in mine["pool"]
    assert len(mine["automations"]) == 1
    after = records(client, "gpu-pool")
    assert {*before.pop("runs")} <= {*after.pop("runs")}  # the server schedules more nights by itself
    assert after == before

    for deployment in client.read_deployments():
        if deployment.schedules:
            client.pause_deployment(deployment.id)  # the test may run at the hour of the nightly flow
    where = " -p where=workers -p 'targets=[\"make\"]'"
    with first.works("fedweave worker"):
        second.type(RUN + where)
        first.type("prefect deployment run reproduce/reproduce" + where)
        assert until(lambda: first.finished, 180), (tmp_path / "first.log").read_text()[-3000:]
        assert toy_project.seen(second.place) == []
        assert len(toy_project.seen(first.place)) == 2
        with second.works(WORK):
            assert until(lambda: second.finished, 180), (tmp_path / "second.log").read_text()[-3000:]
    assert len(toy_project.seen(first.place)) == len(toy_project.seen(second.place)) == 2

    (first.place / ".env").write_text(named := "FEDWEAVE_POOL=vision\n")
    assert f"The line `{named.strip()}` in `.env` does this" in PAGE
    assert f"pool vision: belongs to the project in {second.place} on " in first.type("fedweave worker", 2)
    assert f"`{FREE}` releases a pool" in PAGE
    first.type(FREE)
    assert client.read_variable_by_name("fedweave-vision") is None


@pytest.fixture
def owned(client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A pool that belongs to the folder `owner`, with one commit of git. The current folder is next to it."""
    name = re.sub("[^a-z0-9]+", "-", tmp_path.name).strip("-")
    commit(tmp_path / "owner")
    monkeypatch.chdir(tmp_path / "owner")
    pool_owner.claim(client, name)
    (tmp_path / "beside").mkdir()
    monkeypatch.chdir(tmp_path / "beside")
    return name


def commit(folder: Path) -> None:
    """A new repository with one commit."""
    folder.mkdir()
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "--quiet"], [*identity, "commit", "--quiet", "--allow-empty", "-m", folder.name]):
        subprocess.run(["git", *words], cwd=folder, check=True)


@pytest.mark.parametrize("git", [False, True])
def test_the_folder_of_another_project_is_refused(owned: str, client: Any, tmp_path: Path, git: bool) -> None:
    """In one line, before any work, with the owner and the way out. A folder that names the pool is a host of its
    project.
    """
    if git:
        (tmp_path / "beside").rmdir()
        commit(tmp_path / "beside")
        os.chdir(tmp_path / "beside")
    theirs = re.escape(f"pool {owned}: belongs to the project in {tmp_path / 'owner'} on ")
    with pytest.raises(BadInput, match=f"^{theirs}.*; deploy this project under a name of its own: fedweave deploy"):
        pool_owner.claim(client, owned)
    with pytest.raises(BadInput, match=f"^{theirs}.*: fedweave worker --role stages; another project needs a pool"):
        pool_owner.check_flows(client, owned)
    with pytest.raises(BadInput, match=f"^{theirs}.*is not a clone of it .*; set FEDWEAVE_POOL in .env to the pool of"):
        pool_owner.check_stages(client, owned, is_named=False)
    assert pool_owner.check_stages(client, owned, is_named=True).folder == str(tmp_path / "owner")


def test_a_clone_may_run_stages_but_no_flows(
    owned: str, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(["git", "clone", "--quiet", tmp_path / "owner", tmp_path / "clone"], check=True)
    monkeypatch.chdir(tmp_path / "clone")
    assert pool_owner.check_stages(client, owned, is_named=False).folder == str(tmp_path / "owner")
    with pytest.raises(BadInput, match="its flows run there only; in a clone of that project: fedweave worker --role"):
        pool_owner.check_flows(client, owned)
    Path("part").mkdir()  # a project in a folder of the same repository
    monkeypatch.chdir("part")
    with pytest.raises(BadInput, match="is not a clone of it"):
        pool_owner.check_stages(client, owned, is_named=False)


def test_a_folder_stays_the_owner_when_it_moves(
    owned: str, client: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds also without the file that has its name. A copy next to it is another folder."""
    monkeypatch.chdir(tmp_path / "owner")
    projects.FILE.unlink()
    pool_owner.check_flows(client, owned)
    pool_owner.claim(client, owned)
    shutil.copytree(tmp_path / "owner", tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    with pytest.raises(BadInput, match="belongs to the project"):
        pool_owner.claim(client, owned)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner").rename(tmp_path / "moved")
    shutil.rmtree(tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "moved")
    pool_owner.check_flows(client, owned)
    pool_owner.claim(client, owned)
    assert client.read_variable_by_name(f"fedweave-{owned}").value["folder"] == str(tmp_path / "moved")


def test_a_pool_that_is_not_deployed_is_named(
    owned: str, client: Any, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers of each role and a flow that sends stages refuse it. None of them starts."""
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("it works"))
    monkeypatch.setenv("PREFECT_API_URL", api)
    message = rf"^pool visoin: nobody has deployed it at this server \(deployed: .*{owned}.*\); name another one"
    for role in ("both", "writer", "stages"):
        with pytest.raises(BadInput, match=message):
            workers.worker(role, pool="visoin")
    monkeypatch.setenv(pool_names.VARIABLE, "visoin")
    with pytest.raises(BadInput, match=message):
        pool.check_project({})


def test_a_variable_that_was_changed_by_hand_is_named(owned: str, client: Any) -> None:
    from prefect.client.schemas.actions import VariableUpdate

    fields = asdict(pool_owner.Owner("a", "b", "c", "d", "e"))
    for value in ("text", {**fields, "more": ""}, {**fields, "folder": 1}):
        client.update_variable(VariableUpdate(name=f"fedweave-{owned}", value=value))
        with pytest.raises(BadInput, match=f"variable fedweave-{owned}: does not hold .*unset fedweave-{owned}$"):
            pool_owner.claim(client, owned)
    client.delete_variable_by_name(f"fedweave-{owned}")
    assert pool_owner.claim(client, owned).folder == str(Path.cwd())
