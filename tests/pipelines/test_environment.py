"""The environment of every command: the file .env, which Docker Compose and Prefect read too, and the locale."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedweave.pipelines import _environment


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("A_POOL=vision", {"A_POOL": "vision"}),
        ("A_POOL = vision ", {"A_POOL": "vision"}),
        ('export A_POOL="vision"', {"A_POOL": "vision"}),
        ("A_POOL='a=b c'", {"A_POOL": "a=b c"}),
        ("A_URL=https://x/?a=b", {"A_URL": "https://x/?a=b"}),
        ("A_POOL=it's", {"A_POOL": "it's"}),
        ("A_POOL=", {"A_POOL": ""}),
        ("  # A_POOL=vision", {}),
        ("=x", {}),
        ("a line of words = x", {}),
        ("A_POOL=\udcff", {"A_POOL": "\ufffd"}),
    ],
)
def test_a_line_of_the_environment(line: str, expected: dict[str, str], tmp_path: Path) -> None:
    """A line that is not an assignment is ignored: every command imports this module and would end with a traceback."""
    (tmp_path / ".env").write_text(f"{line}\n", encoding="utf-8", errors="surrogateescape")
    assert _environment(tmp_path / ".env") == expected


def test_variables_of_the_environment_override_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("A_POOL=vision\n")
    monkeypatch.setenv("A_POOL", "mine")
    assert _environment(tmp_path / ".env") == {}
    assert _environment(tmp_path / "none") == {}


def test_a_terminal_without_unicode_gets_codes_of_characters_that_it_lacks() -> None:
    """Such as that of LANG=de_DE. A ? in their place would be read as the verdict `open`."""
    program = "import fedweave.pipelines; print('a ± b, ≈ ▲')"
    env = {**os.environ, "PYTHONIOENCODING": "iso-8859-1"}
    run = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=False)
    assert (run.stdout, run.returncode) == ("a ± b, ".encode("iso-8859-1") + rb"\u2248 \u25b2" + b"\n", 0)
