"""`make nightly`: a year of flights in weekly deliveries, in a project in `.fedweave/nightly/`.

The first 49 weeks go through the library, the last three through the flow of a life: with a Prefect server, DVC and
MLflow. The end compares what was found with what was planted, and exits with 1 if they differ.
"""

import os
import runpy
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import fedweave as fw

ROOT = Path(__file__).resolve().parent.parent
PROJECT = Path(".fedweave", "nightly")
NIGHTS = 3  # through Prefect, DVC and MLflow


def main() -> None:
    """Play the year."""
    start = time.monotonic()
    example = runpy.run_path(str(ROOT / "examples" / "nightly" / "nightly.py"))
    shutil.rmtree(PROJECT, ignore_errors=True)
    PROJECT.mkdir(parents=True)
    subprocess.run(["git", "init", "--quiet", str(PROJECT)], check=True)  # of its own, as git ignores the folder
    command = [sys.executable, "-m", "fedweave.pipelines.commands.main", "init", str(PROJECT)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    os.chdir(PROJECT)
    life = example["main"](until=example["WEEKS"] - NIGHTS)
    nights(example)
    wrong = [*differences(life, example)]
    print(*life.describe(), sep="\n")
    print(f"{time.monotonic() - start:.0f} s; the page: {PROJECT / 'life' / 'lifecycle.html'}")
    print(*(wrong or ["found: all that was planted, and nothing else"]), sep="\n")
    sys.exit(bool(wrong))


def nights(example: dict[str, Any]) -> None:
    """The last weeks, each as one flow run."""
    import mlflow
    from prefect.client.orchestration import get_client

    from fedweave.pipelines.scheduling import server_watch
    from fedweave.pipelines.scheduling.life_flow import night

    with server_watch.use({}):
        for week in range(example["WEEKS"] - NIGHTS + 1, example["WEEKS"] + 1):
            example["arrive"](week)
            print(f"week {week}, in Prefect: {night('life')}", flush=True)
        with get_client(sync_client=True) as client:
            runs = client.read_flow_runs()
            print(f"Prefect: {len(runs)} flow runs, {len(client.read_artifacts())} tables")
    stored = ["life/deliveries.dvc", "life/models.dvc"]
    done = subprocess.run(["dvc", "status", *stored], capture_output=True, text=True, check=True)
    print(f"DVC, {' and '.join(stored)}: {done.stdout.strip()}")
    champion = mlflow.MlflowClient().get_model_version_by_alias("life", "champion")
    print(f"MLflow: models:/life@champion is version {champion.version}, {dict(champion.tags)}")


def differences(life: "fw.Lifecycle", example: dict[str, Any]) -> Iterator[str]:
    """A line for each thing that was planted and not found, or found and not planted."""
    ledger, (site, came), (shifted, since) = life.deliveries.ledger, example["NEW_SITE"], example["SHIFTED"]
    number = {one.source: one.number for one in ledger.arrivals}
    aside = [one.name for one in life.deliveries.quarantined]
    if aside != [f"week-{example['CUT']}.csv"]:
        yield f"quarantine: {aside}"
    corrected = {one.source: one.corrections for one in ledger.arrivals if one.corrections}
    if corrected != {f"week-{example['LATE'] + 1}.csv": 20}:
        yield f"corrections: {corrected}"
    joined = {one.source: one.joined for one in ledger.arrivals if one.joined}
    if joined != {f"week-{came}.csv": (site,)}:
        yield f"new clients: {joined}"
    if not any(one.event == "site joined" and one.delivery == number[f"week-{came}.csv"] for one in life.roles.events):
        yield f"{site} has no model in the week in which it came"
    found = {delivery: sentences for delivery, sentences in life.drifts.items() if sentences}
    if min(found, default=0) != number[f"week-{since}.csv"]:
        yield f"drift begins with delivery {min(found, default=0)}"
    for delivery, sentences in found.items():
        yield from (
            f"drift in delivery {delivery}: {one}" for one in sentences if not one.startswith(f"{shifted}: late (more")
        )


if __name__ == "__main__":
    main()
