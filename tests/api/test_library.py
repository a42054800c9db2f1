"""The package as it is imported: quickly, lazily, with examples that run; folders of the stages open."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

import fedweave as fw

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def test_load_opens_what_the_stages_write(tmp_path: Path) -> None:
    """Several tasks: names begin with that of the task, and only methods of one task are tested."""
    from fake_results import write_study

    folder = write_study(tmp_path / "results" / "study", {"blobs": {}, "circles": {"dataset": "circles"}}, extras=False)
    opened = fw.load(folder)
    assert {"blobs-ditto", "circles-ditto"} <= {*opened.methods}
    assert {*opened.leaderboard()["task"]} == {"blobs", "circles"}
    assert opened.test("blobs-ditto", "blobs-local").clients == 12
    with pytest.raises(fw.BadInput, match="must be two methods of one task"):
        opened.test("blobs-ditto", "circles-ditto")


def test_import_is_quick_and_lazy() -> None:
    """`import fedweave` loads neither torch nor matplotlib; public names are there."""
    code = (
        "import sys, fedweave; heavy = {'torch', 'matplotlib', 'pandas', 'torch_geometric'} & {*sys.modules}; "
        "assert not heavy, heavy; fedweave.compare; fedweave.methods.Ditto(lam=2); "
        "assert not {'matplotlib', 'torch_geometric', 'mlflow', 'optuna'} & {*sys.modules}"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    assert {*fw.__all__} <= {*dir(fw)}
    with pytest.raises(AttributeError, match="no attribute 'compair'"):
        fw.compair  # noqa: B018


@pytest.mark.acceptance  # as the other examples
def test_doctests() -> None:
    """The examples in public docstrings."""
    import doctest

    from fedweave.api import compare, federation, progress
    from fedweave.recommendation import budget, groups, per_client
    from fedweave.recommendation import recommend as recommendation

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in (compare, federation, progress, budget, groups, per_client, recommendation):
            outcome = doctest.testmod(module)
            assert outcome.attempted
            assert not outcome.failed
