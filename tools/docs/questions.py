"""Questions about the numbers in docs/reproduction, and their answers.

Each number on that page is the answer to a question about the files in docs/reproduction, the printed tables or a
study's set-up. Bars separate the parts of a question, such as
`mean | fedsheafhn/table1 | cora, disjoint/clients10 | Local`:

    mean, std | study | setting | method           our score; its standard deviation over seeds
    above, below | study | setting | method        ours minus printed; printed minus ours
    gap | study | setting | first | second         difference of two of our scores
    change | study | setting | other | method      a method's score in one setting minus that in the other
    printed, printed std, printed gap, printed change | paper/table | ...    the same for printed numbers
    first | studies | method                       in how many settings the method is first
    interval | study | setting | first | second    95 % interval of a difference over seeds and clients; with one seed
                                                   over clients alone
    p | study | setting | first | second           test of a difference over seeds and clients, uncorrected; in
                                                   intervals and tests, clients that share test nodes, or a unit, are
                                                   one; no number with one seed, two seeds, or too few clients
    p controls | study | setting | first | second  the same, corrected over all tests against the two controls
    better | studies | control                     how many tests of a method against the control, of how many in all
                                                   settings, find the method better after Holm's correction over all
    better within | studies | control              the same, each corrected over the controls of its setting alone
    undecidable | studies | control                how many pairs of a method and the control have no verdict by
                                                   design: for one seed or two; for too few clients
    value | table | key | column                   a cell of a further table of numbers
    ratio | table | key | column | column          of two such cells, as "x to 1"
    set-up | study | key | ...                     a number or a list of numbers in a study's full params.yaml

Several studies are separated by commas; where tests are counted, `all` are those with scores of single clients. Several
settings or methods are separated by semicolons; `*` in a setting stands for any text, and a method may be `all` or
`all but A; B`. The answer then has several numbers. A question may begin with `range`, `lowest`, `highest` or `width`,
which make one or two of them. `within` is the largest size rounded up, `at least` the smallest number rounded down, and
`percent` multiplies by 100.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Decimal
from fnmatch import fnmatchcase
from functools import cache, lru_cache, reduce
from itertools import product
from typing import Any

import numpy as np

from fedweave.errors import BadInput, choose
from fedweave.metrics import METRICS, default_margin
from fedweave.results import holm, statistics
from fedweave.results.marks import CONTROLS, reason_without_verdict
from fedweave.study import catalogue
from tools.docs.stored_numbers import (
    FOLDER,
    Board,
    Group,
    Row,
    cell,
    client_scores,
    modified,
    printed_rows,
    rows,
    with_client_scores,
)


@dataclass(frozen=True)
class Answer:
    """One or several numbers in the unit of the page: accuracies in percent, squared errors in thousandths."""

    values: tuple[float, ...]
    digits: int = 1
    signed: bool = False
    separator: str = " to "
    rounding: str = ROUND_HALF_UP

    def __str__(self) -> str:
        sign = "+" if self.signed else ""
        numbers = [number + 0 for number in self.round_to([self.digits])]  # + 0 makes -0.0 of 0.0
        return self.separator.join(f"{number:{sign if number else ''}.{self.digits}f}" for number in numbers)

    def round_to(self, digits: Sequence[int]) -> list[Decimal]:
        """The numbers, rounded to `digits` decimals each; a single entry of `digits` holds for all of them."""
        decimals = digits if len(digits) > 1 else [*digits] * len(self.values)
        exact = [Decimal(f"{value:.6g}") for value in self.values]  # files keep six digits
        return [
            number.quantize(Decimal(1).scaleb(-n), self.rounding) for number, n in zip(exact, decimals, strict=True)
        ]


def ask(question: str) -> Answer:
    """The answer to one question; one of an unknown form, or that no row answers, is refused."""
    kind, *arguments = parts(question)
    summaries = []
    while summary := next((word for word in SUMMARIES if kind.startswith(f"{word} ")), ""):
        summaries.append(SUMMARIES[summary])
        kind = kind.removeprefix(summary).strip()
    try:
        answer = ANSWERS[choose(kind, ANSWERS, "question")](*arguments)
    except (TypeError, ValueError, IndexError) as error:
        raise BadInput(f"{{{question}}}: {error}") from error
    if not answer.values or not np.isfinite(answer.values).all():
        raise BadInput(f"{{{question}}}: no number answers it; see the names in {FOLDER}")
    return reduce(lambda numbers, summary: summary(numbers), reversed(summaries), answer)


def parts(question: str) -> list[str]:
    """The parts of a question, between its bars."""
    return [part.strip() for part in question.split("|")]


def _select_rows(board: Board, keys: str, *methods: str) -> Iterator[tuple[Row, ...]]:
    """The rows of every combination of the settings and methods in a question."""
    for pattern in map(str.strip, keys.split(";")):
        matches = [key for key in board if fnmatchcase(key, pattern)]
        for key in matches or [choose(pattern, board, "setting")]:
            group = board[key]
            names_of = [_methods(group, text, any_setting="*" in pattern) for text in methods]
            yield from (
                tuple(group[name] for name in names) for names in product(*names_of) if len({*names}) == len(names)
            )


def _methods(group: Collection[str], text: str, any_setting: bool) -> list[str]:
    names = [name.strip() for name in text.removeprefix("all but ").split(";")]
    if text == "all":
        return [*group]
    if text.startswith("all but "):
        return [name for name in group if name not in [choose(other, group, "method") for other in names]]
    return [name for name in names if name in group or (not any_setting and choose(name, group, "method"))]


def _column(read: Callable[[str], Board], name: str, signed: bool = False) -> Callable[..., Answer]:
    def answer(table: str, keys: str, method: str) -> Answer:
        numbers = [(row[name], row["metric"]) for (row,) in _select_rows(read(table), keys, method)]
        if method.startswith("all") or "*" in keys:
            numbers = [pair for pair in numbers if not np.isnan(pair[0])]  # not printed
        return _scores(numbers, signed)

    return answer


def _difference(read: Callable[[str], Board]) -> Callable[..., Answer]:
    def answer(table: str, keys: str, first: str, second: str) -> Answer:
        pairs = _select_rows(read(table), keys, first, second)
        return _scores([(one["mean"] - other["mean"], one["metric"]) for one, other in pairs], signed=True)

    return answer


def _change(read: Callable[[str], Board]) -> Callable[..., Answer]:
    def answer(table: str, keys: str, other: str, method: str) -> Answer:
        board = read(table)
        reference_rows = [*_select_rows(board, other, method)]
        if len(reference_rows) != 1:
            raise BadInput(f"{len(reference_rows)} rows for {other!r} and {method!r}; one is needed")
        reference = reference_rows[0][0]["mean"]
        return _scores(
            [(row["mean"] - reference, row["metric"]) for (row,) in _select_rows(board, keys, method)], signed=True
        )

    return answer


def _scores(numbers: Sequence[tuple[float, str]], signed: bool = False) -> Answer:
    """The answer for (score, metric) pairs: squared errors, in thousandths, have two decimals, other scores one."""
    digits = 2 if any(metric == "mse" for _, metric in numbers) else 1
    return Answer(tuple(value for value, _ in numbers), digits, signed)


def _count_first(studies: str, method: str) -> Answer:
    groups = [group for group in rows(studies).values() if method in group]
    wins = [_best_method(group) == method for group in groups]
    return Answer((sum(wins), len(groups)), 0, separator=" of ")


def _best_method(group: Group) -> str:
    return min(group, key=lambda name: group[name]["mean"] * (1 if group[name]["metric"] == "mse" else -1))


def compare(study: str, key: str, first: str, second: str) -> statistics.TestedPair:
    """The test of one pair over seeds and clients, uncorrected.

    The variance between seeds is moderated by all methods of the setting.
    """
    (test,) = _compare(study, key, ((first, second),), modified(study))
    return test


def to_controls(study: str, key: str) -> list[statistics.TestedPair]:
    """The tests of all methods of a setting against the two controls, corrected over all of them."""
    return _compare(study, key, None, modified(study))


@lru_cache(maxsize=4096)
def _compare(
    study: str, key: str, pairs: tuple[tuple[str, str], ...] | None, stamp: int
) -> list[statistics.TestedPair]:
    """The tests of `pairs`, by default those against the controls; `stamp` is the time of the files."""
    scores = client_scores(study, key)
    for name in {name for pair in pairs or () for name in pair}:
        choose(name, scores, f"{study}: {key}")
    metric = next(row["metric"] for row in rows(study)[key].values())
    higher, margin = METRICS[metric].higher_is_better, default_margin(metric)
    if pairs is None:
        return statistics.compare_to_controls(scores, CONTROLS, higher, margin)
    # Nothing of a pair that is drawn is used here: interval and p are those of Student's distribution.
    return statistics.compare_pairs(scores, pairs, higher, margin, draws=1)


def why_no_verdict(study: str, key: str, first: str, second: str) -> str:
    """Why a pair has no p value, in words; empty if it has one."""
    test = compare(study, key, first, second)
    return "" if test.verdict else reason_without_verdict(test.over)


def _interval(study: str, key: str, first: str, second: str) -> Answer:
    test = compare(study, key, first, second)
    return Answer((test.low, test.high))


def _p(study: str, key: str, first: str, second: str) -> Answer:
    if why := why_no_verdict(study, key, first, second):
        raise BadInput(f"p: {study}: {key}: {first} and {second}: {why}")
    return Answer((compare(study, key, first, second).p,), 2)


def _p_controls(study: str, key: str, first: str, second: str) -> Answer:
    tests = to_controls(study, key)
    return Answer(tuple(test.p_adjusted for test in tests if (test.method, test.other) == (first, second)), 2)


def _against(studies: str, control: str) -> list[tuple[str, str, str, str]]:
    """(study, setting, method, control) of all settings that have client scores of the control."""
    names = with_client_scores() if studies == "all" else [name.strip() for name in studies.split(",")]
    settings = [(study, key) for study in names for key in rows(study)]
    return [
        (study, key, method, control)
        for study, key in settings
        if control in client_scores(study, key)
        for method in client_scores(study, key)
        if method != control
    ]


def _count_better(studies: str, control: str) -> Answer:
    pairs = [pair for pair in _against(studies, control) if compare(*pair).verdict]
    shown = holm.adjust([compare(*pair).p for pair in pairs]) < statistics.ALPHA
    better = [_is_ahead(*pair) for pair, is_shown in zip(pairs, shown, strict=True) if is_shown]
    return Answer((sum(better), len(pairs)), 0, separator=" of ")


def _is_ahead(study: str, key: str, method: str, other: str) -> bool:
    group = rows(study)[key]
    return _best_method({name: group[name] for name in (other, method)}) == method


def _count_better_within(studies: str, control: str) -> Answer:
    settings = dict.fromkeys(pair[:2] for pair in _against(studies, control))
    sides = [test for setting in settings for test in to_controls(*setting) if control in (test.method, test.other)]
    tests = [test if test.other == control else test.swap() for test in sides]
    decided = [test for test in tests if test.verdict]
    return Answer((sum(test.verdict == statistics.BETTER for test in decided), len(decided)), 0, separator=" of ")


def _count_undecidable(studies: str, control: str) -> Answer:
    reasons = [compare(*pair).over for pair in _against(studies, control)]
    seeds = sum(map(reasons.count, (statistics.ONE_SEED, statistics.TWO_SEEDS)))
    return Answer((seeds, reasons.count(statistics.FEW_CLIENTS)), 0, separator=" and ")


def _value(table: str, key: str, column: str) -> Answer:
    text = cell(table, key, column)
    return Answer((float(text),), len(text.partition(".")[2]), text.startswith("+"))


def _ratio(table: str, key: str, first: str, second: str) -> Answer:
    return Answer((_value(table, key, first).values[0] / _value(table, key, second).values[0], 1))


@cache
def _study(name: str) -> dict[str, Any]:
    return catalogue.expand(name)


def _study_value(study: str, *keys: str) -> Answer:
    block: Any = _study(study)
    for key in keys:
        block = block[int(key) if isinstance(block, list) else choose(key, block, study)]
    return Answer(tuple(map(float, block if isinstance(block, list) else [block])), 2)


ANSWERS: dict[str, Callable[..., Answer]] = {
    "mean": _column(rows, "mean"),
    "std": _column(rows, "std"),
    "above": _column(rows, "above", signed=True),
    "below": _column(rows, "below", signed=True),
    "gap": _difference(rows),
    "change": _change(rows),
    "printed": _column(printed_rows, "mean"),
    "printed std": _column(printed_rows, "std"),
    "printed gap": _difference(printed_rows),
    "printed change": _change(printed_rows),
    "first": _count_first,
    "interval": _interval,
    "p": _p,
    "p controls": _p_controls,
    "better": _count_better,
    "better within": _count_better_within,
    "undecidable": _count_undecidable,
    "value": _value,
    "ratio": _ratio,
    "set-up": _study_value,
}
SUMMARIES: dict[str, Callable[[Answer], Answer]] = {
    "range": lambda a: replace(a, values=(min(a.values), max(a.values))),
    "lowest": lambda a: replace(a, values=(min(a.values),)),
    "highest": lambda a: replace(a, values=(max(a.values),)),
    "width": lambda a: replace(a, values=(max(a.values) - min(a.values),), signed=False),
    "within": lambda a: replace(a, values=(max(map(abs, a.values)),), rounding=ROUND_CEILING),
    "at least": lambda a: replace(a, values=(min(a.values),), rounding=ROUND_FLOOR),
    "percent": lambda a: replace(a, values=tuple(100 * value for value in a.values), digits=0),
}
