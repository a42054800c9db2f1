"""The run-config of a server: folders below the home folder, and invalid numbers."""

from pathlib import Path

import pytest

from fedweave.deployment.wire import run_config
from fedweave.errors import BadInput


def test_folders_are_below_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Empty ones are those of fedweave."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for folder, expected in (("~/mine", tmp_path / "mine"), ("", tmp_path / ".fedweave" / "federations" / "3f2a")):
        assert run_config.read_folder({"folder": folder}, "3f2a") == expected
    for file, expected in (("~/r.json", tmp_path / "r.json"), ("", tmp_path / ".fedweave" / "roster.json")):
        assert run_config.read_roster({"roster": file}).path == expected


def test_invalid_numbers_are_refused() -> None:
    assert [run_config.read_number({"wait": value}, "wait") for value in (600.0, "5", 0)] == [600.0, 5.0, 0.0]
    for value in ("soon", "nan", float("inf"), -1):
        with pytest.raises(BadInput, match=f"run-config: wait: '?{value}'? is not a number >= 0; for example wait=6"):
            run_config.read_number({"wait": value}, "wait")
    assert [run_config.read_count({"least": value}, "least") for value in (2, "2", 2.0)] == [2, 2, 2]
    with pytest.raises(BadInput, match=r"run-config: least: 2\.7 is not a whole number; for example least=2"):
        run_config.read_count({"least": 2.7}, "least")
