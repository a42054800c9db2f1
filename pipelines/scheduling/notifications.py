"""Messages to a webhook when a flow has ended, or clients of a life drift: a block of Prefect with the address, and
automations that call it.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from fedweave.errors import BadInput

from . import pool_names

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.automations import Automation

AUTOMATION = "fedweave: notify"
FLOW = "reproduce"  # the stages of its workers are flows too, and send nothing
STATES = ("Completed", "Failed", "Crashed", "TimedOut")
# PAGES is the address of Prefect's UI. Slack, Mattermost and Google Chat show the field `text` of a message; the others
# are for programs.
PAYLOAD = """{
  "text": {{ ("fedweave, study " ~ flow_run.name ~ ": " ~ flow_run.state.name ~ ". "
    ~ (flow_run.state.message or "") ~ " PAGES/runs/flow-run/" ~ flow_run.id) | tojson }},
  "study": {{ flow_run.name | tojson }},
  "state": {{ flow_run.state.name | tojson }},
  "message": {{ (flow_run.state.message or "") | tojson }},
  "flow_run": {{ (flow_run.id | string) | tojson }}
}"""

DRIFT_AUTOMATION = "fedweave: drift"
DRIFT = "fedweave.life.drift"  # an event, which other automations can take too
DRIFT_PAYLOAD = """{
  "text": {{ ("fedweave, " ~ event.payload.life ~ ": drift in delivery " ~ event.payload.delivery ~ ". "
    ~ (event.payload.sentences | join(" "))) | tojson }},
  "life": {{ event.payload.life | tojson }},
  "delivery": {{ event.payload.delivery | tojson }},
  "sentences": {{ event.payload.sentences | tojson }}
}"""


def check(address: str) -> None:
    """Refuse an address that is not a web address."""
    try:
        parts = urlsplit(address)
        is_valid = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        is_valid = False
    if not is_valid:
        raise BadInput(f"--webhook: {address!r} is not a web address; give one such as https://HOST/PATH")


def block_name(pool: str) -> str:
    """The block that holds the address of the project of `pool`."""
    return pool_names.deployment("fedweave", pool)


def register(address: str, pool: str = pool_names.DEFAULT) -> None:
    """Let the server post a message to `address` whenever a flow `reproduce` of the project of `pool` has ended, and
    when clients of a life drift.

    It replaces an earlier address.
    """
    from datetime import timedelta

    from prefect.automations import Automation
    from prefect.events.actions import CallWebhook
    from prefect.events.schemas.automations import EventTrigger, Posture
    from prefect.settings import PREFECT_API_URL, PREFECT_UI_URL

    pages = (PREFECT_UI_URL.value() or str(PREFECT_API_URL.value()).removesuffix("/api")).rstrip("/")
    own: dict[str, str | list[str]] = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{pool}"}
    at_once: dict[str, Any] = {"posture": Posture.Reactive, "threshold": 1, "within": timedelta(0)}
    trigger = EventTrigger(
        expect={f"prefect.flow-run.{state}" for state in STATES},
        match={"prefect.resource.id": ["prefect.flow-run.*"]},
        match_related=[{"prefect.resource.role": "flow", "prefect.resource.name": FLOW}, own],
        for_each={"prefect.resource.id"},
        **at_once,
    )
    drift = EventTrigger(expect={DRIFT}, match_related=[own], **at_once)
    block = _save_block(address, block_name(pool))
    for name, description, on, payload in (
        (AUTOMATION, "posts the end of every flow", trigger, PAYLOAD.replace("PAGES", pages)),
        (DRIFT_AUTOMATION, "posts which clients of a life drift", drift, DRIFT_PAYLOAD),
    ):
        actions = [CallWebhook(block_document_id=block, payload=payload)]
        name = pool_names.deployment(name, pool)
        save(Automation(name=name, description=description, trigger=on, actions=list(actions)))


def report_drift(life: str, delivery: int, sentences: Sequence[str]) -> None:
    """Tell the server which clients of a life drift in a delivery."""
    from prefect.events import emit_event

    tag = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{pool_names.current_pool()}"}
    resource = {"prefect.resource.id": f"fedweave.life.{life}", "prefect.resource.name": life}
    payload = {"life": life, "delivery": delivery, "sentences": [*sentences]}
    emit_event(DRIFT, resource, related=[tag], payload=payload)


def save(automation: "Automation") -> None:
    """Create `automation`, or update the one with its name."""
    from prefect.automations import Automation

    try:
        automation.id = cast(Automation, Automation.read(name=automation.name)).id
        automation.update()
    except ValueError:
        automation.create()


def _save_block(address: str, name: str) -> "UUID":
    """The block that holds the address, which Prefect encrypts."""
    from prefect.blocks.webhook import Webhook
    from prefect.types import SecretDict
    from pydantic import SecretStr

    webhook = Webhook(url=SecretStr(address), headers=SecretDict({"Content-Type": "application/json"}))
    return cast("UUID", webhook.save(name, overwrite=True))
