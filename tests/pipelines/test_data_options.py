"""The options of commands that describe a user's file: lists of names in one text."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import typer
from typer.testing import CliRunner

import fedweave as fw
from fedweave.pipelines.commands import data_options, main, own_data
from fedweave.pipelines.commands.data_options import parse_options

LEFT_OUT: dict[str, Any] = {"features": None, "exclude": None, "shares": "", "text": None, "val": None, "embed": None}
NAMES = {
    "": [],
    "a": ["a"],
    " a ,, b,": ["a", "b"],
    '"a,b",c': ["a,b", "c"],
    'c, "a,b" ': ["c", "a,b"],
    '"say ""a, b"""': ['say "a, b"'],
    '5" disk,x': ['5" disk', "x"],
    '" padded ",x': [" padded ", "x"],
}


@pytest.mark.parametrize("text", NAMES)
def test_names_are_quoted_as_in_csv(text: str) -> None:
    assert data_options.split_names(text, "--features") == NAMES[text]


@pytest.mark.parametrize("text", ['"a,b', 'a,"b', '"a" b,c'])
def test_a_quote_must_close(text: str) -> None:
    with pytest.raises(fw.BadInput, match=r"--features: .* quotes do not close; .*as in CSV"):
        data_options.split_names(text, "--features")


def test_labels_are_lists_of_names_only_for_forecasts() -> None:
    """One column is used as written. Lists of columns, and quotes, are for forecasts."""
    assert parse_options(label="a,b", **LEFT_OUT)["label"] == "a,b"
    assert parse_options(label=" a", window=3, **LEFT_OUT)["label"] == " a"
    assert parse_options(label="a,b", window=3, **LEFT_OUT)["label"] == ["a", "b"]
    assert parse_options(label='"a,b"', window=3, **LEFT_OUT)["label"] == ["a,b"]


def test_an_option_of_columns_may_be_repeated() -> None:
    """The last one alone would count otherwise, and models would see a column that was excluded."""
    given = {"exclude": ["a,b", "c"], "text": ["d=64", "e"]}
    parsed = parse_options(label="y", **{**LEFT_OUT, **given})
    assert parsed["exclude"] == ["a", "b", "c"]
    assert parsed["text"] == {"d": 64, "e": 256}


def list_commands(group: Any) -> dict[str, Any]:
    """The commands of a group and of its groups, by their words."""
    inside = [
        (name, list_commands(one) if hasattr(one, "commands") else {"": one}) for name, one in group.commands.items()
    ]
    return {f"{name} {rest}".strip(): command for name, commands in inside for rest, command in commands.items()}


COMMANDS = list_commands(typer.main.get_command(main.app))


@pytest.mark.parametrize("words", COMMANDS)
def test_an_option_of_one_value_is_given_once(words: str) -> None:
    """The last one alone would count otherwise, without a word. Lists and flags may be repeated."""
    for option in COMMANDS[words].params:
        if option.param_type_name == "option" and not option.is_flag and not option.multiple:
            for name in option.opts:
                error = CliRunner().invoke(main.app, [*words.split(), name, "1", f"{name}=2"]).exception
                assert isinstance(error, fw.BadInput), (name, error)
                assert str(error) == f"{option.opts[0]}: is given 2 times, but takes one value; give it once"


def test_flags_and_lists_may_be_repeated() -> None:
    flags = ["--resume", "--no-resume", "--exclude", "a", "--exclude", "b"]
    done = CliRunner().invoke(main.app, ["compare", *flags, "no.csv", "--client", "c", "--label", "y", "--out", "out"])
    assert str(done.exception).startswith("no.csv: "), done.exception


def test_texts_may_have_a_comma_in_their_name() -> None:
    assert parse_options(label="y", **{**LEFT_OUT, "text": ['"a, b=64",c']})["text"] == {"a, b": 64, "c": 256}


def test_a_column_with_a_comma_in_its_name_is_used(tmp_path: Path) -> None:
    """The columns in training are those that `from_pandas` gets as a list."""
    table = pd.DataFrame(
        {"size, cm": range(60), "age": range(60, 0, -1), "who": ["A", "B"] * 30, "late": [0, 0, 1, 1] * 15}
    )
    table.to_csv(tmp_path / "rows.csv", index=False)
    own_data.compare(
        tmp_path / "rows.csv",
        client="who",
        label="late",
        features=['"size, cm"'],
        methods=["local"],
        rounds=1,
        seeds=1,
        out=tmp_path / "out",
        tune=0,
    )
    result = fw.load(tmp_path / "out")["local"]
    assert len(result.predict(table[["size, cm"]], "A")) == 60
