"""The options of data: one description for the calls, their help and the command line; small clients; row numbers."""

import dataclasses
import inspect
from typing import Any, get_type_hints

import numpy as np
import pandas as pd
import pytest
import typer.main

import fedweave as fw
from fedweave.own_data.options import ROW_OPTIONS, TABLE_OPTIONS, DataFields, TableKeywords
from fedweave.pipelines.commands import main

COUNT = 120
NOISE = np.random.default_rng(0).normal(size=COUNT)
TABLE = pd.DataFrame(
    {"c": ["a"] * 60 + ["b"] * 40 + ["tiny"] * 20, "x": NOISE, "t": range(COUNT), "y": np.arange(COUNT) // 4 % 2}
)
CALLS = {
    "from_arrays": ROW_OPTIONS,
    "from_graphs": (*ROW_OPTIONS, "features", "exclude"),
    "from_images": ROW_OPTIONS,
    "from_pandas": (*ROW_OPTIONS, *TABLE_OPTIONS),
    "from_file": (*ROW_OPTIONS, *TABLE_OPTIONS, "encoding"),
    "from_huggingface": (*ROW_OPTIONS, *TABLE_OPTIONS),
}


def test_type_checkers_read_the_fields_of_the_options() -> None:
    """Names, order and types of the keywords are those of the fields."""
    fields = get_type_hints(DataFields)
    assert [*get_type_hints(TableKeywords).items()] == [*fields.items()]
    assert {*ROW_OPTIONS}.isdisjoint(TABLE_OPTIONS)
    assert (*ROW_OPTIONS, *TABLE_OPTIONS) == tuple(fields)


@pytest.mark.parametrize("call", CALLS)
def test_help_shows_each_option_with_its_meaning(call: str) -> None:
    function = getattr(fw.Federation, call)
    parameters = inspect.signature(function).parameters
    assert {*CALLS[call]} <= {*parameters}
    assert not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    for field in dataclasses.fields(DataFields):
        assert (f" {field.name}: " in (inspect.getdoc(function) or "")) == (field.name in CALLS[call]) or (
            field.name in ("features", "exclude")
        )


@pytest.mark.parametrize("name", ["compare", "recommend", "import"])
def test_commands_have_each_option(name: str) -> None:
    group: Any = typer.main.get_command(main.app)
    options = {parameter.name: parameter for parameter in group.get_command(None, name).params}
    fields = {field.name for field in dataclasses.fields(DataFields)} - {"seed"}
    assert {"client", "label", "encoding", *fields} <= {*options}
    assert all(options[field].help for field in fields)


@pytest.mark.parametrize("given", ["table", "arrays", "by client", "texts", "forecast"])
def test_small_clients_are_left_out_and_named(given: str) -> None:
    federation = {
        "table": lambda **o: fw.Federation.from_pandas(TABLE, client="c", label="y", time="t", **o),
        "arrays": lambda **o: fw.Federation.from_arrays(
            TABLE[["x"]], TABLE.y, client=TABLE.c, time=TABLE.t.to_numpy(), unit=TABLE.c.tolist(), **o
        ),
        "by client": lambda **o: fw.Federation.from_arrays(
            *({n: t[k].to_numpy() for n, t in TABLE.groupby("c")} for k in (["x"], "y")), **o
        ),
        "texts": lambda **o: fw.Federation.from_arrays(
            [f"word{i}" for i in range(COUNT)], TABLE.y, client=TABLE.c, **o
        ),
        "forecast": lambda **o: fw.Federation.from_pandas(
            TABLE, client="c", label="x", time="t", window=3, horizon=1, **o
        ),
    }[given]
    large = federation(min_rows=21)
    assert large.names == ("a", "b")
    assert "1 of 3 clients with fewer than 21 rows is left out (20 rows): 'tiny'" in large.notes
    assert federation(min_rows=20).names == ("a", "b", "tiny")
    with pytest.raises(fw.BadInput, match="min_rows: no client has 61 rows; the largest, 'a', has 60 rows"):
        federation(min_rows=61)
    with pytest.raises(fw.BadInput, match="min_rows: -1 must be a number of rows"):
        federation(min_rows=-1)


def test_the_rows_of_large_clients_are_those_of_a_smaller_table() -> None:
    large = fw.Federation.from_pandas(TABLE, client="c", label="y", time="t", min_rows=21)
    smaller = fw.Federation.from_pandas(TABLE[TABLE.c != "tiny"], client="c", label="y", time="t")
    np.testing.assert_array_equal(large.dataset.x, smaller.dataset.x)
    for part in ("train", "val", "test"):
        for pair in zip(getattr(large.partition, part), getattr(smaller.partition, part), strict=True):
            np.testing.assert_array_equal(*pair)


ORDER = np.random.default_rng(1).permutation(COUNT)


@pytest.mark.parametrize(
    ("name", "values", "named"),
    [
        ("n", np.arange(COUNT) + 7, True),
        ("n", ORDER.astype(float), True),
        ("visit_id", ORDER * 37, True),
        ("income", ORDER * 37, False),
        ("n", ORDER // 2, False),
        ("id", NOISE, False),
    ],
)
def test_row_numbers_are_named_before_they_are_features(name: str, values: np.ndarray, named: bool) -> None:
    table = TABLE.drop(columns="t").assign(**{name: values})
    notes = fw.Federation.from_pandas(table, client="c", label="y").notes
    assert any(f"column {name!r}" in note and "models see it as a feature" in note for note in notes) == named
