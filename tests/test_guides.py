"""The guides, as users follow them: their code and their commands, in an empty folder, with public names alone."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

import fedweave as fw

ROOT = Path(__file__).resolve().parent.parent
GUIDES = ("README.md", "docs/own-data.md", "docs/add-method.md", "docs/installation.md")
BLOCK = re.compile(r"(?P<mark><!-- excerpt -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"# (?P<name>[\w/.-]+\.(?:py|yaml))\n")  # first line of a block that is a file
PROGRAMS = {"fedweave": ["-m", "fedweave.pipelines.commands.main"], "python": []}
SERVERS = ("deploy", "worker")
PUBLIC = {"fedweave", *(f"fedweave.{name}" for name in fw._MODULES)}


class Guide(NamedTuple):
    """What a page has the reader write and type."""

    files: dict[str, str]
    script: str
    commands: list[list[str]]


def guide(page: str) -> Guide:
    """Files with a name in their first line, the rest of the Python as one script, and commands of a line each."""
    files, script, commands = {}, [], []
    for block in BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")):
        named = NAMED.match(block["text"])
        if block["mark"]:
            continue
        if named:
            files[named["name"]] = block["text"]
        elif block["language"] == "python":
            script.append(block["text"])
        elif not block["language"]:
            commands += [shlex.split(line, comments=True) for line in block["text"].splitlines()]
    return Guide(files, "\n".join(script), [words for words in commands if _can_be_typed(words)])


def _can_be_typed(words: list[str]) -> bool:
    """No command that waits for a server, and none with a word in capitals, which stands for any."""
    return words[:1] != [] and words[0] in PROGRAMS and words[1] not in SERVERS and not any(map(str.isupper, words))


def follow(page: str, folder: Path) -> None:
    """Write the files of a page, run its Python, and type its commands."""
    steps = guide(page)
    _data(folder)
    for name, text in steps.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "script.py").write_text(steps.script, encoding="utf-8")
    for command in (["python", "script.py"], *steps.commands):
        program, *words = command
        env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        done = subprocess.run(
            [sys.executable, *PROGRAMS[program], *words],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{shlex.join(command)}\n{done.stdout[-2000:]}{done.stderr[-3000:]}"
        assert "Traceback" not in done.stderr


def _data(folder: Path) -> None:
    """The files that the guides read: tables with an owner, a label and a day, and recordings of people."""
    draws = np.random.default_rng(0)
    count = 900
    owner, day = draws.integers(6, size=count), draws.integers(100, size=count)
    near = draws.normal(size=count)
    late = np.where(near + draws.normal(size=count) > 0, "late", "on time")
    table = pd.DataFrame({"distance": near, "weather": draws.choice(["rain", "sun"], count), "late": late, "day": day})
    for name, column in (("deliveries", "depot"), ("flights", "dest")):
        table.assign(**{column: [f"{column} {i}" for i in owner]}).to_csv(folder / f"{name}.csv", index=False)
    activity = np.repeat(draws.integers(3, size=(5, 60)), 20, axis=1)
    np.save(folder / "activity.npy", activity)
    np.save(folder / "recordings.npy", activity[:, :, None] + draws.normal(size=(5, 1200, 2)))


def internal(text: str) -> list[str]:
    """Modules of fedweave that a text imports and that are not public."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [alias.name for alias in node.names]
            found += [f"fedweave.{name}" for name in names] if node.module == "fedweave" else [node.module or ""]
    named = {f"fedweave.{name}" for name in fw.__all__}
    return [name for name in found if name.split(".")[0] == "fedweave" and name not in PUBLIC | named]


@pytest.mark.parametrize("page", GUIDES)
def test_guide(page: str, tmp_path: Path) -> None:
    """Every block and every command works as it is printed."""
    follow(page, tmp_path)


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
    assert ["fedweave", "run", "--method", "fedavg", "--dataset", "digits", "--rounds", "3"] in guide(
        "docs/installation.md"
    ).commands
    assert "fw.fit" in guide("docs/own-data.md").script
    assert "flights.csv" in guide("README.md").script
