"""`fedweave refresh` and its fellows: a life on the command line, in a project of DVC."""

import json
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient
from typer.testing import CliRunner

import fedweave as fw
from fedweave.errors import BadInput
from fedweave.lifecycle.answering import ServedChampion
from fedweave.lifecycle.life_settings import PLACES
from fedweave.pipelines.champion_server import make_app
from fedweave.pipelines.commands import lifecycle
from tools.guides import ROOT, guide

ROWS = "id,site,a,late\n" + "".join(f"{i},{'AB'[i % 2]},{i % 7},{'yes' if i % 7 > 3 else 'no'}\n" for i in range(60))
BEGIN = shlex.split(
    "life --source 'week-*.csv' --client site --label late --key id --method local --rounds 1 --set lr=0.1 "
    "--set model.hidden=4"
)


@pytest.fixture
def delivered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The current folder has the file of a first delivery alone."""
    monkeypatch.chdir(tmp_path)
    Path("week-1.csv").write_text(ROWS, encoding="utf-8")


def call(*words: str) -> str:
    """What a command prints."""
    done = CliRunner().invoke(lifecycle.app, [*words])
    if done.exception is not None:
        raise done.exception
    return done.output


def test_a_margin_of_zero_is_no_default(delivered: None) -> None:
    call("refresh", *BEGIN, "--margin", "0")
    assert fw.Lifecycle("life").settings.training.margin == 0


def test_the_page_works_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its commands, in one process: what is late changes, and the models of later rows become the champion."""
    monkeypatch.chdir(tmp_path)
    page = guide("docs/lifecycle.md")
    Path("weeks.py").write_text(page.files["weeks.py"], encoding="utf-8")
    printed = ""
    for program, *words in page.commands:
        if program == "python":
            monkeypatch.setattr("sys.argv", words)
            runpy.run_path(words[0])
        else:
            printed += call(*words)
    assert re.findall(r"version (\d) is (?:the|given)( first champion| challenger| champion again| champion)", printed)[
        :4
    ] == [("2", " first champion"), ("5", " challenger"), ("5", " champion"), ("7", " challenger")]
    assert "version 2 is the champion again. It replaces fedavg of version 5 by hand.\n" in printed
    assert "delivery 8: fedavg of version 8 is the champion. It was trained without hills.\n" in printed
    assert re.search(r"\nhills: none of its \d+ rows \(digest \w+\) is in .* of version 8 read\.\n", printed)
    page_text = Path("life", "lifecycle.html").read_text(encoding="utf-8")
    assert "fedavg of version 5, since delivery 7. Better: +" in page_text
    [asked] = re.findall(r"--data '(.*)'", Path(ROOT, "docs/lifecycle.md").read_text(encoding="utf-8"))
    with TestClient(make_app(ServedChampion(fw.Lifecycle("life")))) as client:
        answer = client.post("/predict", json=json.loads(asked)).json()
    assert (answer["predictions"], answer["version"]) == ([1], 8)


def test_each_setting_of_a_life_can_be_given(delivered: None) -> None:
    """Those without an option of their own by --set, as the page prints it; a wrong one is named in this way."""
    page = Path(ROOT, "docs/lifecycle.md").read_text(encoding="utf-8").replace("\n", " ")
    [settings] = re.findall(r"`(--set gone_after=[^`]*)`", page)
    [columns] = re.findall(r"`(--set 'columns=[^`]*)`", page)
    with pytest.raises(BadInput, match="--set gone_after: 0 is less than 1"):
        call("refresh", *BEGIN, "--set", "gone_after=0")
    call("refresh", *BEGIN, *shlex.split(f"{settings} {columns}"))
    blocks = json.loads(Path("life", "life.json").read_text(encoding="utf-8"))
    assert (blocks["sites"]["gone_after"], blocks["terms"]["shares"]) == (60, [0.6, 0.2, 0.2])
    assert (blocks["training"]["columns"], blocks["training"]["train"]) == ({"embed": True}, {"lr": 0.1})
    table = page[page.index("## Settings") : page.index("`train` has")]
    assert all(f"`{name}`" in table for name in PLACES)


def test_an_option_of_a_life_that_has_begun_is_refused(delivered: None) -> None:
    """Without the source, which would begin another life, the line names life.json."""
    call("refresh", *BEGIN)
    for words, place in (
        (["--rounds", "9"], "--rounds"),
        (["--method", "fedavg"], "--method"),
        (["--set", "lr=1"], "--set"),
    ):
        with pytest.raises(
            BadInput, match=f"^{place}: the life has begun; leave it out, or change it in life.life.json$"
        ):
            call("refresh", "life", *words)


@pytest.mark.acceptance
def test_a_server_on_the_command_line(tmp_path: Path) -> None:
    """It says where it answers, and ends with a signal, which writes its log."""
    (tmp_path / "week-1.csv").write_text(ROWS, encoding="utf-8")
    program = [sys.executable, "-m", "fedweave.pipelines.commands.main"]
    for words in (["refresh", *BEGIN], ["challenge", "life"]):
        subprocess.run([*program, *words], cwd=tmp_path, check=True)
    command = [*program, "serve", "life", "--port", "0", "--log"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            [address] = re.findall(r"life: local of version 1 answers on (http://[\w.:]+);", server.stdout.readline())
            asked = httpx.post(f"{address}/predict", json={"rows": [{"id": 900, "site": "A", "a": 2}]})
            assert (asked.json()["version"], asked.json()["logged"]) == (1, 1)
        finally:
            server.terminate()
    assert len([*(tmp_path / "life" / "answers").glob("*.parquet")]) == 1


def test_a_life_on_the_command_line(delivered: None, tmp_path: Path) -> None:
    """DVC has every version of the deliveries and of the models; a second call finds nothing new."""
    from dvc.repo import Repo

    Repo.init(str(tmp_path), no_scm=True).close()
    with pytest.raises(BadInput, match="is no life yet; begin one: fedweave refresh"):
        call("refresh", "life")
    with pytest.raises(BadInput, match="--method: missing"):
        call("refresh", *BEGIN[:9])
    assert call("refresh", *BEGIN) == (
        f"delivery 1, week-1.csv: 60 new rows\nDVC has this version: {Path('life', 'deliveries.dvc')}\n"
    )
    assert call("refresh", "life") == "life: nothing new\n"
    assert call("lifecycle", "life").splitlines()[2] == "There is no champion yet: fedweave challenge trains it."
    assert "local of version 1 is the first champion" in call("challenge", "life")
    first = re.findall("md5: .*", Path("life", "deliveries.dvc").read_text(encoding="utf-8"))
    assert Path("life", "models.dvc").is_file()
    Path("week-2.csv").write_text(ROWS.replace("yes", "maybe"), encoding="utf-8")
    assert "quarantined, week-2.csv: column 'late': the class 'maybe' is new" in call("refresh", "life")
    assert re.findall("md5: .*", Path("life", "deliveries.dvc").read_text(encoding="utf-8")) == first
    assert call("refresh", "life") == "life: nothing new\n"
    assert "corrections; column 'late'" in call("refresh", "life", "--accept", "week-2.csv")
    assert re.findall("md5: .*", Path("life", "deliveries.dvc").read_text(encoding="utf-8")) != first
    with pytest.raises(BadInput, match="there has been no other champion"):
        call("rollback", "life")
    with pytest.raises(BadInput, match=r"life.json: training.model is"):
        call("refresh", *BEGIN[:-6], "--rounds", "2")
