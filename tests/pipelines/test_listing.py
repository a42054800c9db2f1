"""`fedweave list` outside of a terminal: every row is one complete line, so that grep finds it."""

import pytest

from fedweave.methods import METHODS
from fedweave.pipelines.commands import listing, main
from fedweave.study import catalogue


def test_every_row_is_one_whole_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """This holds even if variables of the shell set short lines."""
    monkeypatch.setenv("COLUMNS", "80")
    main.list_("methods")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == ["name", *METHODS]
    for line, row in zip(lines, listing.methods(), strict=True):
        assert [word for word in row if word not in line] == []
    main.list_("studies")
    about = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in about] == ["name", *catalogue.studies()]
    assert max(map(len, about)) > 200


def test_every_partition_says_what_it_is_and_lists_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    """Rules by label share one function, so each is explained by the part in which it differs."""
    _, *rows = listing.partitions()
    assert len({summary for _, _, summary in rows} - {"-"}) == len(rows)
    for name, options, _ in rows:
        main.list_("partitions", name)
        lines = capsys.readouterr().out.splitlines()
        assert (", ".join(line.split()[0] for line in lines[1:]) or "-") == options
