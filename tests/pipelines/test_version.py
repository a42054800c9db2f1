"""The version and the help of the command line."""

import re

import typer
from typer.testing import CliRunner

import fedweave
from fedweave.pipelines.commands.main import PANELS, app


def test_the_version_is_that_of_the_package() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"fedweave {fedweave.__version__}\n")


def test_help_describes_the_program_and_names_the_option() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout
    assert "trained, tuned and compared on equal terms" in text
    assert "--version" in text


def test_help_shows_every_command_once_in_its_part() -> None:
    commands = {*typer.main.get_group(app).commands}
    listed = [name for names in PANELS.values() for name in names]
    assert (len(listed), {*listed}) == (len(commands), commands)
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout
    for panel, names in PANELS.items():
        part = text.partition(f" {panel} ")[2].partition("╰")[0]
        assert tuple(re.findall(r"^│ (\w+) ", part, re.MULTILINE)) == names
