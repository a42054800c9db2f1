"""Workers of a pool: limits of the server, messages to a webhook, two workers in clones, a cancelled flow."""

import dataclasses
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import toy_project

from fedweave.errors import BadInput
from fedweave.pipelines.scheduling import notifications, remote_stages, workers
from tests.servers import ROOT, Project, alive, answers, free_port, http_server, process, python, until

pytestmark = [pytest.mark.acceptance, pytest.mark.xdist_group("prefect"), pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def webhook() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The address of a server on loopback, and the messages that it receives."""
    messages: list[dict[str, Any]] = []

    def receive(request: BaseHTTPRequestHandler) -> None:
        messages.append(json.loads(request.rfile.read(int(request.headers["Content-Length"]))))
        request.send_response(204)
        request.end_headers()

    with http_server(do_POST=receive) as port:
        yield f"http://127.0.0.1:{port}/secret", messages


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A toy project that owns the pool."""
    made = tmp_path_factory.mktemp("deployed")
    toy_project.make(made)
    return made


@pytest.fixture(scope="module")
def deployed(prefect_api: str, folder: Path, webhook: tuple[str, list[dict[str, Any]]]) -> str:
    """The server, where the pool, the queues, the deployments and the webhook are registered."""
    env = {"PREFECT_API_URL": prefect_api, "FEDWEAVE_WEBHOOK": webhook[0]}
    done = python("-m", "fedweave.pipelines.commands.main", "deploy", "--slots", "2", folder=folder, **env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines() == [
        "deployments reproduce, nightly, tune, stage; pool gpu-pool: 2 training stages at once",
        "a message to the webhook when a flow has ended: block webhook/fedweave in Prefect's UI",
        "next: fedweave worker; on every other host: fedweave worker --role stages",
        f"then: PREFECT_API_URL={prefect_api} prefect deployment run reproduce/reproduce",
        'scheduled: nothing; for every night: fedweave deploy --schedule "0 2 * * *"',
    ]
    return prefect_api


@pytest.fixture
def ask(deployed: str, reporting: str) -> Iterator[Callable[..., object]]:
    """Sends a request to the server."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        yield lambda method, *words, **named: getattr(client, method)(*words, **named)


def test_the_server_limits_running_flows_and_shows_every_parameter(
    ask: Callable[..., object],
    folder: Path,
    deployed: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """One flow at a time, as many stages as slots, described parameters, nights that are planned with `--schedule`
    only and stay until the UI ends them, and one automation for lost workers even if it was registered twice.
    """
    from prefect.client.schemas.filters import FlowRunFilter

    monkeypatch.chdir(folder)
    workers.register(3)
    queues = {queue.name: queue.concurrency_limit for queue in ask("read_work_queues", work_pool_name="gpu-pool")}
    assert (queues["writer"], queues["stages"]) == (1, 3)
    deployments = {deployment.name: deployment for deployment in ask("read_deployments")}
    assert {*deployments} >= {"reproduce", "nightly", "tune", "stage"}
    assert [(one.schedule.cron, one.active) for one in deployments["nightly"].schedules] == [("0 2 * * *", False)]
    monkeypatch.setenv("PREFECT_API_URL", deployed)
    workers.deploy(3, schedule="30 3 * * *")
    assert "scheduled: nightly at 30 3 * * * UTC" in capsys.readouterr().out
    (nightly,) = (one for one in ask("read_deployments") if one.name == "nightly")
    assert [(one.schedule.cron, one.active) for one in nightly.schedules] == [("30 3 * * *", True)]
    nights = {"deployment_id": {"any_": [nightly.id]}}
    assert until(lambda: len(ask("read_flow_runs", flow_run_filter=FlowRunFilter(**nights))) >= 3)
    workers.deploy()  # another call, such as one for a webhook, or a container that starts again
    printed = capsys.readouterr().out
    assert "3 training stages at once" in printed
    assert "scheduled: nightly at 30 3 * * * UTC" in printed
    queues = {queue.name: queue.concurrency_limit for queue in ask("read_work_queues", work_pool_name="gpu-pool")}
    assert (queues["writer"], queues["stages"]) == (1, 3)
    (nightly,) = (one for one in ask("read_deployments") if one.name == "nightly")
    assert [(one.schedule.cron, one.active) for one in nightly.schedules] == [("30 3 * * *", True)]
    ask("update_deployment_schedule", nightly.id, nightly.schedules[0].id, active=False)  # by the switch in the UI
    workers.deploy(4)
    printed = capsys.readouterr().out
    assert "4 training stages at once" in printed
    assert "scheduled: nothing" in printed
    (nightly,) = (one for one in ask("read_deployments") if one.name == "nightly")
    assert [one.active for one in nightly.schedules] == [False]
    parameters = deployments["reproduce"].parameter_openapi_schema["properties"]
    assert all(entry["description"] and "default" in entry for entry in parameters.values())
    assert parameters["where"]["enum"] == ["here", "workers", "ray", "slurm"]
    assert len(ask("read_automations_by_name", "fedweave: lost workers")) == 1


def test_a_webhook_gets_a_message_at_the_end_of_a_flow(
    tmp_path: Path,
    deployed: str,
    reporting: str,
    webhook: tuple[str, list[dict[str, Any]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One message for failure and one for completion, even if the address was registered twice. No message for a flow
    of another project.
    """
    from prefect import tags

    from fedweave.pipelines.scheduling.flows import reproduce

    address, messages = webhook
    notifications.register(address)
    monkeypatch.chdir(tmp_path)
    toy_project.make(tmp_path)
    with tags("vision"):
        reproduce(targets=["make@a"], retries=0)
    Path("fail").touch()
    with pytest.raises(RuntimeError), tags("gpu-pool"):
        reproduce(targets=["make@b"], retries=0)
    assert until(lambda: any(message["state"] == "Failed" for message in messages))
    Path("fail").unlink()
    with tags("gpu-pool"):
        reproduce(targets=["make@b"], retries=0)
    assert until(lambda: any(message["state"] == "Completed" for message in messages))
    assert [message["state"] for message in messages] == ["Failed", "Completed"]
    failed = messages[0]
    assert failed["study"] == "toy"
    assert "1 of 1 stages failed" in failed["message"]
    assert failed["text"].startswith("fedweave, study toy: Failed. ")
    assert failed["text"].endswith(f"/runs/flow-run/{failed['flow_run']}")


def test_a_webhook_gets_the_drift_of_a_life(
    deployed: str, reporting: str, webhook: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once for each event; not that of another project."""
    sentences = ["MIA: hour (higher); 30 % of the rows moved.", 'a "B": x (lower); 12 % of the rows moved.']
    monkeypatch.setenv("FEDWEAVE_POOL", "vision")
    notifications.report_drift("lives/other", 6, sentences)
    monkeypatch.delenv("FEDWEAVE_POOL")
    notifications.report_drift("lives/flights", 7, sentences)
    messages = webhook[1]
    assert until(lambda: any("life" in message for message in messages))
    (message,) = (one for one in messages if "life" in one)
    assert message["text"] == f"fedweave, lives/flights: drift in delivery 7. {' '.join(sentences)}"
    assert (message["life"], message["delivery"], message["sentences"]) == ("lives/flights", 7, sentences)


@pytest.mark.parametrize("address", ["hooks.example.org/x", "ftp://host/x", "https://", "http://[::1"])
def test_a_webhook_that_is_not_an_address_is_refused(address: str) -> None:
    with pytest.raises(BadInput, match="--webhook: ") as caught:
        notifications.check(address)
    assert address in str(caught.value)


def test_a_flow_cancels_the_stages_that_a_killed_flow_submitted(
    tmp_path: Path, ask: Callable[..., object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It cancels the stages of this folder that have not ended, and no others."""
    from prefect.deployments import run_deployment
    from prefect.states import Cancelled

    from fedweave.pipelines.scheduling import pool

    monkeypatch.chdir(tmp_path)
    work_order = dataclasses.asdict(remote_stages.WorkOrder("train@x", (), "", "", "", "0" * 32))
    mine, others = (
        run_deployment("stage/stage", parameters={"work_order": work_order}, timeout=0, tags=tags)
        for tags in ([pool.tag()], ["writer:x"])
    )
    pool.cancel_remote_runs(30)
    assert ask("read_flow_run", mine.id).state.is_cancelled()
    assert ask("read_flow_run", others.id).state.is_scheduled()
    ask("set_flow_run_state", others.id, Cancelled(), force=True)


def test_two_workers_in_clones_train_for_one_writer(
    tmp_path: Path, deployed: str, partitioned_project: Project
) -> None:
    """Exactly one of them trains each run. Only the writer's dvc.lock has both runs, and DVC finds nothing to do. The
    clones use the pool that .env names.
    """
    runs = ["digits-fedavg", "digits-local"]
    writer = partitioned_project.copy(tmp_path / "writer", tmp_path / "remote")
    with (writer.folder / ".env").open("a") as file:
        file.write("FEDWEAVE_POOL=digits\n")
    deployment = writer.python("fedweave.pipelines.commands.main", "deploy", "--slots", "2", PREFECT_API_URL=deployed)
    assert "pool digits: 2 training stages at once" in deployment.stdout
    clones = [Project(tmp_path / name, "", tmp_path / "remote", writer.folder) for name in ("one", "two")]
    api = {"PREFECT_API_URL": deployed}
    words = ("fedweave.pipelines.commands.main", "worker", "--role", "stages", "--limit", "1", "--name")
    with clones[0].background(*words, "one", **api), clones[1].background(*words, "two", **api):
        targets = [f"train@{run}" for run in runs]
        options = ("--where", "workers", *(word for target in targets for word in ("--targets", target)))
        done = writer.python("fedweave.pipelines.commands.main", "flow", *options, check=False, **api)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    trained = [sorted(path.name for path in (clone.folder / "results/small/runs").glob("*")) for clone in clones]
    assert (
        sorted(run for share in trained for run in share) == runs
    )  # the assignment depends on which worker asks first
    assert "up to date" in writer.python("dvc", "status", *targets).stdout
    for clone, share in zip(clones, trained, strict=True):
        for run in share:
            name = Path("results/small/runs", run, "evaluations.parquet")
            assert (writer.folder / name).read_bytes() == (clone.folder / name).read_bytes()
        assert not (clone.folder / ".fedweave" / "work-orders").exists()


def test_cancelling_a_flow_ends_its_stages_on_the_workers(
    tmp_path: Path, folder: Path, deployed: str, ask: Callable[..., object]
) -> None:
    """`prefect flow-run cancel` of the flow: both stages end with all their processes. Nothing is written later, and no
    line says that it will be tried again. The worker was started in the background, as with `nohup ... &`, where SIGINT
    is ignored, and ends at the first SIGTERM.
    """
    (folder / "hold").touch()
    env = {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
        "PREFECT_API_URL": deployed,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
    }
    port = free_port()
    words = f"fedweave.pipelines.commands.main worker --limit 2 --name all --health-port {port}"
    command = ["/bin/sh", "-c", f"trap '' INT; exec {sys.executable} -m {words}"]
    with process(command, folder, env, tmp_path / "worker.log") as worker:
        start = ["deployment", "run", "reproduce/reproduce", "-p", "where=workers", "-p", 'targets=["make"]']
        assert python("-m", "prefect", *start, folder=folder, **env).returncode == 0
        assert until(lambda: len(list((folder / "pids").iterdir())) == 2, 120), (tmp_path / "worker.log").read_text()[
            -3000:
        ]
        pids = [int(path.name) for path in (folder / "pids").iterdir()]
        runs = [run for run in ask("read_flow_runs") if run.deployment_id and run.state and run.state.is_running()]
        assert sorted(run.name for run in runs) == ["make@a", "make@b", "toy"]
        assert until(lambda: answers(f"http://127.0.0.1:{port}/health"))
        (flow,) = (run for run in runs if run.name == "toy")
        cancel = ["flow-run", "cancel", str(flow.id)]
        assert python("-m", "prefect", *cancel, folder=folder, **env).returncode == 0
        assert until(lambda: not any(map(alive, pids)), 90)
        assert until(lambda: all(ask("read_flow_run", run.id).state.is_cancelled() for run in runs), 90)
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
    assert "Retry" not in (tmp_path / "worker.log").read_text()
    (folder / "hold").unlink()
    assert not list(folder.glob("made-*.txt"))
