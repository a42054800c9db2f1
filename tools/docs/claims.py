"""The table of claims at the head of docs/reproduction.md, made from its texts and its numbers.

The texts are in docs/reproduction/claims.yaml. Each number there is a question in braces, in the language of
`tools.docs.questions`. Its p values are corrected by Holm's method over all tests of the table. A pair
without a verdict, such as one of a single seed, has the reason in its place.
"""

import gzip
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import pandas as pd

from fedweave import results
from fedweave.errors import BadInput
from fedweave.files.atomic import write_atomic
from fedweave.results import holm
from fedweave.study.config import read_yaml
from tools.docs import questions
from tools.docs.stored_numbers import FOLDER
from tools.pages import with_others

WORDS = FOLDER / "claims.yaml"
QUESTION = re.compile(r"\{([^{}]+)\}")
COLUMNS = {
    "paper": "what a paper says",
    "verdict": "verdict",
    "ours": "under our protocol",
    "theirs": "under theirs",
    "control": "compared with",
    "p": "p",
}
CLIENT_COLUMNS = ("dataset", "setting", "method", "metric", "seed", "client", "part", "value")


def table() -> str:
    """The claims as Markdown, with every question answered."""
    p_corrected = p_values()
    lines = [f"| {' | '.join(COLUMNS.values())} |\n", "|---" * len(COLUMNS) + "|\n"]
    for claim in _claims():
        cells = (QUESTION.sub(partial(_answer, p_corrected), str(claim.get(name) or results.EMPTY)) for name in COLUMNS)
        lines.append(f"| {' | '.join(' '.join(cell.split()) for cell in cells)} |\n")
    return "".join(lines)


def p_values() -> dict[tuple[str, ...], float]:
    """Arguments of every question for a p value in the table -> p value, corrected over all by Holm's method.

    NaN where a pair has no verdict.
    """
    texts = (str(text) for claim in _claims() for text in claim.values())
    split_questions = (questions.parts(question) for text in texts for question in QUESTION.findall(text))
    tests = [*dict.fromkeys(tuple(arguments) for kind, *arguments in split_questions if kind == "p")]
    compared = [questions.compare(*test) for test in tests]
    uncorrected = [test.p if test.verdict else float("nan") for test in compared]
    return dict(zip(tests, map(float, holm.adjust(uncorrected)), strict=True))


def _claims() -> list[dict[str, str]]:
    return read_yaml(WORDS)["claims"]


def _answer(p_corrected: Mapping[tuple[str, ...], float], match: re.Match[str]) -> str:
    kind, *arguments = questions.parts(match[1])
    if kind == "p":
        value = p_corrected[tuple(arguments)]
        if why := questions.why_no_verdict(*arguments):
            return why
        return "< 0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"
    try:
        return str(questions.ask(match[1]))
    except BadInput as error:
        raise BadInput(f"{WORDS}: {error}") from error


def client_rows(study: results.Study) -> pd.DataFrame:
    """Scores by method, client and seed, with the columns `CLIENT_COLUMNS`, as they are stored beside a study's table.

    `part` is the number of a client's part where clients share test nodes or belong to one unit, and the client's own
    number elsewhere. Tests take the clients of one part as one.
    """
    clients = results.clients(study)
    settings = results.board(study, clients)[["run", "dataset", "setting", "metric"]].drop_duplicates("run")
    part_of_client = {run.name: results.part_numbers(runs) for runs in results.by_task(study).values() for run in runs}
    lookups = (part_of_client[run] for run in clients["run"])
    parts = [lookup[client] if lookup else client for lookup, client in zip(lookups, clients["client"], strict=True)]
    rows = clients.assign(part=parts).merge(settings, on="run")[list(CLIENT_COLUMNS)]
    # Methods stay in the order of the study, to which the draws behind corrected p values belong.
    return rows.sort_values([*CLIENT_COLUMNS[:2]], kind="stable", ignore_index=True)


def store_clients(study: results.Study, target: Path, keys: Sequence[str]) -> None:
    """Store the scores of every client and seed in `target`, compressed, so that a later test needs no new run.

    Args:
        keys: rows of `target` that differ from all new ones in these columns stay.
    """
    new = client_rows(study)
    rows = with_others(new, target, keys, new).sort_values([*keys], kind="stable")
    text = rows.to_csv(index=False, lineterminator="\n", float_format="%.6g")
    write_atomic(target, gzip.compress(text.encode(), mtime=0))  # the same rows are the same bytes
