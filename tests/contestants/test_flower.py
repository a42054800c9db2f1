"""A Flower app as a contestant, in the environment of `make flower`; its ServerApp and ClientApp know nothing of us."""

import re
import shutil
from pathlib import Path

import pytest

import fedweave as fw
from fedweave.errors import BadInput
from tests import convex
from tools.guides import ROOT, guide

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
APP = Path(__file__).with_name("flower_app")


@pytest.mark.acceptance
@pytest.mark.timeout(900)
def test_fedavg_as_a_flower_app_agrees_with_ours(flower: Path) -> None:
    """Full batches of a convex loss: only the first values of the model differ."""
    for task in convex.TASKS:
        settings = {"learning_rate": convex.RATE, "num_server_rounds": convex.ROUNDS}
        theirs = fw.contestants.flower(APP, predict="logistic.task:predict", python=flower, settings=settings)
        assert abs(convex.distance(task, theirs)) < convex.NEAR, task


@pytest.mark.acceptance
@pytest.mark.timeout(600)
def test_bytes_of_a_flower_app_are_on_the_board(flower: Path) -> None:
    theirs = fw.contestants.flower(APP, predict="logistic.task:predict", python=flower)
    result = fw.fit(theirs, convex.federation(convex.TASKS[0]), rounds=1, progress=False)
    assert result.rounds["bytes_up"].item() > 20 * 4 * 10 * 8


@pytest.mark.acceptance
@pytest.mark.timeout(900)
def test_the_guide_has_a_board_with_a_flower_app_an_estimator_a_program_and_six_methods(
    flower: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of the guide, with the line that it shows for an app in its place."""
    page = "docs/guides/contestants.md"
    (line,) = re.findall(r"^contestants \+= .*$", (ROOT / page).read_text(encoding="utf-8"), re.MULTILINE)
    steps = guide(page)
    shutil.copytree(APP, tmp_path / "flower_app")
    (tmp_path / ".flower").symlink_to(flower.parents[1])
    for name, text in steps.files.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    exec(steps.script.replace("methods = [", f"{line}\nmethods = [", 1), {"__name__": "guide"})
    methods = {"local", "fedavg", "fedavg_ft", "fedprox", "ditto", "fedper"}
    contestants = {"nearest_mean", "LogisticRegression", "mine", "flower_app"}
    assert {*fw.load("board").methods} == methods | contestants


def test_what_is_no_app_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no pyproject\.toml in .*; give the folder of a Flower app"):
        fw.contestants.flower(tmp_path, predict="a:b")
    with pytest.raises(BadInput, match=r"flower: python: .* is not there; make flower"):
        fw.contestants.flower(APP, predict="a:b", python=tmp_path / "none")
