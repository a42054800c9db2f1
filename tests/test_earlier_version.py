"""Files that version 0.1.0 has written load and predict the same, and its names of modules are found.

tests/version_0_1_0.tar.xz has two exports, one of them without a program, the folder of a comparison, the specification
of a federation, pickles of a federation and of a comparison, and what version 0.1.0 predicted from them.
"""

import importlib
import json
import pickle
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedweave as fw
from fedweave import _renamed
from fedweave.deployment.wire import spec

ARCHIVE = Path(__file__).with_name("version_0_1_0.tar.xz")
EXPORTED = """
import json, os, sys
import numpy as np, pandas as pd
sys.path.insert(0, f"{sys.argv[1]}/code")
from fedweave_export import load
rows = np.load(sys.argv[2]) if sys.argv[2].endswith(".npy") else pd.DataFrame(json.load(open(sys.argv[2])))
print(json.dumps(load(sys.argv[1]).predict_proba(rows).to_numpy().tolist()), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of version 0.1.0."""
    target = tmp_path_factory.mktemp("earlier")
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(target, filter="data")
    return target


@pytest.fixture(scope="module")
def expected(folder: Path) -> dict[str, Any]:
    """What version 0.1.0 predicted."""
    return dict(json.loads((folder / "expected.json").read_text()))


def test_a_comparison_predicts_the_same(folder: Path, expected: dict[str, Any]) -> None:
    rows = pd.DataFrame(json.loads((folder / "rows.json").read_text()))
    comparison = fw.load(folder / "comparison-table")
    np.testing.assert_allclose(comparison.scores().to_numpy(), expected["scores"])
    for method in comparison.methods:
        found = comparison[method].predict_proba(rows, "site 1", seed=1)
        np.testing.assert_allclose(found.to_numpy(), expected[method], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "rows", "key"), [("export-table", "rows.json", ""), ("export-digits-knn", "images.npy", "knn")]
)
def test_an_export_predicts_the_same(folder: Path, expected: dict[str, Any], name: str, rows: str, key: str) -> None:
    """The one without a program asks for a module of fedweave by its old name."""
    command = [sys.executable, "-W", "ignore", "-c", EXPORTED, str(folder / name), str(folder / rows)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    predictions = np.array(json.loads(done.stdout))
    if key:
        np.testing.assert_allclose(predictions, expected[key], atol=1e-6)
    else:  # the first seed's, of the second client
        result = fw.load(folder / "comparison-table")["ditto"]
        table = pd.DataFrame(json.loads((folder / rows).read_text()))
        np.testing.assert_allclose(predictions, result.predict_proba(table, "site 1").to_numpy(), atol=1e-6)


def test_a_federation_has_the_same_hash(folder: Path, expected: dict[str, Any]) -> None:
    """It is what the owner of a node has agreed to."""
    assert spec.read(folder / "app" / "spec.json").hash == expected["app"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_pickles_load(folder: Path) -> None:
    federation, comparison = (
        pickle.loads((folder / f"{name}-table.pkl").read_bytes()) for name in ("federation", "comparison")
    )
    assert isinstance(federation, fw.Federation)
    assert federation.names == ("site 0", "site 1", "site 2")
    assert isinstance(comparison, fw.Comparison)
    assert comparison.methods == ("ditto", "local", "pfedgraph")


def test_every_old_name_is_found() -> None:
    for old, new in _renamed.new_names().items():
        sys.modules.pop(f"fedweave.{old}", None)
        with pytest.warns(DeprecationWarning, match=rf"fedweave\.{old} is fedweave\.{new} now"):
            module = importlib.import_module(f"fedweave.{old}")
        there = importlib.import_module(f"fedweave.{new}")
        name = next(name for name, value in vars(there).items() if getattr(value, "__module__", "") == there.__name__)
        assert getattr(module, name) is getattr(there, name)
    assert importlib.import_module("fedweave.federation.federation").Federation.__name__ == "Clients"
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("fedweave.api.nothing")
