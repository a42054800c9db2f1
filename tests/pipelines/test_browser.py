"""The two UIs as a user sees them: real servers on free ports, real runs, pages rendered by headless Chromium."""

import json
import os
import re
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from html import escape, unescape
from pathlib import Path
from typing import NamedTuple

import pytest
from servers import Project, answers, free_port, process, study, until

from fedweave import report
from fedweave.pipelines.addresses import page
from tests.fake_results import ARMS, write_study

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--virtual-time-budget=30000",
    "--dump-dom",
)

pytestmark = [
    pytest.mark.acceptance,
    pytest.mark.xdist_group("browser"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium"),
]


FRAME = '<iframe width={} height={} style="border: 0" srcdoc="{}"></iframe>'
MEASURE = """<p></p><script>
const parts = "figure svg, .answers, .forest, .forest li > span, .summary, .note, h1, h2";
onload = () => {
  const measured = [...document.querySelectorAll("iframe")].map(frame => {
    const page = frame.contentDocument;
    const drawn = [...page.querySelectorAll(parts)].filter(one => one.checkVisibility());
    const cut = drawn.filter(one => one.getBoundingClientRect().right > frame.contentWindow.innerWidth);
    const bottom = (part) => Math.ceil(page.querySelector(part).getBoundingClientRect().bottom);
    return {width: frame.clientWidth, height: frame.clientHeight, wide: page.documentElement.scrollWidth,
            cut: cut.map(one => one.outerHTML.slice(0, 80)), drawn: drawn.length, answers: bottom(".answers"),
            picture: bottom(".forest ol"), all: page.documentElement.scrollHeight};
  });
  document.querySelector("p").textContent = JSON.stringify(measured);
};</script>"""
SCREENS = {(390, 844): 7, (700, 900): 9, (1400, 900): 6}  # width and height of a screen -> most screens of the report


def test_the_report_fits_its_screen(tmp_path: Path) -> None:
    """On a phone and a tablet too, the page does not scroll sideways. Tables scroll in their frames. No drawing is cut.
    The first screen has the answers and the whole picture of a task.
    """
    folder = write_study(tmp_path / "results" / "toy", {"shoulder": ARMS}, clients=20, rounds=8)
    page = escape(report.build(folder).read_text(encoding="utf-8"))
    file = tmp_path / "frame.html"
    file.write_text("".join(FRAME.format(*size, page) for size in SCREENS) + MEASURE, encoding="utf-8")
    command = [
        str(CHROMIUM),
        *FLAGS,
        "--window-size=1600,1000",
        f"--user-data-dir={tmp_path / 'profile'}",
        file.as_uri(),
    ]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False).stdout
    found = re.search(r"<p>(\[.+\])</p>", dom)
    assert found, dom[-500:]
    measured = json.loads(unescape(found[1]))
    assert len(measured) == len(SCREENS)
    for screen in measured:
        width, height = screen["width"], screen["height"]
        assert screen["wide"] <= width
        assert screen["drawn"] > 10
        assert screen["cut"] == [], width
        assert screen["answers"] < screen["picture"] <= height
        assert screen["all"] <= SCREENS[width, height] * height


class Site(NamedTuple):
    """The addresses of the two UIs, the project that they show, and a scratch folder for the browser."""

    mlflow: str
    prefect: str
    project: Project
    scratch: Path

    def page(self, address: str, *words: str) -> str:
        """The DOM of a page as soon as it contains `words`. On a loaded machine this may take a second try."""
        for attempt in range(3):
            profile = self.scratch / f"profile-{attempt}-{len(list(self.scratch.iterdir()))}"
            command = [str(CHROMIUM), *FLAGS, f"--user-data-dir={profile}", address]
            dom = unescape(subprocess.run(command, capture_output=True, text=True, timeout=120, check=False).stdout)
            if all(word in dom for word in words):
                return dom
        missing = [word for word in words if word not in dom]
        pytest.fail(f"{address}: {missing} not in the page, which says: {dom[-2000:]}")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The two UIs of a project whose study was reproduced by a flow. `make ui` runs in the background with SIGINT
    ignored, as a shell starts it.
    """
    base = tmp_path_factory.mktemp("browser")
    project = Project(base / "project", study(["digits-fedavg"]))
    mlflow, prefect = free_port(), free_port()
    env = {**project.env, "MLFLOW_PORT": str(mlflow), "PREFECT_PORT": str(prefect)}
    script = f"trap '' INT; exec {sys.executable} -m fedweave.pipelines.ui"
    log = base / "ui.log"
    with process(["/bin/sh", "-c", script], project.folder, env, log) as ui:
        assert until(lambda: "Ctrl-C ends both" in log.read_text() or ui.poll() is not None, 600), log.read_text()
        assert ui.poll() is None, log.read_text()
        api = f"http://127.0.0.1:{prefect}"
        ports = {"MLFLOW_PORT": str(mlflow), "PREFECT_API_URL": f"{api}/api"}
        project.python("fedweave.pipelines.commands.main", "flow", "--retries", "0", **ports)
        yield Site(f"http://127.0.0.1:{mlflow}", api, project, base)
        os.kill(ui.pid, signal.SIGTERM)
        assert ui.wait(40) == 128 + signal.SIGTERM, log.read_text()
    assert not any(is_listening(port) for port in (mlflow, prefect))


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def query_one(file: Path, question: str) -> str:
    """The first cell of a database's answer, as soon as there is one: Prefect writes some records in the background."""
    rows: list[tuple[object, ...]] = []

    def ask() -> bool:
        with closing(sqlite3.connect(f"file:{file}?mode=ro", uri=True)) as base:
            rows[:] = base.execute(question).fetchall()
        return bool(rows)

    assert until(ask), question
    return str(rows[0][0])


def artifact(site: Site, key: str) -> str:
    """The address of an artifact's page."""
    made = query_one(site.project.folder / ".prefect" / "prefect.db", f"select id from artifact where key = '{key}'")
    return f"{site.prefect}/artifacts/artifact/{made}"


def test_prefect_shows_the_flow_run_and_its_stages(site: Site) -> None:
    """The page finds its server at a port other than the default."""
    base = site.project.folder / ".prefect" / "prefect.db"
    run, task = (
        query_one(base, "select id from flow_run"),
        query_one(base, "select id from task_run where name = 'train@digits-fedavg'"),
    )
    assert "Can't connect" not in site.page(f"{site.prefect}/runs", "small", "Completed")
    site.page(f"{site.prefect}/runs/flow-run/{run}", "small", "reproduce", "Completed")
    site.page(f"{site.prefect}/runs/task-run/{task}", "train@digits-fedavg", "Completed", "gpu")


def test_prefect_shows_the_leaderboard_figures_and_links_to_mlflow(site: Site) -> None:
    site.page(artifact(site, "leaderboard"), "FedAvg", ", accuracy %", "vs FedAvg-FT", "nothing to compare with")
    figures = site.page(artifact(site, "figures"), "data:image/svg+xml;base64,", "data:image/png;base64,")
    assert figures.count("<img ") >= 3
    links = site.page(artifact(site, "mlflow"), "the runs on digits in MLflow", f"{site.mlflow}/#/experiments/")
    address = links.partition(f'href="{site.mlflow}')[2].partition('"')[0]
    site.page(site.mlflow + address, "digits-fedavg", "accuracy")


def test_mlflow_shows_the_runs_and_models_of_training(site: Site) -> None:
    """MLflow has two views. The links lead to the view for training, whose menu has runs and models and no prompts."""
    base = site.project.folder / "mlflow.db"
    experiment = query_one(base, "select experiment_id from experiments where name = 'small'")
    assert answers(f"{site.mlflow}/health")
    shown = site.page(
        f"{site.mlflow}/{page(experiment)}", "small", "digits-fedavg", f"/experiments/{experiment}/models"
    )
    assert "/prompts" not in shown
    note = query_one(base, "select value from experiment_tags where key = 'mlflow.note.content'")
    comparison = note.partition("](")[2].partition(")")[0]
    assert comparison.startswith(page(experiment))
    assert "/prompts" not in site.page(f"{site.mlflow}/{comparison}", "small", "digits-fedavg")
