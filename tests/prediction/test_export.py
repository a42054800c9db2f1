"""An exported model predicts like `predict`, in a process without the code of fedweave, and as MLflow serves it."""

import importlib.util
import shutil
import subprocess
import sys
import warnings
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from torch import nn

import fedweave as fw
from fedweave import exported_model
from fedweave.models import MODELS
from fedweave.models.cnn import ConvNet

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
QUIET: dict[str, Any] = {"progress": False, "rounds": 2, "seed": 0, "lr": 0.2}
COUNT = 120
DRAWS = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "who": [f"site {i % 3}" for i in range(COUNT)],
        "size": 40 + 9 * DRAWS.normal(size=COUNT),
        "kind": DRAWS.choice(["a", "b"], COUNT),
        "note": DRAWS.choice(["late again", "all good", "late but good"], COUNT),
        "late": DRAWS.choice(["no", "yes"], COUNT),
    }
)
TABLE.loc[::7, "size"] = np.nan
CHILD = """
import sys
import pandas as pd
sys.path.insert(0, "site/code")
from fedweave_export import load
model = load("site")
model.predict_proba(pd.read_csv("new.csv")).to_csv("out.csv", index=False)
own = {name for name in sys.modules if name.split(".")[0] == "fedweave"}
assert not own, own
"""


def load_alone(folder: Path) -> ModuleType:
    """The module of an export, loaded by a process without fedweave."""
    spec = importlib.util.spec_from_file_location("exported", folder / "code" / "fedweave_export" / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["exported"] = module  # its files import each other
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> tuple[fw.MethodResult, Path]:
    """A run on a table of numbers with missing values, categories and texts, and the model of its second client."""
    federation = fw.Federation.from_pandas(TABLE, client="who", label="late", text={"note": 16}, preprocess="client")
    result = fw.fit("ditto", federation, **QUIET)
    return result, result.export(tmp_path_factory.mktemp("exports") / "site", "site 1")


@pytest.mark.acceptance
def test_a_process_without_fedweave_predicts(table: tuple[fw.MethodResult, Path]) -> None:
    """It runs the lines of the README on raw rows from a file."""
    result, folder = table
    rows = TABLE.head(9).drop(columns=["who", "late"])
    rows.to_csv(folder.parent / "new.csv", index=False, float_format="%.17g")
    lines = (folder / "README.md").read_text(encoding="utf-8")
    assert all(line in lines for line in ('sys.path.insert(0, "site/code")', 'load("site").predict('))
    done = subprocess.run([sys.executable, "-c", CHILD], cwd=folder.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers = pd.read_csv(folder.parent / "out.csv")
    expected = result.predict_proba(rows, "site 1")
    np.testing.assert_allclose(answers.to_numpy(), expected.to_numpy(), atol=1e-6)
    assert [*answers.columns] == ["no", "yes"]


def test_mlflow_reads_the_folder(table: tuple[fw.MethodResult, Path]) -> None:
    """The folder is loaded as by `mlflow models serve`, and gives the class and the probabilities of each row."""
    from mlflow import pyfunc

    result, folder = table
    rows = TABLE.head(5)[["note", "kind", "size"]]
    answers = pyfunc.load_model(str(folder)).predict(rows)
    assert answers["prediction"].tolist() == result.predict(rows, "site 1").tolist()
    np.testing.assert_allclose(answers[["no", "yes"]], result.predict_proba(rows, "site 1"), atol=1e-6)


def test_mlflow_answers_a_bad_request_with_one_line(table: tuple[fw.MethodResult, Path]) -> None:
    """Its server returns the reason in place of a trace. Whoever loads the model gets the same line."""
    from fastapi.testclient import TestClient
    from mlflow import pyfunc
    from mlflow.exceptions import MlflowException
    from mlflow.pyfunc import scoring_server

    model = pyfunc.load_model(str(table[1]))
    line = "table: no column 'kind'; it has size, note"
    client = TestClient(scoring_server.init(model))
    answer = client.post("/invocations", json={"dataframe_records": [{"size": 1.0, "note": "late"}]})
    assert answer.status_code == 400
    assert answer.json()["message"] == line
    assert "Traceback" not in answer.text
    for kind in (MlflowException, ValueError):
        with pytest.raises(kind) as caught:
            model.predict(TABLE[["size", "note"]])
        assert str(caught.value) == line


def test_rows_that_do_not_fit_are_refused(table: tuple[fw.MethodResult, Path], tmp_path: Path) -> None:
    """One line each, from the export too. A folder with other content is unchanged."""
    result, folder = table
    model = exported_model.load(folder)
    with pytest.raises(ValueError, match="no column 'kind'"):
        model.predict(TABLE[["size", "note"]])
    with pytest.raises(ValueError, match="give a pandas table"):
        model.predict(np.zeros((2, 3)))
    (tmp_path / "mine.txt").write_text("x", encoding="utf-8")
    with pytest.raises(fw.BadInput, match="is not an empty folder; choose another one"):
        result.export(tmp_path, "site 1")
    with pytest.raises(fw.BadInput, match="client: 'site 9'"):
        result.export(tmp_path / "new", "site 9")


def test_another_model_is_not_overwritten(table: tuple[fw.MethodResult, Path], tmp_path: Path) -> None:
    """That of another client, method or data. An export of the same model is replaced."""
    result, folder = table
    before = {path: path.read_bytes() for path in folder.rglob("*.*") if path.is_file()}
    line = r"site holds the model of 'site 1' \(Ditto on own-data\); choose an empty folder"
    others = (
        fw.fit("local", result.comparison.federation, **QUIET),
        fw.fit("ditto", fw.Federation.from_pandas(TABLE, client="who", label="late", name="mine"), **QUIET),
    )
    for other, client in ((result, "site 2"), *((other, "site 1") for other in others)):
        with pytest.raises(fw.BadInput, match=line):
            other.export(folder, client)
    assert {path: path.read_bytes() for path in folder.rglob("*.*") if path.is_file()} == before
    assert result.export(folder, "site 1") == folder
    for text in ("{", "null", "{}", "[1]"):
        (tmp_path / exported_model.ABOUT).write_text(text, encoding="utf-8")
        with pytest.raises(fw.BadInput, match=r"export\.json: damaged .*; choose an empty folder$"):
            result.export(tmp_path, "site 1")


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """Exports of client "a" with a program of PyTorch (`ditto`) and without one (`knn_per`), and rows of it."""
    folder, (federation, rows, settings) = tmp_path_factory.mktemp("exports"), make_rows("rows")
    for method in ("ditto", "knn_per"):
        fw.fit(method, federation, **{**QUIET, **settings}).export(folder / method, "a")
    return folder, rows


@pytest.mark.parametrize("method", ["ditto", "knn_per"])
@pytest.mark.parametrize("damage", ["truncated", "changed", "missing"])
def test_a_damaged_file_is_named_with_the_way_out(
    method: str, damage: str, exports: tuple[Path, Any], tmp_path: Path
) -> None:
    """With a program of PyTorch, and without one; each file that the model is read from."""
    folder, rows = Path(shutil.copytree(exports[0] / method, tmp_path / "a")), exports[1]
    names = {"ditto": ["program.pt2"], "knn_per": ["run/run.json", "run/models-0.pt"]}[method]
    for name in ("export.json", "weights.safetensors", *names):
        file, content = folder / name, (folder / name).read_bytes()
        middle = len(content) // 2
        changed = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
        file.write_bytes({"truncated": content[:middle], "changed": changed, "missing": b""}[damage])
        if damage == "missing":
            file.unlink()
        if (name, damage) != ("export.json", "changed"):  # it has the sums of the others
            with pytest.raises(ValueError, match="cannot be used") as caught:
                load_alone(folder).load(folder)
            line = str(caught.value)
            assert line.startswith(f"{file}: "), line
            assert line.endswith("; get the folder again, or export the model again"), line
            assert "\n" not in line
        file.write_bytes(content)
    assert len(load_alone(folder).load(folder).predict(rows)) == len(rows)


@pytest.mark.parametrize("text", ["null", "{}", "[]", "[1]", '{"program": true}'])
def test_a_description_of_another_form_is_one_line(text: str, tmp_path: Path) -> None:
    """Valid JSON, but not what an export writes."""
    (tmp_path / "export.json").write_text(text, encoding="utf-8")
    with pytest.raises(exported_model.InputError, match=r"json: cannot be used \(it describes no model\); get "):
        exported_model.load(tmp_path)


def test_rows_are_read_as_in_training(tmp_path: Path) -> None:
    """Vectors of bytes are numbers, and not pixels of an image. A missing value and a text are refused."""
    x = DRAWS.integers(256, size=(60, 3), dtype=np.uint8)
    federation = fw.Federation.from_arrays(x, x[:, 0] / 256, client=["a", "b"] * 30)
    result = fw.fit("local", federation, **{**QUIET, "lr": 1e-6})
    model = exported_model.load(result.export(tmp_path / "out", "a"))
    lines = (tmp_path / "out" / "README.md").read_text(encoding="utf-8").splitlines()
    code = [line.strip() for line in lines if line.startswith("    ")]
    assert [line for line in code if "[M, 3]" in line] == ["rows = ...  # an array [M, 3]"]
    compile("\n".join(code), "README.md", "exec")
    np.testing.assert_allclose(model.predict(x[:5]), result.predict(x[:5], "a"), rtol=1e-5)
    for rows, message in (
        ([[1, 2, np.nan]], "missing or infinite"),
        ([["1", "two", "3"]], "cannot be read as rows of numbers"),
        ([[1, 2], [1]], "cannot be read as rows of numbers"),
    ):
        with pytest.raises(exported_model.InputError, match=message):
            model.predict(rows)


@pytest.mark.parametrize("kind", ["graph of tables", "forecast"])
def test_numbers_far_from_training_are_named(kind: str, tmp_path: Path) -> None:
    """Such as those in another unit, with the same line from the folder of the model."""
    federation, rows, settings = make_rows(kind)
    result = fw.fit("local", federation, **{**QUIET, **settings})
    model = exported_model.load(result.export(tmp_path / "out", "a"))
    name, count = ("size", "20 of 20") if kind == "graph of tables" else ("sold", "6 of 6")
    for number, found in ((1.0, []), (1000.0, [count])):
        for predict in (partial(result.predict, client="a"), model.predict):
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                predict(rows.assign(**{name: rows[name] * number}))
            lines = [str(one.message) for one in caught if "far from training" in str(one.message)]
            assert [line.split(") in ")[1].split(" rows")[0] for line in lines] == found
            assert all(line.startswith(f"table: column {name!r} is far from training (mean ") for line in lines)


def test_a_column_that_has_become_empty_is_named(tmp_path: Path) -> None:
    """As where a source does not fill it any more: the median, or no category, took its place without a word."""
    table = pd.DataFrame({"site": ["a", "b"] * 30, "age": DRAWS.normal(size=60), "ward": ["x", "y", "z"] * 20})
    table.loc[:20, "age"] = np.nan
    federation = fw.Federation.from_pandas(table.assign(sick=table["age"] > 0), client="site", label="sick")
    result = fw.fit("local", federation, **QUIET)
    model = exported_model.load(result.export(tmp_path / "out", "a"))
    rows = table[table["site"] == "a"]
    for column, value in (("age", np.nan), ("ward", None)):
        for predict in (partial(result.predict, client="a"), model.predict):
            with pytest.warns(UserWarning, match=f"column '{column}' has no value in any of 30 rows"):
                predict(rows.assign(**{column: value}))
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                predict(rows)
                predict(rows.head(3).assign(**{column: value}))


class Net(nn.Module):
    """A user's model."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5))
        self.fc = nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        return self.fc(self.body(x))


class Attention(Net):
    """With a layer that PyTorch runs as one fused operation in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.TransformerEncoderLayer(5, 1, 8, dropout=0.0, batch_first=True)
        self.fc = nn.Linear(5, 2)

    def forward(self, x: Any) -> Any:
        return self.fc(self.body(x[:, None] * x.new_ones(3, 1)).mean(1))


def make_rows(kind: str) -> tuple[fw.Federation, Any, dict[str, Any]]:
    """(federation, raw rows of client "a", settings) of a kind."""
    names = ["a", "b", "c"] * 40
    if kind == "graph":
        x = DRAWS.normal(size=(20, 3)).astype(np.float32)
        graphs = {name: (x, DRAWS.integers(20, size=(2, 40)), np.arange(20) % 2) for name in ("a", "b", "c")}
        return fw.Federation.from_graphs(graphs), x, {"lr": 0.01}
    if kind == "graph of tables":
        nodes = pd.DataFrame({"node": range(60), "client": names[:60], "size": 40 + 9 * DRAWS.normal(size=60)})
        nodes["label"] = np.arange(60) // 3 % 2
        federation = fw.Federation.from_graphs(nodes, pd.DataFrame(DRAWS.integers(60, size=(90, 2))))
        return federation, nodes[nodes["client"] == "a"], {"lr": 0.01}
    if kind == "forecast":
        steps = pd.DataFrame({"who": names, "day": np.arange(120) // 3, "sold": 50 + DRAWS.normal(size=120) * 9})
        federation = fw.Federation.from_pandas(steps, client="who", label="sold", time="day", window=6, horizon=2)
        return federation, steps[steps["who"] == "a"], {}
    x = (50 + 20 * DRAWS.normal(size=(120, 5))).astype(np.float32)
    y = x[:, 0] * 3 if kind == "numbers" else np.arange(120) % 2
    federation = fw.Federation.from_arrays(x, y, client=names, normalize="standard")
    own = {"own": Net, "attention": Attention}.get(kind)
    return federation, x[:4], {"model": own()} if own else {}


@pytest.mark.parametrize(
    ("kind", "method"),
    [
        ("numbers", "fedrep"),
        ("forecast", "fedavg_ft"),
        ("graph", "fedavg"),
        ("graph of tables", "local"),
        ("own", "local"),
        ("attention", "local"),
        ("rows", "knn_per"),
        ("rows", "fedrod"),
    ],
)
def test_every_kind_of_model_is_exported(
    kind: str, method: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Numbers in their unit, forecasts from the last rows, graphs, users' modules, methods with more than one model;
    with and without a program of PyTorch.
    """
    federation, rows, settings = make_rows(kind)
    result = fw.fit(method, federation, **{**QUIET, **settings})
    capfd.readouterr()
    model = load_alone(result.export(tmp_path / "out", "a")).load(tmp_path / "out")
    assert not capfd.readouterr().err
    answers, expected = model.predict(rows), result.predict(rows, "a")
    if expected.dtype.kind == "f":
        np.testing.assert_allclose(answers, expected, rtol=1e-5)
        one = rows if kind == "forecast" else rows[:1]
        np.testing.assert_allclose(model.predict(one), expected[:1], rtol=1e-5)
    else:
        assert answers.tolist() == expected.tolist()
        np.testing.assert_allclose(model.predict_proba(rows), result.predict_proba(rows, "a"), atol=1e-6)
    needs_fedweave = "graph" in kind or method == "knn_per"
    assert bool(model.about["program"]) != needs_fedweave
    note = "PyTorch could make no program of this model, so fedweave 0" in (tmp_path / "out" / "README.md").read_text()
    assert note == bool(model.about["no_program"]) == needs_fedweave


@pytest.mark.parametrize("name", [*(name for name, model in MODELS.items() if issubclass(model, ConvNet)), "resnet18"])
def test_models_of_images_have_a_program(name: str, tmp_path: Path) -> None:
    """With batch normalisation too. It takes any number of images."""
    x = DRAWS.integers(256, size=(24, 3, 32, 32), dtype=np.uint8)
    federation = fw.Federation.from_arrays(x, np.arange(24) % 2, client=["a", "b"] * 12)
    result = fw.fit("local", federation, model=name, **{**QUIET, "rounds": 1, "batch_size": 8})
    model = exported_model.load(result.export(tmp_path / "out", "a"))
    assert model.about["program"]
    for count in (1, 2, 24):
        np.testing.assert_allclose(model.predict_proba(x[:count]), result.predict_proba(x[:count], "a"), atol=1e-5)
