"""`fedweave paper`: every printed number of a paper once, and ours beside those that were run."""

import math
import re

import pytest
from typer.testing import CliRunner

from fedweave.errors import BadInput
from fedweave.pipelines.commands.main import app
from fedweave.results import published
from fedweave.results.published import ledger


def run(*words: str, width: int = 80) -> str:
    result = CliRunner().invoke(app, ["paper", *words], env={"COLUMNS": str(width)}, catch_exceptions=False)
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("width", [80, 400])
@pytest.mark.parametrize("name", published.PAPERS)
def test_every_printed_number_is_shown_once(name: str, width: int) -> None:
    lines, entries = run(name, width=width).splitlines(), ledger.read(name)
    cells = [cell for line in lines for cell in re.split(r"\s{2,}", line)[1:]]
    shown = sorted(found[0] for cell in cells if (found := re.match(r"-?[\d.]+(e[+-]?\d+)?(?=$| \[|¹|ᶜ| r| –)", cell)))
    assert shown == sorted(f"{entry.printed:g}" for entry in entries)
    ours = re.findall(r"\[([\d.e+-]+)", "\n".join(lines))
    assert sorted(ours) == sorted(f"{entry.ours:.4g}" for entry in entries if math.isfinite(entry.ours))
    assert max(map(len, lines)) <= width


def test_one_table_of_a_paper() -> None:
    text = run("pfedgat", "table3")
    assert text.startswith("pFedGAT, table3")
    assert "table1" not in text
    (entry,) = (
        one for one in ledger.read("pfedgat", "table3") if (one.method, one.setting) == ("Local", "dir0.1/clients10")
    )
    assert f"{entry.printed:g} [{entry.ours:.4g}¹]" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["fedsheaf"], "paper: 'fedsheaf' is unknown; did you mean 'fedsheafhn'?"),
        (["shn", "table9"], "Sheaf HyperNetworks: no table 'table9'; choices: table1, table2"),
    ],
)
def test_a_wrong_name_is_one_line(words: list[str], message: str) -> None:
    with pytest.raises(BadInput, match=re.escape(message)):
        CliRunner().invoke(app, ["paper", *words], catch_exceptions=False)
