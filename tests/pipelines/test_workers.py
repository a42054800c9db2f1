"""Stages that run elsewhere: work orders from hand to hand, workers in clones of their own, and a cancelled flow."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import toy_project
from dvc.repo import Repo
from servers import ROOT, Project, alive, answers, free_port, process, until

from fedweave.errors import BadInput
from fedweave.pipelines.scheduling import pool, remote_stages, workers
from fedweave.pipelines.scheduling.dvc_graph import stale_stages

pytestmark = [pytest.mark.xdist_group("prefect"), pytest.mark.timeout(900)]
HOME = {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)])}


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A writer's folder where all is ready for the stage `join`, and a clone; both know one DVC remote.

    The writer's is current.
    """
    monkeypatch.setenv("DVC_NO_ANALYTICS", "1")
    made = tmp_path / "writer", tmp_path / "clone"
    for folder in made:
        folder.mkdir()
        toy_project.make(folder)
        remote = f"[core]\n    remote = shared\n['remote \"shared\"']\n    url = {tmp_path / 'remote'}\n"
        (folder / ".dvc" / "config.local").write_text(remote)
    monkeypatch.chdir(made[0])
    with Repo() as repo:
        repo.reproduce(["make@a", "make@b", "aside"])
    return made


def work(work_order: remote_stages.WorkOrder) -> list[dict[str, str]]:
    """What a worker does in the current folder."""
    with remote_stages.prepare(work_order) as command:
        subprocess.run(command, check=True, capture_output=True)
    return remote_stages.deliver(work_order)


def test_outputs_travel_through_the_remote(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The clone had none of the inputs; the writer's dvc.lock is as if the stage had run there."""
    writer, clone = folders
    with remote_stages.issue("join") as work_order:
        monkeypatch.chdir(clone)
        assert not work_order.here
        assert not Path("made-a.txt").exists()
        made = work(work_order)
        assert Path("made-a.txt").read_text() == (writer / "made-a.txt").read_text()
        monkeypatch.chdir(writer)
        assert not Path("joined.txt").exists()
        remote_stages.accept(work_order, made)
    assert Path("joined.txt").read_bytes() == (clone / "joined.txt").read_bytes()
    assert stale_stages() == []


def test_a_shared_folder_needs_no_remote(folders: tuple[Path, Path]) -> None:
    """The worker runs the bare command; what lay there before is gone first, as DVC would have it."""
    Path("joined.txt").write_text("old")
    with remote_stages.issue("join") as work_order:
        assert work_order.here
        assert work(work_order) == []
        remote_stages.accept(work_order, [])
    assert not work_order.here
    assert stale_stages() == []


def test_a_clone_follows_the_writers_parameters(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Another study in the clone does not leak into the stage."""
    (folders[1] / "params.yaml").write_text("names: [a, b]\nsize: 9\nstudy: other\n")
    with remote_stages.issue("join") as work_order:
        monkeypatch.chdir(folders[1])
        work(work_order)
    assert "size: 1" in Path("joined.txt").read_text()


ATTACKS = [
    ({"token": "../../README.md"}, "32 hexadecimal digits"),
    ({"token": "../params.yaml"}, "32 hexadecimal digits"),
    ({"token": "A" * 32}, "32 hexadecimal digits"),
    ({"token": "0" * 31 + "\n"}, "32 hexadecimal digits"),
    ({"stage": "--help"}, "is not the name of a stage"),
    ({"stage": "join; id"}, "is not the name of a stage"),
    ({"stage": "../other/dvc.yaml:join"}, "is not the name of a stage"),
    ({"stage": "joim"}, "dvc.yaml: stages: 'joim' is unknown; did you mean 'join'"),
    ({"code": "0" * 16}, "check out the same commit"),
    ({"params": "study: ../../x\n"}, "study: '../../x' is not a name"),
    ({"params": "study: toy\ndatasets: [a; id]\n"}, "datasets: 'a; id' is not a name"),
    ({"params": "study: toy\ntasks: {$(id): {}}\n"}, "is not a name"),
    ({"params": "study: toy\nruns: {a: {task: ../../x, method: local}}\n"}, "runs.a.task: '../../x' is not a name"),
    ({"params": "- 1\n"}, "params: is not a mapping"),
    ({"params": "["}, "not YAML"),
]


@pytest.mark.parametrize(("changes", "words"), ATTACKS)
@pytest.mark.parametrize("where", ["writer", "clone"])
def test_a_work_order_that_nobody_issued(
    changes: dict[str, str], words: str, where: str, folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs nothing, removes nothing and changes no file, whether or not its token leads to a file that is there."""
    (folders[0] / "README.md").write_text("mine")
    (folders[0] / "joined.txt").write_text("old")
    with remote_stages.issue("join") as work_order:
        monkeypatch.chdir(folders[where == "clone"])
        before = {path: path.read_bytes() for path in Path().glob("*.*") if path.is_file()}
        bad = dataclasses.replace(work_order, **changes)
        with pytest.raises(BadInput) as caught, remote_stages.prepare(bad) as command:
            pytest.fail(f"it would run {command}")
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        if "stage" not in changes or "joim" not in changes["stage"]:
            assert {path: path.read_bytes() for path in Path().glob("*.*") if path.is_file()} == before


def test_command_and_outputs_are_those_of_the_own_stage(folders: tuple[Path, Path]) -> None:
    """A work order has no place for others."""
    assert {field.name for field in dataclasses.fields(remote_stages.WorkOrder)} == {
        "stage",
        "inputs",
        "params",
        "code",
        "basis",
        "token",
    }
    Path("joined.txt").write_text("old")
    with remote_stages.issue("join") as work_order, remote_stages.prepare(work_order) as command:
        assert command == ["/bin/sh", "-c", f"exec {sys.executable} step.py joined.txt"]
        assert not Path("joined.txt").exists()
        assert Path("made-a.txt").exists()


ENTRIES = [
    {"path": "README.md", "hash": "md5", "md5": "0" * 32},
    {"path": "../writer/README.md", "hash": "md5", "md5": "0" * 32},
    {"path": "/tmp/evil", "hash": "md5", "md5": "0" * 32},
    {"path": "joined.txt", "hash": "md5", "md5": "../../x"},
    {"path": "joined.txt", "hash": "md5"},
    {},
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_outputs_and_inputs_are_known_paths(
    entry: dict[str, str], folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does a worker write where the writer's dvc.yaml has no output, nor a writer where the worker's has no
    input.
    """
    with remote_stages.issue("join") as work_order:
        with pytest.raises(BadInput, match="with its MD5 sum"):
            remote_stages.accept(work_order, [entry])
        monkeypatch.chdir(folders[1])
        bad = dataclasses.replace(work_order, inputs=(entry,))
        with pytest.raises(BadInput, match="with its MD5 sum"), remote_stages.prepare(bad):
            pass
        assert not (folders[0] / "README.md").exists()
        assert not (folders[1] / "README.md").exists()


@pytest.mark.parametrize("path", ["../outside", "/tmp/outside", "a/../../outside"])
def test_no_path_outside_of_the_project_is_removed(path: str, folders: tuple[Path, Path]) -> None:
    """Not even where the folder's own dvc.yaml names one."""
    text = Path("dvc.yaml").read_text()
    with remote_stages.issue("join") as work_order:
        Path("dvc.yaml").write_text(text.replace("outs: [joined.txt]", f"outs: [{{{path}: {{cache: false}}}}]"))
        same_code = dataclasses.replace(work_order, code=remote_stages.code_digest())
        with pytest.raises(BadInput, match="outside of the project"), remote_stages.prepare(same_code):
            pass


def test_a_folder_that_git_does_not_know(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an unpacked archive of the code: one line with both ways out, and either of them works."""
    toy_project.make(tmp_path)
    (tmp_path / ".dvc" / "config").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput, match=r"git init.*dvc config core\.no_scm true") as caught:
        stale_stages()
    assert "\n" not in str(caught.value)
    env = {**os.environ, **HOME, "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])}
    subprocess.run(
        [sys.executable, "-m", "dvc", "config", "core.no_scm", "true"], check=True, env=env, capture_output=True
    )
    assert stale_stages()
    (tmp_path / ".dvc" / "config").write_text("")
    subprocess.run(["git", "init", "--quiet"], check=True, env=env)
    assert stale_stages()


def test_other_code_is_refused(folders: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any work."""
    with remote_stages.issue("join") as work_order:
        monkeypatch.chdir(folders[1])
        with (
            pytest.raises(BadInput, match="check out the same commit"),
            remote_stages.prepare(dataclasses.replace(work_order, code="0")),
        ):
            pass


def test_what_changed_meanwhile_is_not_accepted(folders: tuple[Path, Path]) -> None:
    """Outputs of old inputs are never committed as those of new ones."""
    with remote_stages.issue("join") as work_order:
        made = work(work_order)
        Path("made-a.txt").write_text("edited")
        with pytest.raises(BadInput, match="changed while it ran elsewhere"):
            remote_stages.accept(work_order, made)


def test_lost_outputs_and_unknown_inputs_are_named(folders: tuple[Path, Path]) -> None:
    with (
        remote_stages.issue("join") as work_order,
        pytest.raises(BadInput, match=r"joined\.txt did not arrive; share the folder, or set a remote"),
    ):
        remote_stages.accept(work_order, [])
    (folders[0] / "dvc.lock").unlink()
    with pytest.raises(BadInput, match="DVC does not know it yet"), remote_stages.issue("join"):
        pass


@pytest.fixture(scope="module")
def deployed(prefect_api: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The server, with the pool, the queues and the deployments registered."""
    folder = tmp_path_factory.mktemp("deployed")
    toy_project.make(folder)
    env = {**os.environ, **HOME, "PREFECT_API_URL": prefect_api}
    command = [sys.executable, "-m", "fedweave.pipelines.commands.main", "deploy", "--slots", "2"]
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return prefect_api


@pytest.fixture
def ask(deployed: str, reporting: str) -> Iterator[Callable[..., object]]:
    """Questions to the server."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        yield lambda method, *words, **named: getattr(client, method)(*words, **named)


def test_the_server_limits_what_runs_and_shows_every_parameter(ask: Callable[..., object]) -> None:
    """One flow at a time, as many stages as slots; described parameters; nights to come; one watch over lost workers,
    registered twice without harm.
    """
    from prefect.client.schemas.filters import FlowRunFilter

    workers.register(3)
    queues = {queue.name: queue.concurrency_limit for queue in ask("read_work_queues", work_pool_name="gpu-pool")}
    assert (queues["writer"], queues["stages"]) == (1, 3)
    deployments = {deployment.name: deployment for deployment in ask("read_deployments")}
    assert {*deployments} >= {"reproduce", "nightly", "tune", "stage"}
    assert [schedule.schedule.cron for schedule in deployments["nightly"].schedules] == ["0 2 * * *"]
    nights = {"deployment_id": {"any_": [deployments["nightly"].id]}}
    assert until(lambda: len(ask("read_flow_runs", flow_run_filter=FlowRunFilter(**nights))) >= 3)
    parameters = deployments["reproduce"].parameter_openapi_schema["properties"]
    assert all(entry["description"] and "default" in entry for entry in parameters.values())
    assert parameters["where"]["enum"] == ["here", "workers", "ray"]
    assert len(ask("read_automations_by_name", "fedweave: lost workers")) == 1


def test_a_flow_recalls_what_a_killed_one_sent_out(
    tmp_path: Path, ask: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of this folder's stages those that have not ended, and nobody else's."""
    from prefect.deployments import run_deployment
    from prefect.states import Cancelled

    monkeypatch.chdir(tmp_path)
    work_order = dataclasses.asdict(remote_stages.WorkOrder("train@x", (), "", "", "", "0" * 32))
    mine, others = (
        run_deployment("stage/stage", parameters={"work_order": work_order}, timeout=0, tags=tags)
        for tags in ([pool.tag()], ["writer:x"])
    )
    pool.recall(30)
    assert ask("read_flow_run", mine.id).state.is_cancelled()
    assert ask("read_flow_run", others.id).state.is_scheduled()
    ask("set_flow_run_state", others.id, Cancelled(), force=True)


def test_two_workers_in_clones_train_for_one_writer(tmp_path: Path, deployed: str, dealt: Project) -> None:
    """Every run is trained by exactly one of them; only the writer's dvc.lock knows both, and DVC finds nothing to
    do.
    """
    runs = ["digits-fedavg", "digits-local"]
    writer = dealt.copy(tmp_path / "writer", tmp_path / "remote")
    clones = [Project(tmp_path / name, "", tmp_path / "remote", writer.folder) for name in ("one", "two")]
    api = {"PREFECT_API_URL": deployed}
    words = ("fedweave.pipelines.commands.main", "worker", "--role", "stages", "--limit", "1", "--name")
    with clones[0].background(*words, "one", **api), clones[1].background(*words, "two", **api):
        targets = [f"train@{run}" for run in runs]
        done = writer.python(
            "fedweave.pipelines.scheduling.flows", "--where", "workers", "--targets", *targets, check=False, **api
        )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    trained = [sorted(path.name for path in (clone.folder / "results/small/runs").glob("*")) for clone in clones]
    assert sorted(run for share in trained for run in share) == runs  # who takes which hangs on who asks first
    assert "up to date" in writer.python("dvc", "status", *targets).stdout
    for clone, share in zip(clones, trained, strict=True):
        for run in share:
            name = Path("results/small/runs", run, "evaluations.parquet")
            assert (writer.folder / name).read_bytes() == (clone.folder / name).read_bytes()
        assert not (clone.folder / ".fedweave" / "work-orders").exists()


def test_cancelling_a_flow_ends_its_stages_on_the_workers(
    tmp_path: Path, deployed: str, ask: Callable[..., object]
) -> None:
    """`prefect flow-run cancel` of the flow: both stages end with everything they started, and nothing is written
    later.
    """
    toy_project.make(tmp_path)
    (tmp_path / "hold").touch()
    env = {
        **HOME,
        "PREFECT_API_URL": deployed,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "fedweave.pipelines.commands.main",
        "worker",
        "--limit",
        "2",
        "--name",
        "all",
        "--health-port",
        str(port),
    ]
    prefect = [sys.executable, "-m", "prefect"]
    with process(command, tmp_path, env, tmp_path / "worker.log"):
        start = [*prefect, "deployment", "run", "reproduce/reproduce", "-p", "where=workers", "-p", 'targets=["make"]']
        subprocess.run(start, env={**os.environ, **env}, check=True, capture_output=True, cwd=tmp_path)
        assert until(lambda: len(list((tmp_path / "pids").iterdir())) == 2, 120), (tmp_path / "worker.log").read_text()[
            -3000:
        ]
        pids = [int(path.name) for path in (tmp_path / "pids").iterdir()]
        runs = [run for run in ask("read_flow_runs") if run.deployment_id and run.state and run.state.is_running()]
        assert sorted(run.name for run in runs) == ["make@a", "make@b", "toy"]
        assert until(lambda: answers(f"http://127.0.0.1:{port}/health"))
        (flow,) = (run for run in runs if run.name == "toy")
        cancel = [*prefect, "flow-run", "cancel", str(flow.id)]
        subprocess.run(cancel, env={**os.environ, **env}, check=True, capture_output=True, cwd=tmp_path)
        assert until(lambda: not any(map(alive, pids)), 90)
        assert until(lambda: all(ask("read_flow_run", run.id).state.is_cancelled() for run in runs), 90)
    (tmp_path / "hold").unlink()
    assert not list(tmp_path.glob("made-*.txt"))
