"""The import of the package: quick, lazy, with examples that run. Folders of the stages can be loaded."""

import subprocess
import sys
from pathlib import Path

import pytest

import fedweave as fw

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_load_reads_the_folders_of_the_stages(tmp_path: Path) -> None:
    """With several tasks, names begin with the name of the task, and tests pair methods of one task."""
    from fake_results import write_study

    folder = write_study(tmp_path / "results" / "study", {"blobs": {}, "circles": {"dataset": "circles"}}, extras=False)
    opened = fw.load(folder)
    assert {"blobs-ditto", "circles-ditto"} <= {*opened.methods}
    assert {*opened.leaderboard()["task"]} == {"blobs", "circles"}
    assert opened.test("blobs-ditto", "blobs-local").clients == 12
    with pytest.raises(fw.BadInput, match="must be two methods of one task"):
        opened.test("blobs-ditto", "circles-ditto")


def test_import_is_quick_and_lazy() -> None:
    """`import fedweave` loads neither torch nor matplotlib, nor does a federation. Public names are there. Nothing is
    searched for garbage meanwhile, and everything afterwards.
    """
    code = (
        "import gc, os, sys, fedweave; searches = []; gc.callbacks.append(lambda *search: searches.append(search)); "
        "heavy = {'torch', 'matplotlib', 'pandas', 'torch_geometric'} & {*sys.modules}; "
        "assert not heavy, heavy; fedweave.Federation; heavy = {'torch', 'pandas', 'matplotlib'} & {*sys.modules}; "
        "assert not heavy, heavy; fedweave.compare; assert gc.isenabled(); assert len(searches) < 20, len(searches); "
        "fedweave.methods.Ditto(lam=2); "
        "assert not {'matplotlib', 'torch_geometric', 'mlflow', 'optuna'} & {*sys.modules}; os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert {*fw.__all__} <= {*dir(fw)}
    with pytest.raises(AttributeError, match="no attribute 'compair'"):
        fw.compair  # noqa: B018


@pytest.mark.acceptance  # as the other examples
def test_the_examples_in_docstrings_run() -> None:
    import doctest

    from fedweave.comparison import compare, progress
    from fedweave.own_data import federation
    from fedweave.recommendation import budget, groups, per_client
    from fedweave.recommendation import recommend as recommendation

    for module in (compare, federation, progress, budget, groups, per_client, recommendation):
        outcome = doctest.testmod(module)
        assert outcome.attempted
        assert not outcome.failed
