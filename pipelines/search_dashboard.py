"""Optuna's dashboard over every search of the study, on loopback.

It shows a copy in memory that is updated from the searches, and refuses what would change it. Searches without a
journal, as in a fresh clone after `dvc pull`, are read from the stage's output. Importances are shown only where there
are enough trials for them.
"""

import json
import re
import socket
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.storages import InMemoryStorage, JournalStorage
from optuna.study import StudyDirection
from optuna.study._frozen import FrozenStudy
from optuna.trial import FrozenTrial, TrialState, create_trial

from fedweave.errors import BadInput, format_count
from fedweave.files.atomic import read_json
from fedweave.search import search, trials
from fedweave.study import validate
from fedweave.study.spec import StudySpec

from . import paths
from .addresses import LOOPBACK

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIApplication

OBJECTIVE_NAMES = {"score": "validation score", "bytes": "bytes of a repetition"}
UPDATE_INTERVAL = 2.0  # seconds between two readings of the journals
READ_ONLY = "a copy to look at: change or delete a search with its study in params.yaml"
IMPORTANCES = re.compile(r"/api/studies/(\d+)/param_importances")


class SearchStorage(InMemoryStorage):
    """Searches whose names in the list contain the score of the declared values and the best one."""

    def get_all_studies(self) -> list[FrozenStudy]:
        """The searches. A card in the list shows only a name and a direction."""
        studies = super().get_all_studies()
        for study in studies:
            finished = self.get_all_trials(study._study_id, False, (TrialState.COMPLETE,))
            if scores := [trial.values[0] for trial in finished]:
                best = max(scores) if study.directions[0] == StudyDirection.MAXIMIZE else min(scores)
                study.study_name += f": {' → '.join(dict.fromkeys(f'{score:.4g}' for score in (scores[0], best)))}"
        return studies


class SearchReplica:
    """A copy of the searches of a study in a storage in memory, which `update` brings up to date."""

    def __init__(self, study: StudySpec) -> None:
        self.storage = SearchStorage()
        self._study = study
        self._journals: dict[str, JournalStorage] = {}
        self._shown: dict[str, tuple[optuna.Study, set[str]]] = {}

    def update(self) -> int:
        """Copy the trials that have ended since the last call; returns the number of searches."""
        for key in self._study.runs:
            ended, higher_is_better = self._ended_trials(key)
            if ended and key not in self._shown:
                self._shown[key] = self._copy(key, higher_is_better), set()
            for trial in ended:
                copy, copied = self._shown[key]
                if str(trial.datetime_complete) not in copied:
                    copied.add(str(trial.datetime_complete))
                    trial.user_attrs = {}  # scores by client, of which there may be thousands
                    copy.add_trial(trial)
        return len(self._shown)

    def wrap(self, page: "WSGIApplication") -> "WSGIApplication":
        """The web application `page`, without changes, and without importances of searches with too few trials."""

        def answer(environ: dict[str, Any], start: "StartResponse") -> Iterable[bytes]:
            if environ.get("REQUEST_METHOD", "GET") not in ("GET", "HEAD"):
                start("403 Forbidden", [("Content-Type", "application/json")])
                return [json.dumps({"reason": READ_ONLY}).encode()]
            request = IMPORTANCES.fullmatch(environ.get("PATH_INFO", ""))
            if request is None or self._has_enough_trials(int(request[1])):
                return page(environ, start)
            start("200 OK", [("Content-Type", "application/json")])
            return [json.dumps({"param_importances": [[] for _ in self._study.tune.objectives]}).encode()]

        return answer

    def _has_enough_trials(self, number: int) -> bool:
        return trials.are_enough(self.storage.get_all_trials(number, False, (TrialState.COMPLETE,)))

    def _copy(self, key: str, higher_is_better: bool) -> optuna.Study:
        tune = self._study.tune
        copy = optuna.create_study(
            storage=self.storage, study_name=key, directions=search.directions(tune, higher_is_better)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            copy.set_metric_names([OBJECTIVE_NAMES[name] for name in tune.objectives])
        return copy

    def _ended_trials(self, key: str) -> tuple[list[FrozenTrial], bool]:
        """The finished trials of a search in the order of their end, and whether more is better."""
        journal, name = search.journal_path(self._study, key), search.digest(self._study, key)
        if key not in self._journals and journal.is_file():
            self._journals[key] = search.open_storage(journal)
        storage = self._journals.get(key)
        if storage is None or name not in {summary.study_name for summary in storage.get_all_studies()}:
            return read_stored_trials(self._study, key)
        optuna_study = optuna.load_study(study_name=name, storage=storage)
        ended = sorted(optuna_study.get_trials(states=search.DONE), key=lambda trial: str(trial.datetime_complete))
        return ended, optuna_study.directions[0] == StudyDirection.MAXIMIZE


def read_stored_trials(study: StudySpec, key: str) -> tuple[list[FrozenTrial], bool]:
    """(trials that the stage `tune` wrote for a run, whether higher scores are better); no trials without results."""
    file = paths.trials(study.name, study.runs[key].task, key)
    if not file.is_file():
        return [], True
    spaces = search.distributions(study, key)

    def parse(record: Mapping[str, Any]) -> tuple[list[FrozenTrial], bool]:
        return list(_create_trials(record["trials"], spaces, study.tune.objectives)), record["maximize"]

    trials, maximize = read_json(file, "write it again from the search: dvc repro tune", parse)
    return trials, maximize


def _create_trials(
    records: Iterable[dict[str, Any]],
    spaces: dict[str, optuna.distributions.BaseDistribution],
    objectives: Sequence[str],
) -> Iterable[FrozenTrial]:
    for record in records:
        if not _fits(record["params"], spaces) or ("bytes" in objectives and "bytes" not in record):
            continue  # params.yaml no longer declares this search space or these objectives
        values = [record["value"], *(record[name] for name in objectives[1:])]
        trial = create_trial(
            state=TrialState.PRUNED if record["value"] is None else TrialState.COMPLETE,
            values=None if record["value"] is None else values,
            params=record["params"],
            distributions={name: spaces[name] for name in record["params"]},
            # Optuna has none where there are two objectives.
            intermediate_values={int(step): v for step, v in record["curve"].items()} if len(values) == 1 else None,
        )
        trial.datetime_start = datetime.fromtimestamp(record["started"])
        trial.datetime_complete = datetime.fromtimestamp(record["started"] + record["seconds"])
        yield trial


def _fits(params: Mapping[str, Any], spaces: Mapping[str, optuna.distributions.BaseDistribution]) -> bool:
    """Whether the search space has all settings of a trial, with their values."""
    try:
        return all(spaces[name]._contains(spaces[name].to_internal_repr(value)) for name, value in params.items())
    except (KeyError, ValueError):  # another setting, or none of the choices
        return False


def main(port: int = 8080) -> None:
    """Serve the dashboard until Ctrl-C.

    Raises:
        BadInput: there is no search yet, or the port is not valid or taken.
    """
    if not 0 < port < 2**16:
        raise BadInput(f"--port: {port} is out of range; it must be between 1 and {2**16 - 1}")
    from optuna_dashboard import wsgi

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = validate.load()
    replica = SearchReplica(study)
    with socket.socket() as probe:
        if probe.connect_ex((LOOPBACK, port)) == 0:
            raise BadInput(f"port {port} is taken; choose another: fedweave dashboard --port {port + 1}")
    count = replica.update()
    if not count:
        raise BadInput(
            f"{paths.STATE / 'tune' / study.name}: no trial has ended yet; start a search with: dvc repro tune"
        )
    threading.Thread(target=_update_forever, args=(replica,), daemon=True).start()
    print(f"{format_count(count, 'search')} of {study.name}: http://{LOOPBACK}:{port}", flush=True)
    print("it is read-only: its buttons that edit or delete are refused", flush=True)
    make_server(LOOPBACK, port, replica.wrap(wsgi(replica.storage)), handler_class=_QuietHandler).serve_forever()


class _QuietHandler(WSGIRequestHandler):
    """A handler that does not list requests in the terminal."""

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def _update_forever(replica: SearchReplica) -> None:
    """Update the copy until the process ends; an error is printed once, as long as it stays the same.

    A stage may be writing the files at this moment.
    """
    printed = ""
    while True:
        time.sleep(UPDATE_INTERVAL)
        try:
            replica.update()
            printed = ""
        except (BadInput, OSError) as error:
            if str(error) != printed:
                print(f"not up to date: {error}", file=sys.stderr, flush=True)
            printed = str(error)
