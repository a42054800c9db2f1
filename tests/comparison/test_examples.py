"""The examples run unchanged, from any folder."""

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def read_code(notebook: Path) -> str:
    """The code cells of a notebook in their order. A kernel runs them one after another, without a file."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    return f"for number, text in enumerate({texts!r}):\n    exec(compile(text, f'<cell {{number}}>', 'exec'))\n"


@pytest.mark.acceptance
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", sorted(path.name for path in EXAMPLES.glob("*.*") if path.suffix in (".py", ".ipynb")))
def test_an_example_runs(name: str, tmp_path: Path) -> None:
    """It runs in a child process, in an empty folder."""
    script = tmp_path / f"{Path(name).stem}.py"
    script.write_text(
        read_code(EXAMPLES / name) if name.endswith(".ipynb") else (EXAMPLES / name).read_text(encoding="utf-8"),
        encoding="utf-8",
    )
    done = subprocess.run(
        [sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=540, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "Traceback" not in done.stderr


@pytest.mark.acceptance
@pytest.mark.timeout(600)
def test_the_minimal_project_is_copied_and_run(tmp_path: Path) -> None:
    """By the commands in the first line of its study. All of it has at most fifty lines."""
    folder = tmp_path / "mine"
    shutil.copytree(EXAMPLES / "minimal", folder)
    texts = {path.name: path.read_text(encoding="utf-8") for path in folder.rglob("*.*")}
    assert sum(text.count("\n") for text in texts.values()) <= 50
    typed = texts["study.yaml"].splitlines()[0].split(" && ")[2:]
    assert typed == ["fedweave init .", "fedweave study run study.yaml"]
    for command in typed:
        words = [sys.executable, "-m", "fedweave.pipelines.commands.main", *command.split()[1:]]
        done = subprocess.run(words, cwd=folder, capture_output=True, text=True, timeout=540, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (board,) = folder.glob("results/*/leaderboard.csv")
    assert {row["method"] for row in csv.DictReader(board.open())} == {"Local", "FedAvg", "FedAvg-FT", "Damped"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.ipynb")), ids=lambda path: path.stem)
def test_notebooks_have_no_outputs(path: Path) -> None:
    """Then a diff can show them as text."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
