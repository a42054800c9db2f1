"""The version on the command line."""

from typer.testing import CliRunner

import fedweave
from fedweave.pipelines.commands.main import app


def test_the_version_is_that_of_the_package() -> None:
    done = CliRunner().invoke(app, ["--version"])
    assert (done.exit_code, done.stdout) == (0, f"fedweave {fedweave.__version__}\n")


def test_help_describes_the_program_and_names_the_option() -> None:
    text = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).stdout
    assert "trained, tuned and compared on equal terms" in text
    assert "--version" in text
