"""A check that the figures in the sentences of docs/reproduction.md and its pages agree with the files beside them.

docs/reproduction/figures.yaml names the source of every figure. Under a section's heading and the opening words of a
paragraph it has the paragraph's figures in their order:

    84.6 = mean | cora10 | coded
    1.4 to 38 = range gap | cora20 | Local | all
    259 = stated | data | words of a node of Photo

After the equals sign there is a question in the language of `tools.docs.questions`; the file's block
`short` abbreviates its parts. The answer, rounded to the decimals of the sentence, must be the figure. `p corrected` is
a p value as in the table of claims. Where no committed file has the figure, there is `stated`, one of the file's
`kinds` and a remark instead.

Every number is a figure, except those in names and counts: Table 1, CIFAR-100, 20 clients, 100 rounds.
"""

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from fedweave.errors import BadInput, choose
from fedweave.study.config import read_yaml
from tools.docs import claims, questions
from tools.docs.stored_numbers import FOLDER

SOURCES = FOLDER / "figures.yaml"
STATED = "stated"
NOT_PROSE = re.compile(r"<!-- (\w+): .*?<!-- end -->|<!--.*?-->|\]\([^)]*\)|\*\*| · 10⁻³", re.DOTALL)
CODE = re.compile(r"`[^`]*`")
POWER = "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"
NUMBER = re.compile(rf"(?<![\w.⁻-])[-+]?\d+(?:,\d{{3}})*(?:\.\d+)?(?: · 10[{POWER}]+|(?<=10)[{POWER}]+)?")
NAME = re.compile(
    r"(?<![\w.,-])(?:\d+(?:,| and| to| or) )*\d+ (?:local |nearest |overlapping )?"
    r"(?:clients|rounds|epochs|steps|seeds|layers|neighbours|classes|groups)\b"
    r"|\b(?:Tables?|Figures?|Equations?) \d+(?:(?:, | and | to )\d+)*|\[0, 1\]"
)


class Entry(NamedTuple):
    """A line of figures.yaml: figures as they are written in the page, and the parts of their question."""

    figures: list[str]
    parts: list[str]


def problems(*pages: str) -> list[str]:
    """One line for every figure of `pages` that has no source, and for every figure that differs from its source.

    Raises:
        BadInput: a question of an unknown form, or one that no row answers.
    """
    sources, prose, lines = read_yaml(SOURCES), figures("\n\n".join(pages)), list[str]()
    for heading, paragraphs in sources["sections"].items():
        for opening, entries in paragraphs.items():
            name = f"{heading}: {opening!r}"
            matches = [key for key in prose if key[0] == heading and key[1].startswith(opening)]
            if len(matches) == 1:
                numbers = prose.pop(matches[0])
                lines += [
                    f"{name}: {line}" for line in _differences(numbers, [_parse_entry(e, sources) for e in entries])
                ]
            else:
                lines.append(f"{name}: {len(matches)} paragraphs with figures begin so; {SOURCES} needs one")
    return lines + [f"{head}: {text[:60]!r}: no source for {', '.join(rest)}" for (head, text), rest in prose.items()]


def figures(text: str) -> dict[tuple[str, str], list[str]]:
    """(heading, text) of every paragraph with figures -> its figures as they are written."""
    heading, prose = "", {}
    for lines in re.split(r"\n\s*\n", NOT_PROSE.sub("", text)):
        paragraph = " ".join(lines.split())
        if paragraph.startswith("#"):
            heading = paragraph.lstrip("# ")
        elif numbers := NUMBER.findall(NAME.sub("", CODE.sub("", paragraph))):
            prose[heading, paragraph] = numbers
    return prose


def _parse_entry(line: str, sources: Mapping[str, Any]) -> Entry:
    left, equals, right = line.partition(" = ")
    parts = questions.parts(right)
    if not equals or not NUMBER.search(left) or (parts[0] == STATED and len(parts) != 3):
        raise BadInput(f"{SOURCES}: {line!r}: write FIGURE = QUESTION, or FIGURE = {STATED} | KIND | REMARK")
    if parts[0] == STATED:
        choose(parts[1], sources["kinds"], f"{SOURCES}: {line!r}")
    return Entry(NUMBER.findall(left), questions.parts(" | ".join(sources["short"].get(part, part) for part in parts)))


def _differences(numbers: list[str], entries: list[Entry]) -> Iterator[str]:
    """One line for each difference between the `numbers` of a paragraph and its entries."""
    expected = [figure for entry in entries for figure in entry.figures]
    for position, (figure, source) in enumerate(zip([*numbers, "none"], [*expected, "none"], strict=False), start=1):
        if figure != source:
            yield f"figure {position} is {figure} in the text and {source} in {SOURCES}"
            return
    for entry in entries:
        if entry.parts[0] != STATED and (answer := _rounded_answer(entry)) != [*map(_decimal, entry.figures)]:
            yield f"{' '.join(entry.figures)}: the answer to {_question(entry)!r} is {' '.join(map(str, answer))}"


def _rounded_answer(entry: Entry) -> list[Decimal]:
    answer = _corrected_p_value(entry) if entry.parts[0] == "p corrected" else questions.ask(_question(entry))
    if len(answer.values) != len(entry.figures):
        raise BadInput(f"{SOURCES}: {_question(entry)!r} has {len(answer.values)} answers for {entry.figures}")
    exponents = [_decimal(figure).as_tuple().exponent for figure in entry.figures]
    return answer.round_to([max(0, -int(exponent)) for exponent in exponents])


def _corrected_p_value(entry: Entry) -> questions.Answer:
    p_values = {" | ".join(test): p for test, p in claims.p_values().items()}
    return questions.Answer((p_values[choose(" | ".join(entry.parts[1:]), p_values, f"{claims.WORDS}: p")],))


def _question(entry: Entry) -> str:
    return " | ".join(entry.parts)


def _decimal(figure: str) -> Decimal:
    """The number of a figure as it is written: 288,342, 5 · 10⁻⁴, 10⁻⁶."""
    factor, *power = re.split(rf"(?: · )?10(?=[{POWER}])", figure.replace(",", ""))
    exponent = int(power[0].translate(str.maketrans(POWER, "-0123456789"))) if power else 0
    return Decimal(factor or 1).scaleb(exponent)
