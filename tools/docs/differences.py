"""Tables of differences between methods on the pages of docs/reproduction: one row per setting, one column per pair.

docs/reproduction/differences.yaml names the pairs of each study, such as `FED-PUB - Local`.
"""

from fedweave.errors import choose
from fedweave.results import EMPTY, marks, statistics
from fedweave.study.config import read_yaml
from tools.docs import questions
from tools.docs.stored_numbers import FOLDER, client_scores, rows
from tools.pages import markdown

PAIRS = FOLDER / "differences.yaml"
Pair = tuple[str, str]


def table(study: str) -> str:
    """The differences of a study as Markdown, each with its 95 % interval over seeds and clients.

    A difference to a control is bold where the test over both, corrected over all tests against the controls in this
    setting, shows it, and has the mark ≈ where it shows that the two are equivalent.

    Raises:
        BadInput: docs/reproduction/differences.yaml has no pairs for the study.
    """
    pairs = read_yaml(PAIRS)
    columns = {title: tuple(pair.split(" - ")) for title, pair in pairs[choose(study, pairs, str(PAIRS))].items()}
    lines = [["data set, setting", *columns]]
    for key in sorted(rows(study)):
        tests = questions.to_controls(study, key)
        verdicts = {
            pair: test.verdict for test in tests for pair in ((test.method, test.other), (test.other, test.method))
        }
        lines.append([key, *(_cell(study, key, pair, verdicts.get(pair, "")) for pair in columns.values())])
    return markdown(lines)


def _cell(study: str, key: str, pair: Pair, verdict: str) -> str:
    if not {*pair} <= {*client_scores(study, key)}:
        return EMPTY
    difference, interval = (questions.ask(" | ".join((kind, study, key, *pair))) for kind in ("gap", "interval"))
    bold = "**" if verdict in (statistics.BETTER, statistics.WORSE) else ""
    sign = marks.MARKS["equivalent"] if verdict == statistics.EQUIVALENT else ""
    return f"{sign}{bold}{difference} ({interval}){bold}"
