"""The guides, as users follow them: their code and their commands, in an empty folder, with public names alone."""

import ast
import re
from pathlib import Path

import pytest

import fedweave as fw
from tools.guides import follow, guide, outputs

EXAMPLES = ("docs/guides/flights.md", "docs/guides/shoulder.md", "docs/guides/graph.md")
PARTS = ("docs/add-method.md", "docs/add-model.md")
GUIDES = ("README.md", "docs/own-data.md", *PARTS, "docs/installation.md", *EXAMPLES)
PUBLIC = {"fedweave", *(f"fedweave.{name}" for name in fw._MODULES)}


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
@pytest.mark.timeout(600)  # some commands, each of which imports PyTorch
@pytest.mark.parametrize("page", GUIDES)
def test_guide(page: str, tmp_path: Path) -> None:
    """Every block and every command works as it is printed; worked examples have the results of their pages."""
    printed = follow(page, tmp_path)
    if page in EXAMPLES:
        new, there = results(printed), results(outputs(page))
        assert new.keys() == there.keys()
        for words, numbers in there.items():
            assert new[words] == pytest.approx(numbers, rel=0.03, abs=0.03), words  # as processors differ


def results(text: str) -> dict[str, list[float]]:
    """Words of a line -> the numbers of all lines with these words."""
    number, numbers = re.compile(r"[+-]?\d+(?:\.\d+)?"), dict[str, list[float]]()
    for line in filter(str.strip, text.splitlines()):
        numbers.setdefault(" ".join(number.sub("#", line).split()), []).extend(map(float, number.findall(line)))
    return numbers


@pytest.mark.parametrize("page", GUIDES)
def test_users_import_public_names_alone(page: str) -> None:
    """`fedweave` and the modules that it names."""
    steps = guide(page)
    texts = [steps.script, *(text for name, text in steps.files.items() if name.endswith(".py"))]
    assert [name for text in texts for name in internal(text)] == []


def test_what_is_internal() -> None:
    """The check sees every form of import."""
    text = "import fedweave as fw\nimport fedweave.federation\nfrom fedweave.settings import Share\n"
    text += "from fedweave.federation.protocol import Method\nfrom fedweave import fit, plots\nimport numpy\n"
    assert internal(text) == ["fedweave.federation", "fedweave.federation.protocol", "fedweave.plots"]


def test_the_guides_have_what_is_followed() -> None:
    """Files, code and commands are found in the pages."""
    assert {*guide("docs/add-method.md").files} == {"mybench/damped.py", "my.yaml", "test_damped.py"}
    assert len(guide("docs/add-method.md").commands) == 3
    assert {*guide("docs/add-model.md").files} == {
        "mybench/gated.py", "test_gated.py", "mybench/blocks.py", "test_blocks.py", "my.yaml",
    }  # fmt: skip
    assert len(guide("docs/add-model.md").commands) == 4
    assert ["fedweave", "run", "--method", "fedavg", "--dataset", "digits", "--rounds", "3"] in guide(
        "docs/installation.md"
    ).commands
    assert "fw.fit" in guide("docs/own-data.md").script
    assert "flights.csv" in guide("README.md").script
    compare, predict = guide("docs/guides/flights.md").commands
    assert compare[-2:] == ["--out", "flights/"]  # in the second line of the command
    assert predict[-3:] == ["BOS", "--output", "late.csv"]
    board = results(outputs("docs/guides/flights.md"))
    assert board["Majority class #"] == [77.2, 0.5]
    assert results("a 1.5\n b -2 c 3\na 4") == {"a #": [1.5, 4.0], "b # c #": [-2.0, 3.0]}
