"""`fedweave --help`, `list` and `study show` import nothing that computes, and their answers are never out of date."""

import json
from pathlib import Path

import pytest

from tests.servers import ROOT, python

# What takes long to import.
HEAVY = {"numpy", "torch", "pandas", "scipy", "sklearn", "matplotlib", "dvc", "mlflow", "prefect", "optuna", "yaml"}
RUN = f"""
import os, sys
from fedweave.pipelines.commands import main
sys.argv = ["fedweave", *sys.argv[1:]]
try:
    main.main()
except SystemExit as end:
    print("exit", end.code or 0, sorted({HEAVY} & {{*sys.modules}}), file=sys.stderr)
    sys.stdout.flush()
    os._exit(0)  # at once, as the program ends
"""
ASK = """
import json, sys
from pathlib import Path
from fedweave.files import stored
from fedweave.pipelines.commands import answers
stored.SETTLED = 0
used = [Path(word) for word in sys.argv[1:]]
def work_out():
    print("worked out", file=sys.stderr)
    return [path.read_text() if path.is_file() else None for path in used], used
print(json.dumps(answers.recall(["a question"], work_out)))
"""


def run(code: str, *words: str, folder: Path) -> tuple[str, str]:
    """(output, errors) of a program in a process of its own, with its own cache in `folder`."""
    ended = python("-P", "-c", code, *words, folder=folder, XDG_CACHE_HOME=str(folder / "cache"), COLUMNS="200")
    assert ended.returncode == 0, ended.stderr
    return ended.stdout, ended.stderr


def ask(folder: Path, *files: str) -> tuple[list[str | None], bool]:
    """(the answer, which is the content of `files`; whether it was worked out)."""
    output, errors = run(ASK, *files, folder=folder)
    return json.loads(output), "worked out" in errors


@pytest.mark.parametrize("words", [["--help"], ["compare", "--help"]])
def test_help_imports_nothing_that_computes(words: list[str], tmp_path: Path) -> None:
    output, errors = run(RUN, *words, folder=tmp_path)
    assert output
    assert errors == "exit 0 []\n"


@pytest.mark.parametrize("name", ["nosuch", "nosuch.yaml"])
def test_a_wrong_name_of_a_study_is_refused_before_anything_that_computes(name: str, tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "own.yaml").touch()
    *_, end = run(RUN, "study", "use", name, folder=tmp_path)[1].splitlines()
    assert end == "exit 2 []"


def test_the_second_answer_is_the_first_and_imports_nothing_that_computes(tmp_path: Path) -> None:
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "base.yaml").write_bytes((ROOT / "studies" / "base.yaml").read_bytes())
    (tmp_path / "studies" / "own.yaml").write_text("tasks:\n  digits: {methods: [fedavg]}\n")
    wait_until_settled(tmp_path)
    for words in (["list", "methods"], ["study", "show", "own"]):
        first, errors = run(RUN, *words, folder=tmp_path)
        assert "torch" in errors
        assert run(RUN, *words, folder=tmp_path) == (first, "exit 0 []\n")


def wait_until_settled(folder: Path) -> None:
    """Let some time pass, as before a user's next command."""
    code = "import sys, time; from fedweave.files import stored; from pathlib import Path\n"
    code += "while [] in stored.stamps(Path().rglob('*')).values(): time.sleep(0.1)"
    run(code, folder=folder)


def test_an_answer_is_stored_until_a_file_changes(tmp_path: Path) -> None:
    file = tmp_path / "a.txt"
    file.write_text("one")
    assert ask(tmp_path, "a.txt", "b.txt") == (["one", None], True)
    assert ask(tmp_path, "a.txt", "b.txt") == (["one", None], False)
    file.write_text("two")
    assert ask(tmp_path, "a.txt", "b.txt") == (["two", None], True)
    (tmp_path / "b.txt").write_text("new")
    assert ask(tmp_path, "a.txt", "b.txt") == (["two", "new"], True)
    file.unlink()
    assert ask(tmp_path, "a.txt", "b.txt") == ([None, "new"], True)
    assert ask(tmp_path, "a.txt", "b.txt") == ([None, "new"], False)


def test_an_installed_plug_in_is_part_of_the_answer(tmp_path: Path) -> None:
    """Its code may read any file, so that nothing is stored beside it."""
    assert ask(tmp_path)[1]
    assert not ask(tmp_path)[1]
    about = tmp_path / "site" / "bench-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: bench\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fedweave.plugins]\nbench = bench\n")
    (tmp_path / "site" / "bench.py").write_text("")
    code = f"import sys; sys.path.insert(0, {str(tmp_path / 'site')!r})\n{ASK}"
    for _ in range(2):
        assert "worked out" in run(code, folder=tmp_path)[1]
