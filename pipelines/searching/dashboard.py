"""Optuna's dashboard over every search of the study, on loopback.

It shows a copy in memory that follows the searches, so that nothing done in the browser can touch them. Searches whose
journal is not here, as in a fresh clone after `dvc pull`, are shown from the stage's output.
"""

import json
import socket
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from datetime import datetime
from pathlib import Path

import optuna
from optuna.storages import InMemoryStorage, JournalStorage
from optuna.trial import FrozenTrial, TrialState, create_trial

from fedweave.errors import BadInput
from fedweave.files import read
from fedweave.pipelines import paths
from fedweave.pipelines.searching import search
from fedweave.runs import assembly
from fedweave.study.spec import Study

HOST = "127.0.0.1"
EVERY = 2.0  # seconds between looks at the journals


class Mirror:
    """The searches of a study as a storage of their own, brought up to date by `follow`."""

    def __init__(self, study: Study) -> None:
        self.storage = InMemoryStorage()
        self._study = study
        self._journals: dict[str, JournalStorage] = {}
        self._shown: dict[str, tuple[optuna.Study, set[str]]] = {}

    def follow(self) -> int:
        """Take over what has ended since; returns how many searches there are."""
        for key in self._study.runs:
            trials, maximize = self._ended(key)
            if trials and key not in self._shown:
                copy = optuna.create_study(
                    storage=self.storage, study_name=key, direction="maximize" if maximize else "minimize"
                )
                self._shown[key] = copy, set()
            for trial in trials:
                copy, copied = self._shown[key]
                if str(trial.datetime_complete) not in copied:
                    copied.add(str(trial.datetime_complete))
                    with suppress(KeyError):  # the copy was deleted in the browser
                        copy.add_trial(trial)
        return len(self._shown)

    def _ended(self, key: str) -> tuple[list[FrozenTrial], bool]:
        """The finished trials of a search in the order of their end, and whether more is better."""
        journal, name = search.journal(self._study, key), search.digest(self._study, key)
        if key not in self._journals and journal.is_file():
            self._journals[key] = search.storage(journal)
        storage = self._journals.get(key)
        if storage is None or name not in {summary.study_name for summary in storage.get_all_studies()}:
            return stored(self._study, key)
        opened = optuna.load_study(study_name=name, storage=storage)
        trials = sorted(opened.get_trials(states=search.DONE), key=lambda trial: str(trial.datetime_complete))
        return trials, opened.direction == optuna.study.StudyDirection.MAXIMIZE


def stored(study: Study, key: str) -> tuple[list[FrozenTrial], bool]:
    """The trials that the stage wrote for a run, and whether more is better; empty without results."""
    file = paths.trials(study.name, study.runs[key].task, key)
    if not file.is_file():
        return [], True
    spaces = search.distributions(study, key)

    def taken(file: Path) -> tuple[list[FrozenTrial], bool]:
        record = json.loads(file.read_text(encoding="utf-8"))
        return list(_frozen(record["trials"], spaces)), record["maximize"]

    return read(file, taken, "write it again from the search: dvc repro tune")


def _frozen(trials: Iterable[dict], spaces: dict[str, optuna.distributions.BaseDistribution]) -> Iterable[FrozenTrial]:
    for trial in trials:
        if {*trial["params"]} - {*spaces}:
            continue  # of a space that params.yaml no longer declares
        frozen = create_trial(
            state=TrialState.PRUNED if trial["value"] is None else TrialState.COMPLETE,
            value=trial["value"],
            params=trial["params"],
            distributions={name: spaces[name] for name in trial["params"]},
            intermediate_values={int(step): value for step, value in trial["curve"].items()},
        )
        frozen.datetime_start = datetime.fromtimestamp(trial["started"])
        frozen.datetime_complete = datetime.fromtimestamp(trial["started"] + trial["seconds"])
        yield frozen


def main(port: int = 8080) -> None:
    """Serve the dashboard until Ctrl-C.

    Raises:
        BadInput: no search yet, a port that is none, or one that is taken.
    """
    if not 0 < port < 2**16:
        raise BadInput(f"--port: {port} is out of range; it must be between 1 and {2**16 - 1}")
    from optuna_dashboard import run_server

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = assembly.load()
    mirror = Mirror(study)
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise BadInput(f"port {port} is taken; choose another: fedweave dashboard --port {port + 1}")
    count = mirror.follow()
    if not count:
        raise BadInput(
            f"{paths.STATE / 'tune' / study.name}: no trial has ended yet; start a search with: dvc repro tune"
        )
    threading.Thread(target=_keep_up, args=(mirror,), daemon=True).start()
    print(f"{count} searches of {study.name}: http://{HOST}:{port}", flush=True)
    run_server(mirror.storage, HOST, port)


def _keep_up(mirror: Mirror) -> None:
    while True:
        time.sleep(EVERY)
        mirror.follow()
