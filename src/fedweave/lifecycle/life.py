"""A life: a source that grows, the models that are deployed on it, and the night that brings both up to date.

    life = fw.Lifecycle.begin("life", source="flights/*.csv", client="airport", label="delay")
    life.refresh()      # what is new in the source
    life.evaluate()     # new rows test the champion and the challenger
    life.challenge()    # the test of both decides; the next challenger is trained

Each call can be killed at any moment, and repeated: it does what is left.
"""

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedweave import results
from fedweave.comparison.compare import perform
from fedweave.comparison.comparison import Comparison
from fedweave.comparison.method_result import MethodResult
from fedweave.comparison.plan import plan as make_plan
from fedweave.data.partitions.splits import PARTS
from fedweave.errors import BadInput, Diverged, format_count
from fedweave.lifecycle import answer_log, forgetting, life_settings, record, roles, sites, timestamp, warm_start
from fedweave.lifecycle.deliveries import CHANGE, LABELLED, NEW, OWN, PART, Deliveries
from fedweave.lifecycle.drift import PREDICTION, Drift, find_drift
from fedweave.lifecycle.ledger import Arrival, Quarantined, lock
from fedweave.lifecycle.record import CHALLENGER, CHAMPION
from fedweave.lifecycle.roles import Deployed, RoleEvent, Roles
from fedweave.lifecycle.sites import LifeModels
from fedweave.metrics import Margin, default_margin, higher_is_better, parse_margin, write_margin
from fedweave.own_data.argument_checks import as_names
from fedweave.own_data.federation import Federation
from fedweave.prediction.input_description import read_description
from fedweave.results.sequential import Challenge

if TYPE_CHECKING:
    import pandas as pd


class Lifecycle:
    """A life in a folder: deliveries, their record, the models, and which of them is the champion."""

    def __init__(self, folder: Path | str) -> None:
        """Open a life.

        Raises:
            BadInput: there is none in the folder.
        """
        self.folder = Path(folder)
        self._loaded = dict[tuple[Path, str, tuple[int, ...]], LifeModels]()  # models of a training never change
        self.settings = life_settings.read_settings(self.folder)

    @classmethod
    def begin(cls, folder: Path | str, **settings: Any) -> "Lifecycle":
        """Begin a life, or open one that was begun with the same settings. Before its first rows they may change.

        Args:
            folder: new or empty.
            settings: of life.json by their names, but for source (address), drift_level (level of `DriftSettings`) and
                join_rounds (rounds of `SiteSettings`): see `Source`, `Terms`, `LifeTraining`, `ChallengePlan`,
                `DriftSettings` and `SiteSettings`.

        Raises:
            BadInput: a setting that does not exist or contradicts another one, or a folder with another life.
        """
        life_settings.begin(Path(folder), life_settings.parse_arguments(settings))
        return cls(folder)

    @cached_property
    def deliveries(self) -> Deliveries:
        """The rows."""
        return Deliveries(self.folder, self.settings.terms)

    @property
    def newest(self) -> int:
        """Number of the newest delivery; 0 before the first."""
        return len(self.deliveries.ledger.arrivals)

    @property
    def roles(self) -> Roles:
        """Champion, challenger and all events."""
        return roles.read_roles(self.folder)

    @property
    def record(self) -> "pd.DataFrame":
        """The scores so far: a row per delivery, model and client."""
        return record.read_record(self.folder)

    @property
    def answered(self) -> "pd.DataFrame":
        """The scores of what a server answered, in the columns of the record; see `lifecycle.answering`."""
        return record.read_record(self.folder, answer_log.SCORES)

    @property
    def champion(self) -> LifeModels:
        """The models that are deployed: `predict`, `export`.

        Raises:
            BadInput: there are none yet.
        """
        return self.load(self._champion())

    def _champion(self) -> Deployed:
        if (champion := self.roles.champion) is None:
            raise BadInput(self.folder, "has no champion yet; train one: fedweave challenge")
        return champion

    def load(self, deployed: Deployed, before: float = math.inf) -> LifeModels:
        """The models of a training, and of the sites that joined it before a delivery; default: all of them."""
        folder = self.models(deployed.version, deployed.parent)
        joined = tuple(name for name in sites.list_joined(folder) if name < before)
        if (key := (folder, deployed.method, joined)) not in self._loaded:
            self._loaded[key] = sites.read_models(*key)
        return self._loaded[key]

    def models(self, version: int, parent: int = 0) -> Path:
        """The folder of the models that were trained on a version, from scratch or from those of a version before."""
        return self.folder / "models" / f"{version:06}" / (warm_start.FOLDER if parent else "")

    def refresh(self, accept: str | Sequence[str] = ()) -> list[Arrival | Quarantined]:
        """Take what is new in the source: validated, once, in order; what is suspicious is put aside.

        Args:
            accept: name of a reading whose values are right, new or put aside before, or several.

        Raises:
            BadInput: the source does not answer, its first reading is damaged or lacks a column, or nothing that is
                new or was put aside has a name in `accept`.
            Busy: another process is at it.
        """
        source, columns = self.settings.source, self.settings.training.named_columns
        accepted = [accept] if isinstance(accept, str) else accept
        return [*self.deliveries.take(source.readings(), source.encoding, accepted, columns)]

    def evaluate(self) -> "pd.DataFrame":
        """Score the deployed models on deliveries that they have not seen; returns what was added to the record.

        Raises:
            Busy: another process is at it.
        """
        with lock(self.folder, "roles"):
            now, scored = self.roles, self.record
            done = {*zip(scored["delivery"], scored["version"], strict=True)}
            deployed = {role: one for role, one in ((CHAMPION, now.champion), (CHALLENGER, now.challenger)) if one}
            for arrival in self.deliveries.ledger.arrivals:
                ready = {role: one for role, one in deployed.items() if one.since < arrival.number}
                due = {role for role, one in ready.items() if (arrival.number, one.version) not in done}
                if due and arrival.labelled:
                    self._score(arrival, ready, due)
            self._score_answers()
            if now.champion is not None:
                self._note_drift(now.champion)
            return self.record.iloc[len(scored) :]

    def _score(self, arrival: Arrival, deployed: dict[str, Deployed], due: set[str]) -> None:
        """Add the scores of the roles in `due` on one delivery."""
        terms = self.settings.terms
        rows = self.deliveries.rows(arrival.number)
        rows = rows[rows[LABELLED] == arrival.number].drop(columns=[*OWN, LABELLED, "number"])
        about: dict[str, dict[str, Any]] = {
            role: {"delivery": arrival.number, "date": arrival.when, "version": one.version, "method": one.method}
            for role, one in deployed.items()
        }
        if {*deployed} == {CHAMPION, CHALLENGER}:
            about[CHALLENGER]["against"] = deployed[CHAMPION].version
        models = {role: self.load(one, arrival.number) for role, one in deployed.items()}
        errors = record.last_errors(self.record, deployed, arrival.number)
        entries = record.score(rows, terms.client, terms.label, models, errors)
        record.append(self.folder, [{**about[entry["role"]], **entry} for entry in entries if entry["role"] in due])

    def _score_answers(self) -> None:
        """Add the scores of what a server has answered to rows that have their label now."""
        label, done = self.settings.terms.label, {*self.answered["delivery"]}
        if not (self.folder / answer_log.FOLDER).is_dir() or (champion := self.roles.champion) is None:
            return
        metric, rows = self.load(champion).metric, self.deliveries.rows()
        methods = {event.model.version: event.model.method for event in self.roles.events}
        for arrival in self.deliveries.ledger.arrivals:
            if arrival.labelled and arrival.number not in done:
                own = rows[(rows[LABELLED] == arrival.number) & rows[label].notna()]  # not taken back since
                scored = answer_log.score_answers(self.folder, own, label, arrival.number, metric)
                about = {"delivery": arrival.number, "date": arrival.when}
                entries = [{**about, "method": methods[entry["version"]], **entry} for entry in scored]
                record.append(self.folder, entries, answer_log.SCORES)

    def drift(self, number: int = 0) -> Drift:
        """How the new rows of a delivery differ from those that the champion was trained on; labels are not needed.

        Args:
            number: of the delivery; default: the newest.

        Raises:
            BadInput: there is no champion, or no such delivery.
        """
        champion = self._champion()
        number, terms, training = number or self.newest, self.settings.terms, self.settings.training
        if number not in range(1, self.newest + 1):
            raise BadInput("number", f"{number!r} is no delivery; they are 1 to {self.newest}")
        new = self.deliveries.rows(number)
        new = new[(new["number"] == number) & (new[CHANGE] == NEW)]
        hidden = {terms.client, terms.label, *terms.key, *OWN, LABELLED, "number", *training.columns.get("exclude", ())}
        columns = training.columns.get("features") or [name for name in new if name not in hidden]
        known = self.deliveries.rows(champion.version)
        if texts := {*as_names(training.columns.get("text", ()), "text", 0)}:
            columns = [*(name for name in columns if name not in texts), PREDICTION]
            models = self.load(champion, number)
            seen = known[PART] != PARTS[2]  # what it says of rows that it was trained on is too sure
            known, new = (record.add_predictions(rows, terms.client, models) for rows in (known, new))
            known.loc[seen, PREDICTION] = None
        own = self.record[self.record["version"] == champion.version]
        before, now = (own[own["delivery"] < number], own[own["delivery"] == number])
        means = before.groupby("client")["score"].mean()
        scores = {
            name: (means[name], score) for name, score in zip(now["client"], now["score"], strict=True) if name in means
        }
        return find_drift(known, new, terms.client, columns, terms.label, self.settings.drift, scores)

    @property
    def drifts(self) -> dict[int, list[str]]:
        """Number of an evaluated delivery -> a sentence for each group of clients that drifted in it."""
        return record.read_drifts(self.folder)

    def _note_drift(self, champion: Deployed) -> None:
        """Store the sentences on drift in deliveries that came after the champion's training."""
        metric, noted = self.load(champion).metric, self.drifts
        due = [number for number in range(champion.version + 1, self.newest + 1) if number not in noted]
        if due:
            found = {number: [one.describe(metric) for one in self.drift(number).groups] for number in due}
            record.write_drifts(self.folder, noted | found)

    def describe_drift(self) -> list[str]:
        """A sentence for each group of clients that drift together in the newest delivery, once it is evaluated."""
        return [f"drift in delivery {self.newest}: {one}" for one in self.drifts.get(self.newest, ())]

    def challenge(self, progress: bool = False) -> list[RoleEvent]:
        """Decide by the test of the challenger, and train the next one; the first training is the first champion.

        Challengers are trained on all rows that have come so far, from scratch and on from the champion; validation
        rows choose the one that is tested.

        Returns:
            what has happened, in order; nothing where the test goes on.

        Raises:
            BadInput: there are no deliveries, or too few labelled rows.
            Busy: another process is at it.
        """
        newest = self.newest  # a delivery that comes meanwhile is for the next call
        self.evaluate()
        with lock(self.folder, "roles"):
            before = len(self.roles.events)
            self._decide(newest)
            now = self.roles
            if now.champion is None:
                first = self._deploy(self._train(newest, progress), newest)
                self._enter(roles.FIRST, "There was none.", first, champion=first)
            elif now.challenger is None and now.champion.version < newest and self.next_start(newest) <= newest:
                next_one, reason = self._train_challenger(now.champion, newest, progress)
                tested = f"Deliveries after {newest} test it against version {now.champion.version}."
                self._enter(roles.BEGUN, f"{tested} {reason}".rstrip(), next_one, challenger=next_one)
            if (champion := self.roles.champion) is not None:
                self._admit(champion, newest)
                self._archive(champion, newest)
            return [*self.roles.events[before:]]

    def _admit(self, champion: Deployed, newest: int) -> None:
        """Give new sites a model of the champion, and say how good it is."""
        client, label = self.settings.terms.client, self.settings.terms.label
        models, rows = self.load(champion), self._labelled(newest)
        then = {site: int((self._labelled(n)[client] == site).sum()) for site, n in models.since.items()}
        new = sites.find_newcomers(models, rows[client].value_counts().to_dict(), then)
        if new and champion.version < newest:
            own, folder = rows[rows[client].isin(new)], self.models(champion.version, champion.parent)
            place = folder / sites.FOLDER / f"{newest:06}"
            try:
                federation = self.federation(champion.version, models.trained if champion.parent else None)
                rounds = self.settings.sites.rounds
                sites.join(models, own, (client, label, PART), federation, rounds, place)
            except BadInput as error:  # the others go on; the next night tries again
                self._note(roles.WAITING, f"{', '.join(new)}: {error}", champion, newest)
            models = self.load(champion)
        for site, number in models.since.items():
            own = self._labelled(number)
            reason = sites.describe(models, site, own.loc[own[client] == site, PART])
            self._note(roles.JOINED, reason, champion, number)

    def _archive(self, champion: Deployed, newest: int) -> None:
        """Export the models of sites that have left, once."""
        terms, models = self.settings.terms, self.load(champion)
        rows, after = self.deliveries.rows(newest), self.settings.sites.gone_after
        for site, last in sites.find_gone(rows, terms.client, newest, after):
            said = f"{site} has had no rows since delivery {last}: "
            if site in models.clients and not any(one.reason.startswith(said) for one in self.roles.events):
                known = self._labelled(champion.version)
                owed = sites.describe_influence(models, site, known.loc[known[PART] == PARTS[0], terms.client])
                reason = f"{said}its model is in {sites.archive(models, self.folder, site, last)}; {owed}."
                self._enter(roles.LEFT, reason, champion, newest)

    def next_start(self, newest: int) -> int:
        """The first delivery, `newest` or a later one, with which a challenger may begin."""
        return self.settings.challenge.next_start(self.roles.starts, newest)

    def _decide(self, newest: int) -> None:
        """Move the roles where the test is over."""
        now = self.roles
        if now.challenger is not None and (challenge := self.judge()) is not None:
            decided = roles.decide(now, challenge, self.load(now.challenger).metric, timestamp(), newest)
            if decided != now:
                roles.write_roles(self.folder, decided)

    def judge(self) -> Challenge | None:
        """The test of the challenger so far; None without one."""
        now = self.roles
        if now.challenger is None:
            return None
        given = now.challenger.margin  # a later one would judge by the scores that it was chosen after
        margin = self._margin(self.load(now.challenger).metric) if given is None else parse_margin(given, "margin")
        return roles.judge(self.record, now, margin)

    def _margin(self, metric: str) -> Margin:
        """The margin of equivalence that the settings have now."""
        given = self.settings.training.margin
        return default_margin(metric) if given is None else parse_margin(given, "margin")

    def _enter(self, event: str, reason: str, model: Deployed, number: int = 0, **changed: Deployed | None) -> None:
        entry = RoleEvent(timestamp(), number or model.since, event, reason, model)
        roles.write_roles(self.folder, self.roles.add(entry, **changed))

    def _note(self, event: str, reason: str, model: Deployed, number: int) -> None:
        """Enter what happened to a site, once."""
        if reason not in {one.reason for one in self.roles.events}:
            self._enter(event, reason, model, number)

    def rollback(self) -> RoleEvent:
        """Make the champion before the present one the champion again.

        Raises:
            BadInput: there has been no other.
            Busy: another process is at it.
        """
        with lock(self.folder, "roles"):
            scored = self.record["delivery"].max()  # later ones test the champion that comes back
            last = self.newest if math.isnan(scored) else int(scored)
            roles.write_roles(self.folder, roles.roll_back(self.roles, timestamp(), last))
            return self.roles.events[-1]

    def forget(self, site: str, progress: bool = False) -> str:
        """Erase the rows of a site, and all models that were trained with it; train the champion again without it.

        It can be killed at any moment, and repeated; a site that was forgotten is proved to be so again.

        Returns:
            a sentence that says that no delivery and no training has a row of the site, by digests.

        Raises:
            BadInput: there is no such site, or no other one to train on.
            Busy: another process is at it.
        """
        with lock(self.folder, "roles"):
            forgetting.erase_rows(self.deliveries, site)
            number = self.deliveries.ledger.forgotten[site]
            if not any((one.event, one.delivery) == (roles.FORGOTTEN, number) for one in self.roles.events):
                trained, now = self._deploy(self._train(number, progress), number), self.roles
                if now.challenger is not None:
                    reason = f"{site} is forgotten."
                    given_up = RoleEvent(timestamp(), number, roles.GIVEN_UP, reason, now.challenger)
                    roles.write_roles(self.folder, now.add(given_up, challenger=None))
                self._enter(roles.FORGOTTEN, f"It was trained without {site}.", trained, champion=trained)
            forgetting.erase_models(self.folder, number, site)
            return forgetting.prove(self.folder, self.deliveries.ledger, self.deliveries, site)

    def _labelled(self, version: int) -> "pd.DataFrame":
        """The labelled rows of a version, of clients that have some in each part."""
        terms = self.settings.terms
        rows = self.deliveries.rows(version)
        rows = rows[rows[terms.label].notna()]
        return sites.with_all_parts(rows, terms.client, PART)

    def federation(self, version: int, like: MethodResult | None = None) -> Federation:
        """The labelled rows of a version, with the parts that rows keep for ever.

        Clients without labelled rows in each part are left out.

        Args:
            like: a training, as whose rows these are prepared; default: what prepares them is fitted on them.

        Raises:
            BadInput: there is no such client, or rows that cannot be prepared alike.
        """
        terms, training, rows = self.settings.terms, self.settings.training, self._labelled(version)
        if not len(rows):
            raise BadInput(
                self.folder, f"no client of delivery {version} has {len(PARTS)} labelled rows; refresh it first"
            )
        options: Any = {**training.columns, "target": terms.target or None, "split": PART}
        if like is not None:
            about = read_description(like.run.folder.parents[1], like.run.task)
            return warm_start.prepare_alike(about, rows, terms.client, terms.label, options)
        if "features" not in options:
            own = [
                name for name in (*OWN, LABELLED, "number", *terms.key) if name not in (PART, terms.client, terms.label)
            ]
            options["exclude"] = [*options.get("exclude", ()), *own]
        options["name"] = self.folder.resolve().name
        return Federation.from_pandas(rows, client=terms.client, label=terms.label, **options)

    def _train(self, version: int, progress: bool) -> MethodResult:
        """Train on a version, and again on its validation rows too; a training that was killed goes on."""
        training, folder, federation = self.settings.training, self.models(version), self.federation(version)
        forgetting.store_rows(folder, self._labelled(version))
        plan = make_plan(
            federation,
            [*training.methods],
            model=training.model,
            seeds=1,
            metric=training.metric or None,
            evaluate={"predictions": False},
            central=False,
            title="fit()",
            train={"rounds": training.rounds, **training.train},
        )
        perform(plan, folder, progress=progress, figures=False)
        study = results.load_study(folder, plan.study.runs)
        best = Comparison(study, (), None, plan.inputs.model, federation).best()
        best.refit()
        return best

    def _train_challenger(self, champion: Deployed, version: int, progress: bool) -> tuple[Deployed, str]:
        """Train from scratch and on from the champion; returns the better one by validation, and why it is that."""
        scratch, training = self._train(version, progress), self.settings.training
        rounds = training.rounds if training.warm_rounds is None else training.warm_rounds
        if not rounds:
            return self._deploy(scratch, version), ""
        try:
            trained, folder = self.load(champion).trained, self.models(version, champion.version)
            warm = warm_start.train(trained, self.federation(version, trained), rounds, folder)
            is_warm, reason = warm_start.choose(scratch, warm, champion.version)
        except (BadInput, Diverged) as error:
            why = (error.problem or error.place).partition("; ")[0]
            reason = f"It is trained from scratch, as version {champion.version} cannot go on: {why}."
            return self._deploy(scratch, version), reason
        return self._deploy(warm, version, champion) if is_warm else self._deploy(scratch, version), reason

    def _deploy(self, trained: MethodResult, version: int, parent: Deployed | None = None) -> Deployed:
        """A training as what may get a role."""
        data = roles.hash_data(self.deliveries.ledger, version)
        traffic = int(trained.rounds[["bytes_up", "bytes_down"]].to_numpy().sum())
        before, origin = (0, 0) if parent is None else (parent.traffic, parent.version)
        plan, margin = self.settings.challenge, write_margin(self._margin(str(trained.run.info["metric"])))
        return Deployed(version, trained.name, version, data, before + traffic, plan, origin, margin)

    def describe(self) -> list[str]:
        """The state in sentences."""
        ledger, now, scores = self.deliveries.ledger, self.roles, self.record
        lines = [
            f"{self.folder}: {format_count(len(ledger.arrivals), 'delivery')}, "
            f"{format_count(len(self.deliveries.rows()), 'row')}"
        ]
        lines += [str(one) for one in (*ledger.arrivals[-1:], *self.deliveries.quarantined)]
        for role, one in ((CHAMPION, now.champion), (CHALLENGER, now.challenger)):
            if one is not None:
                own = scores[scores["version"] == one.version]
                lines.append(f"{role}: {one.method} of version {one.version}, {'' if len(own) else 'not '}scored")
                lines += self.describe_scores(own)[-1:]
        lines += self.describe_scores(self.answered)[-1:]
        return [*lines, *self.describe_drift(), self.describe_test(), *(str(one) for one in now.events[-3:])]

    def describe_scores(self, scores: "pd.DataFrame") -> list[str]:
        """A line for each delivery and model in a part of the record."""
        lines = []
        for (number, role, version), rows in scores.groupby(["delivery", "role", "version"], sort=True):
            metric, scored = str(rows["metric"].iloc[0]), rows["score"]
            numbers = (scored.mean(), scored.min() if higher_is_better(metric) else scored.max())
            mean, worst = (results.format_score(float(one), math.nan, metric) for one in numbers)
            over = f"over {format_count(len(rows), 'client')}, worst {worst}"
            verb = "have" if role == answer_log.ROLE else "has"
            lines.append(f"delivery {number}: {role} of version {version} {verb} {metric} {mean} {over}")
        return lines

    def describe_test(self) -> str:
        """How the test of the challenger stands."""
        now = self.roles
        if now.challenger is not None and (challenge := self.judge()) is not None:
            return challenge.describe(self.load(now.challenger).metric)
        if now.champion is None:
            return "There is no champion yet: fedweave challenge trains it."
        start = self.next_start(max(self.newest, now.champion.version + 1))
        return f"There is no challenger; the next one can begin with delivery {start}."
