"""Champion and challenger: which models are deployed, what happened to them and why."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedweave.errors import BadInput
from fedweave.files.atomic import read_json, write_json
from fedweave.lifecycle import ROLES
from fedweave.lifecycle.record import CHALLENGER
from fedweave.metrics import Margin
from fedweave.processes.user import user_name
from fedweave.results import sequential
from fedweave.results.sequential import Challenge, ChallengePlan, ClientDifference
from fedweave.results.statistics import BETTER, EQUIVALENT

if TYPE_CHECKING:
    import pandas as pd

    from fedweave.lifecycle.ledger import Ledger

FIRST, BEGUN, PROMOTED, GIVEN_UP, BACK = "first", "challenger", "promoted", "given up", "rolled back"
JOINED, WAITING, LEFT, FORGOTTEN = "site joined", "site waits", "site left", "site forgotten"
MOVES = (FIRST, PROMOTED, BACK, FORGOTTEN)  # events that make a model the champion


@dataclass(frozen=True)
class Deployed:
    """The models of one training.

    Attributes:
        version: number of the newest delivery that they were trained on; their folder is `models/<version>`.
        method: of the models.
        since: number of the newest delivery when they got their role; later ones test them.
        data: digest of the deliveries up to `version`.
        traffic: bytes of their training.
        plan: of the test of a challenger, fixed when it begins.
        parent: version of the champion from which their training went on; 0: it began from scratch.
        margin: of equivalence in that test, as users write it, fixed when it begins; None: that of the settings.
    """

    version: int
    method: str
    since: int
    data: str
    traffic: int
    plan: ChallengePlan
    parent: int = 0
    margin: float | str | None = None


@dataclass(frozen=True)
class RoleEvent:
    """What happened to a model.

    Attributes:
        when: in UTC.
        delivery: the newest one at that time.
        event: first, challenger, promoted, given up, rolled back, site joined, site waits, site left or
            site forgotten.
        reason: one sentence.
        model: which it is about.
        by: the user whose command it was; empty in files of earlier versions.
    """

    when: str
    delivery: int
    event: str
    reason: str
    model: Deployed
    by: str = field(default_factory=user_name)

    def __str__(self) -> str:
        model = f"{self.model.method} of version {self.model.version}"
        return f"delivery {self.delivery}: {model} {_WORDS[self.event]}. {self.reason}"


_WORDS = {
    FIRST: "is the first champion",
    BEGUN: "is the challenger",
    PROMOTED: "is the champion",
    GIVEN_UP: "is given up",
    BACK: "is the champion again",
    JOINED: "has a model of a new site",
    WAITING: "has no model of a new site yet",
    LEFT: "has a model of a site that left",
    FORGOTTEN: "is the champion",
}


@dataclass(frozen=True)
class Roles:
    """Who has which role, and all events in order."""

    champion: Deployed | None = None
    challenger: Deployed | None = None
    events: tuple[RoleEvent, ...] = ()

    def add(self, event: RoleEvent, **roles: Deployed | None) -> "Roles":
        """These roles after an event."""
        return replace(self, events=(*self.events, event), **roles)

    @property
    def starts(self) -> list[int]:
        """The deliveries with which challengers began."""
        return [one.delivery for one in self.events if one.event == BEGUN]

    @property
    def earlier(self) -> Deployed | None:
        """The champion before the present one; a step back is undone by a further one. Models of a site that was
        forgotten since are no more.
        """
        for event in reversed(self.events):
            if event.event in MOVES and self.champion and event.model.version != self.champion.version:
                return event.model
            if event.event == FORGOTTEN:
                return None
        return None


def read_roles(folder: Path) -> Roles:
    """The roles of a life.

    Raises:
        BadInput: the file is damaged.
    """

    def parse(content: Mapping[str, Any]) -> Roles:
        events = tuple(RoleEvent(**{"by": "", **one, "model": _deployed(one["model"])}) for one in content["events"])
        return Roles(_deployed(content["champion"]), _deployed(content["challenger"]), events)

    return read_json(folder / ROLES, "restore it", parse) if (folder / ROLES).is_file() else Roles()


def _deployed(content: Mapping[str, Any] | None) -> Any:
    return content and Deployed(**{**content, "plan": ChallengePlan(**content["plan"])})


def write_roles(folder: Path, roles: Roles) -> None:
    """Write the roles, whole or not at all."""
    write_json(folder / ROLES, asdict(roles), ensure_ascii=False)


def hash_data(ledger: "Ledger", version: int) -> str:
    """A digest of the deliveries up to `version`."""
    digests = [one.digest for one in ledger.arrivals if one.number <= version]
    return hashlib.sha256("".join(digests).encode()).hexdigest()[:12]


def judge(record: "pd.DataFrame", roles: Roles, margin: Margin) -> Challenge:
    """The test of the challenger against the champion on all deliveries that are scored, looked at in their order.

    It is a function of the record, so that a night that is run twice decides the same.
    """
    assert roles.champion is not None
    assert roles.challenger is not None
    challenge = Challenge(roles.challenger.plan)
    rows = record[(record["role"] == CHALLENGER) & (record["version"] == roles.challenger.version)]
    rows = rows[(rows["against"] == roles.champion.version) & rows["difference"].notna()]
    theirs = record[record["version"] == roles.champion.version]
    for number, delivery in rows.groupby("delivery", sort=True):
        if challenge.is_over:
            break
        means = (float(one.loc[one["delivery"] <= number, "score"].mean()) for one in (theirs, rows))
        differences = {}
        for one in delivery.itertuples():
            variance = None if math.isnan(one.variance) else float(one.variance)
            differences[str(one.client)] = ClientDifference(float(one.difference), int(one.rows), variance)
        challenge = sequential.look(challenge, differences, margin.of(*means))
    return challenge


def decide(roles: Roles, challenge: Challenge, metric: str, when: str, delivery: int) -> Roles:
    """The roles after the newest look: promotion of a better challenger, or of an equivalent and cheaper one."""
    champion, challenger = roles.champion, roles.challenger
    if not challenge.is_over or champion is None or challenger is None:
        return roles
    reason = challenge.describe(metric)
    is_cheaper = challenge.verdict == EQUIVALENT and challenger.traffic < champion.traffic
    if is_cheaper:
        reason += f" Its training sends {challenger.traffic / champion.traffic:.0%} of the champion's bytes."
    if challenge.verdict == BETTER or is_cheaper:
        promoted = replace(challenger, since=delivery)
        return roles.add(RoleEvent(when, delivery, PROMOTED, reason, promoted), champion=promoted, challenger=None)
    return roles.add(RoleEvent(when, delivery, GIVEN_UP, reason, challenger), challenger=None)


def roll_back(roles: Roles, when: str, delivery: int) -> Roles:
    """The roles with the champion before the present one; a challenger is given up, as its test was against another.

    Raises:
        BadInput: there is none.
    """
    if (earlier := roles.earlier) is None:
        raise BadInput("rollback", "there has been no other champion")
    if roles.challenger is not None:
        reason = "The champion is another one now."
        roles = roles.add(RoleEvent(when, delivery, GIVEN_UP, reason, roles.challenger), challenger=None)
    assert roles.champion is not None
    back = replace(earlier, since=delivery)
    reason = f"It replaces {roles.champion.method} of version {roles.champion.version} by hand."
    return roles.add(RoleEvent(when, delivery, BACK, reason, back), champion=back)
