"""`fedweave deploy` and `fedweave worker`: the pool of workers for training, once per project and once per host."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NoReturn

import typer

from fedweave.errors import BadInput

from .. import addresses
from ..processes import search_path
from ..project import PROJECT_VARIABLE
from . import gpus, notifications, pool_names, pool_owner, server_client

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

WRITER, STAGES, NIGHTLY, LIFE = "writer", "stages", "nightly", "life.json"
HEARTBEAT = 30  # seconds between two signs of life of a run
LOST = "no sign of life for {} seconds: its worker was lost"
Role = Literal["both", "writer", "stages"]
Pool = Annotated[
    str,
    typer.Option(
        envvar=pool_names.VARIABLE, help="pool of this project, such as vision; only where projects share a server"
    ),
]


def deploy(
    slots: Annotated[
        int,
        typer.Option(
            min=0,
            help="training stages at once, over all hosts: how many GPUs there are; 0: as many as before, at first one",
        ),
    ] = 0,
    webhook: Annotated[
        str,
        typer.Option(
            envvar="FEDWEAVE_WEBHOOK",
            help="address that gets a message when a flow has completed or failed; default: the one registered before",
        ),
    ] = "",
    schedule: Annotated[
        str,
        typer.Option(
            help='when the deployment "nightly" is due, a line of cron in UTC, such as "0 2 * * *"; default: as before'
        ),
    ] = "",
    life: Annotated[
        str, typer.Option(help="folder of a life: a deployment that refreshes it, which --schedule is for then")
    ] = "",
    pool: Pool = "",
) -> None:
    """Register this project at the Prefect server: its pool and queues, their limits, the deployments of prefect.yaml,
    the schedule and the webhook. What no option names stays as it was, and so do entries of other projects.
    """
    pool = pool_names.check(pool)
    if webhook:
        notifications.check(webhook)
    os.environ["PREFECT_API_URL"] = _server_address()  # before Prefect is imported, which reads it once
    if schedule:
        _check_schedule(schedule)
    os.environ.pop(PROJECT_VARIABLE, None)  # so that the deployments keep the variable itself, and not its value here
    content = deployments(pool, schedule, life)
    slots = register(slots, pool)
    _keep_schedules(content, pool)
    _deploy(content)
    if webhook:
        notifications.register(webhook, pool)
    _report([entry["name"] for entry in content["deployments"]], pool, slots, bool(webhook))
    _report_schedules(pool)


def _check_schedule(cron: str) -> None:
    """Refuse a line that is not of cron."""
    from prefect.client.schemas.schedules import CronSchedule

    try:
        CronSchedule(cron=cron)
    except ValueError as error:
        way = 'give five fields, minute, hour, day, month and weekday, such as --schedule "0 2 * * *"'
        raise BadInput("--schedule", f"{cron!r} is not a line of cron; {way}") from error


def deployments(pool: str, schedule: str = "", life: str = "") -> dict[str, Any]:
    """The content of prefect.yaml, with the names and the tag of its deployments in `pool`.

    The UI shows the tag with every run, and the automations select runs by it.

    Args:
        schedule: when the deployment "nightly" is due; empty: as prefect.yaml says, which is never.
        life: folder of a life, whose deployment is added; the schedule is for it.

    Raises:
        BadInput: prefect.yaml is missing, or has no deployments, or none that is called "nightly" for the schedule; or
            there is no life in the folder.
    """
    from fedweave.study.config import read_yaml

    content: dict[str, Any] = read_yaml(Path("prefect.yaml"))
    if not content.get("deployments"):
        raise BadInput("prefect.yaml: deployments: there are none; move the file away, then: fedweave init .")
    if life:
        content["deployments"].append(_deployment_of(life, schedule))
    elif schedule:
        nightly = next((entry for entry in content["deployments"] if entry["name"] == NIGHTLY), None)
        if nightly is None:
            raise BadInput("--schedule", f"prefect.yaml has no deployment {NIGHTLY!r}; add it, or leave --schedule out")
        nightly["schedules"] = [{"cron": schedule, "timezone": "UTC", "active": True}]
    for entry in content["deployments"]:
        entry["name"] = pool_names.deployment(entry["name"], pool)
        entry["tags"] = [*(tag for tag in entry.get("tags") or [] if tag not in (pool_names.DEFAULT, pool)), pool]
        work_pool = entry.get("work_pool") or {}
        if work_pool.get("name") == pool_names.DEFAULT:
            entry["work_pool"] = {**work_pool, "name": pool}
    return content


def _deployment_of(life: str, schedule: str) -> dict[str, Any]:
    """The deployment of a life, of which one run works at a time; without a schedule it is started by hand."""
    folder = Path(life)
    if folder.is_absolute() or not (folder / LIFE).is_file():
        raise BadInput("--life", f"{life!r} is no life in this project; begin it: fedweave refresh {life} --source ...")
    return {
        "name": "-".join(["life", *folder.parts]),
        "description": f"{folder}: what is new is taken, scored, and the champion is challenged",
        "entrypoint": "fedweave.pipelines.scheduling.life_flow.night",
        "parameters": {"life": str(folder)},
        "schedules": [{"cron": schedule, "timezone": "UTC", "active": True}] if schedule else [],
        "concurrency_limit": 1,
        "tags": ["fedweave", "life", pool_names.DEFAULT],
        "work_pool": {"name": pool_names.DEFAULT, "work_queue_name": WRITER},
    }


def _deploy(content: dict[str, Any]) -> None:
    """Let Prefect deploy the deployments in `content`. Its refusal becomes one line."""
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        json.dump(content, file, default=str)  # JSON is YAML; dates are its only other values
        file.flush()
        command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", file.name]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
    if process.returncode:
        print(process.stdout + process.stderr, file=sys.stderr)
        raise BadInput("prefect.yaml: could not be deployed; see above")


def _report(names: list[str], pool: str, slots: int, notifies: bool) -> None:
    """Print what was registered, and what to do next."""
    count = "one training stage" if slots == 1 else f"{slots} training stages"
    print(f"deployments {', '.join(names)}; pool {pool}: {count} at once")
    if notifies:
        block = notifications.block_name(pool)
        print(f"a message to the webhook when a flow has ended: block webhook/{block} in Prefect's UI")
    option = "" if pool == pool_names.DEFAULT else f" --pool {pool}"
    print(f"next: fedweave worker{option}; on every other host: fedweave worker --role stages{option}")
    command = f"prefect deployment run reproduce/{pool_names.deployment('reproduce', pool)}"
    print(f"then: PREFECT_API_URL={os.environ['PREFECT_API_URL']} {command}")  # without it, on a server of its own


def _keep_schedules(content: dict[str, Any], pool: str) -> None:
    """Leave out schedules of prefect.yaml that are not active where the server has the deployment, which keeps its own.

    A schedule may have been set by an earlier call, or in the UI.
    """
    known = {deployment.name for deployment in _read_deployments(pool)}
    for entry in content["deployments"]:
        is_active = any(schedule.get("active", True) for schedule in entry.get("schedules") or ())
        if entry["name"] in known and not is_active:
            entry.pop("schedules", None)


def _report_schedules(pool: str) -> None:
    """Print what is due when, as the server has it."""
    due = [
        f"{deployment.name} at {getattr(entry.schedule, 'cron', 'its times')} {getattr(entry.schedule, 'timezone', '')}"
        for deployment in _read_deployments(pool)
        for entry in deployment.schedules
        if entry.active and not deployment.paused
    ]
    hint = 'nothing; for every night: fedweave deploy --schedule "0 2 * * *"'
    print(f"scheduled: {', '.join(due) or hint}")


def _read_deployments(pool: str) -> "list[DeploymentResponse]":
    """The deployments of a pool at the server."""
    from prefect.client.schemas.filters import WorkPoolFilter

    with server_client.connect() as client:
        return client.read_deployments(work_pool_filter=WorkPoolFilter.model_validate({"name": {"any_": [pool]}}))


def register(slots: int = 0, pool: str = pool_names.DEFAULT) -> int:
    """Create or update the pool, its queues with their limits, and the automation that watches for lost workers.

    Args:
        slots: the limit of stages; 0: the one that the server has, at first one.
        pool: the pool's name.

    Returns:
        The limit of stages.

    Raises:
        BadInput: the pool belongs to another project, or the server refuses the password.
    """
    with server_client.connect() as client:
        _create_pool(client, pool, pool_owner.claim(client, pool))
        _create_queue(client, pool, WRITER, 1)  # one folder holds dvc.lock
        limit = _create_queue(client, pool, STAGES, slots)
    _save_automation(pool)
    return limit


def worker(
    role: Annotated[
        Role, typer.Option(help="stages: training for a writer elsewhere; writer: flows; both: all on one host")
    ] = "both",
    limit: Annotated[
        int, typer.Option(min=0, help="training stages at once on this host; 0: one per GPU, at least one")
    ] = 0,
    name: Annotated[str, typer.Option(help="what Prefect calls this worker; default: the host and the role")] = "",
    health_port: Annotated[int, typer.Option(min=0, help="a port of loopback that answers /health; 0: none")] = 0,
    pool: Pool = "",
) -> NoReturn:
    """Run flows and stages of the Prefect server in this folder, until Ctrl-C or SIGTERM."""
    is_named, pool = bool(pool), pool_names.check(pool)
    os.environ["PREFECT_API_URL"] = _server_address()
    _check_pool(role, pool, is_named)
    slots = limit or max(1, len(gpus.visible_devices()))
    max_runs = {"writer": 1, "stages": slots, "both": slots + 1}[role]
    queues = {"writer": (WRITER,), "stages": (STAGES,), "both": (WRITER, STAGES)}[role]
    command = [sys.executable, *f"-m prefect worker start --pool {pool} --type process --limit {max_runs}".split()]
    command += ["--name", name or f"{socket.gethostname()}-{role}"]
    command += [word for queue in queues for word in ("--work-queue", queue)]
    command += ["--with-healthcheck"] if health_port else []
    variables = {
        pool_names.VARIABLE: pool,  # to which its flows send stages
        PROJECT_VARIABLE: str(Path.cwd()),
        "PATH": search_path(),
        "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT),
    }
    health = (
        {"PREFECT_WORKER_WEBSERVER_HOST": "127.0.0.1", "PREFECT_WORKER_WEBSERVER_PORT": str(health_port)}
        if health_port
        else {}
    )
    # Prefect ends a worker by SIGINT to itself, but a shell that starts it in the background sets SIGINT to be ignored.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execve(sys.executable, command, {**os.environ, **variables, **health})


def _check_pool(role: Role, pool: str, is_named: bool) -> None:
    """Refuse to work for another project; for stages alone, print the project."""
    with server_client.connect() as client:
        if role == "stages":
            print(f"pool {pool}: of {pool_owner.check_stages(client, pool, is_named)}", flush=True)
        else:
            pool_owner.check_flows(client, pool)


def _server_address() -> str:
    """The server's address: PREFECT_API_URL, or the one of `make ui`; refused if nobody answers there."""
    return addresses.check_prefect(os.environ.get("PREFECT_API_URL") or addresses.prefect_api())


def _create_pool(client: "SyncPrefectClient", name: str, owner: pool_owner.Owner) -> None:
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.workers.process import ProcessWorker

    template = ProcessWorker.get_default_base_job_template()
    description = f"{owner}: training, one run per GPU; flows in queue {WRITER}, their stages in {STAGES}"
    client.create_work_pool(
        WorkPoolCreate(name=name, type="process", description=description, base_job_template=template), overwrite=True
    )


def _create_queue(client: "SyncPrefectClient", pool: str, name: str, limit: int) -> int:
    """Create a queue, or set its limit; 0 keeps that of an earlier queue, and is one for a new queue.

    Returns:
        The limit, also where it was kept.
    """
    from prefect.exceptions import ObjectAlreadyExists

    try:
        return client.create_work_queue(name, concurrency_limit=limit or 1, work_pool_name=pool).concurrency_limit or 1
    except ObjectAlreadyExists:
        queue = client.read_work_queue_by_name(name, pool)
        limit = limit or queue.concurrency_limit or 1
        client.update_work_queue(queue.id, concurrency_limit=limit)
        return limit


def _save_automation(pool: str) -> None:
    """Let the server mark a run as crashed when its heartbeat stops, so that a lost worker holds no slot."""
    from datetime import timedelta

    from prefect.automations import Automation
    from prefect.client.schemas.objects import StateType
    from prefect.events.actions import ChangeFlowRunState
    from prefect.events.schemas.automations import EventTrigger, Posture

    heartbeat, timeout = "prefect.flow-run.heartbeat", 4 * HEARTBEAT
    ends = {
        f"prefect.flow-run.{state}"
        for state in ("Completed", "Failed", "Cancelled", "Crashed", "TimedOut", "AwaitingRetry")
    }
    trigger = EventTrigger(
        after={heartbeat},
        expect={heartbeat, *ends},
        match={"prefect.resource.id": ["prefect.flow-run.*"]},
        # The workers of other pools may send heartbeats less often.
        match_related={"prefect.resource.role": "work-pool", "prefect.resource.name": pool},
        for_each={"prefect.resource.id"},
        posture=Posture.Proactive,
        threshold=1,
        within=timedelta(seconds=timeout),
    )
    action = ChangeFlowRunState(name="Lost", state=StateType.CRASHED, message=LOST.format(timeout), force=False)
    name = pool_names.deployment("fedweave: lost workers", pool)
    automation = Automation(name=name, description=LOST.format(timeout), trigger=trigger, actions=[action])
    notifications.save(automation)
