"""The table of claims at the head of docs/reproduction.md: its words and its numbers are apart.

The words stand in docs/reproduction/claims.yaml. Each number there is a question in braces, such as
`{mean | fedsheafhn/table1 | cora, disjoint/clients10 | Local}`, that is answered from the rows beside the page:

    mean | study | setting | method            our score
    gap | study | setting | first | second     difference of two of our scores
    gaps | studies | first | second            the lowest and the highest `gap` over all settings that have both
    first | studies | method                   in how many settings the method is first
    beyond | studies | method                  ours minus printed, the lowest and the highest
    printed | paper | table | dataset, setting | method
    p | study | setting | first | second       Wilcoxon's test over clients, of means over seeds; corrected by Holm
    value | table | key | column               a cell of a further table of numbers

Several studies are separated by commas.
"""

import re
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from functools import partial
from pathlib import Path

import pandas as pd

from fedweave import results
from fedweave.errors import BadInput, choose
from fedweave.results import published, statistics
from fedweave.study.config import read_yaml

FOLDER = Path("docs/reproduction")
WORDS = FOLDER / "claims.yaml"
QUESTION = re.compile(r"\{([^{}]+)\}")
COLUMNS = {
    "paper": "what a paper says",
    "ours": "under our protocol",
    "theirs": "under theirs",
    "control": "the control that decides",
    "p": "p",
}
CLIENTS = ".clients.csv.gz"  # ending of the file with the scores of every client
CLIENT_COLUMNS = ("dataset", "setting", "method", "metric", "seed", "client", "value")


def table() -> str:
    """The claims as Markdown, with every question answered.

    Raises:
        BadInput: a question of an unknown form, or one that no row answers.
    """
    claims = read_yaml(WORDS)["claims"]
    questions = [question for claim in claims for text in claim.values() for question in QUESTION.findall(str(text))]
    tests = [question for question in dict.fromkeys(questions) if _parts(question)[0] == "p"]
    corrected = dict(zip(tests, statistics.holm([_raw_p(*_parts(q)[1:]) for q in tests]), strict=True))
    lines = [f"| {' | '.join(COLUMNS.values())} |\n", "|---" * len(COLUMNS) + "|\n"]
    for claim in claims:
        cells = (QUESTION.sub(partial(_answer, corrected), str(claim.get(name) or results.EMPTY)) for name in COLUMNS)
        lines.append(f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |\n")
    return "".join(lines)


def _answer(corrected: Mapping[str, float], match: re.Match[str]) -> str:
    kind, *arguments = _parts(match[1])
    if kind == "p":
        value = corrected[match[1]]
        return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"
    try:
        return ANSWERS[choose(kind, ANSWERS, f"{WORDS}")](*arguments)
    except TypeError as error:
        raise BadInput(f"{WORDS}: {match[0]}: {error}") from error


def _parts(question: str) -> list[str]:
    return [part.strip() for part in question.split("|")]


def rows(studies: str) -> pd.DataFrame:
    """The rows of one or several studies, with `key` "data set, setting"."""
    parts = [pd.read_csv(_there(FOLDER / f"{name.strip()}.csv")) for name in studies.split(",")]
    board = pd.concat(parts, ignore_index=True)
    return board.assign(key=board["dataset"] + ", " + board["setting"])


def _there(file: Path) -> Path:
    if not file.is_file():
        raise BadInput(
            f"{WORDS}: {file} is not there; take its study: python -m fedweave.pipelines.commands.reproduction"
        )
    return file


def _row(study: str, key: str, method: str) -> pd.Series:
    board = rows(study)
    matches = board[(board["key"] == key) & (board["method"] == method)]
    if len(matches) != 1:
        raise BadInput(f"{WORDS}: {study} has {len(matches)} rows for {key!r} and {method!r}; one is needed")
    return matches.iloc[0]


def _number(value: float, metric: str, signed: bool = False) -> str:
    """Points of accuracy with one decimal; thousandths of a squared error with two."""
    sign = "+" if signed else ""
    shown, digits = (value, 1) if metric == "accuracy" else (1e3 * value, 2)
    exact = Decimal(f"{shown:.6g}").quantize(Decimal(1).scaleb(-digits), ROUND_HALF_UP)  # stored with six digits
    return f"{exact + 0:{sign}.{digits}f}"  # + 0: no minus before a zero


def _mean(study: str, key: str, method: str) -> str:
    row = _row(study, key, method)
    return _number(row["mean"], row["metric"])


def _gap(study: str, key: str, first: str, second: str) -> str:
    one, other = _row(study, key, first), _row(study, key, second)
    return _number(one["mean"] - other["mean"], one["metric"], signed=True)


def _range(gaps: pd.Series, metric: str) -> str:
    if gaps.empty:
        raise BadInput(f"{WORDS}: a range over no setting; see the names in docs/reproduction")
    low, high = (_number(end, metric, signed=True) for end in (gaps.min(), gaps.max()))
    return f"{low} to {high}"


def _gaps(studies: str, first: str, second: str) -> str:
    board = rows(studies)
    means = board.pivot(index="key", columns="method", values="mean")
    return _range((means[first] - means[second]).dropna(), board["metric"].iloc[0])


def _beyond(studies: str, method: str) -> str:
    board = rows(studies).query("method == @method")
    return _range((board["mean"] - board["published_mean"]).dropna(), board["metric"].iloc[0])


def _first(studies: str, method: str) -> str:
    board = rows(studies)
    order = board["mean"].where(board["metric"] == "mse", -board["mean"])
    best = board.loc[order.groupby(board["key"]).idxmin()].set_index("key")["method"]
    has = board[board["method"] == method]["key"].unique()
    return f"{(best[has] == method).sum()} of {len(has)}"


def _printed(paper: str, table_: str, key: str, method: str) -> str:
    printed = [
        row
        for row in published.rows(paper)
        if (row.table, f"{row.dataset}, {row.setting}", row.method) == (table_, key, method)
    ]
    if len(printed) != 1:
        raise BadInput(f"{WORDS}: {paper} prints {len(printed)} numbers in {table_} for {key!r} and {method!r}")
    return f"{printed[0].mean:.1f}"


def _raw_p(study: str, key: str, first: str, second: str) -> float:
    scores = pd.read_csv(_there(FOLDER / f"{study}{CLIENTS}"))
    of_key = scores[scores["dataset"] + ", " + scores["setting"] == key]
    means = of_key.groupby(["method", "client"])["value"].mean().unstack("client")
    for method in (first, second):
        choose(method, means.index, f"{WORDS}: p: {study}: {key}")
    return statistics.signed_rank(means.loc[first].to_numpy(), means.loc[second].to_numpy())


def _value(table_: str, key: str, column: str) -> str:
    values = pd.read_csv(_there(FOLDER / f"{table_}.csv"), dtype=str, keep_default_na=False).set_index("key")
    return str(values.loc[choose(key, values.index, str(WORDS)), choose(column, values.columns, str(WORDS))])


ANSWERS: dict[str, Callable[..., str]] = {
    "mean": _mean,
    "gap": _gap,
    "gaps": _gaps,
    "first": _first,
    "beyond": _beyond,
    "printed": _printed,
    "value": _value,
}


def client_rows(board: pd.DataFrame, clients: pd.DataFrame) -> pd.DataFrame:
    """Scores by method, client and seed in the form that is stored beside a study's table."""
    about = board[["run", "dataset", "setting", "metric"]].drop_duplicates("run")
    table_ = clients.merge(about, on="run")[list(CLIENT_COLUMNS)]
    return table_.sort_values([*CLIENT_COLUMNS[:3], "seed", "client"], kind="stable", ignore_index=True)
