"""The page of a board: README.md, which a site or a host of repositories shows, and board.csv."""

from fedweave import results
from fedweave.boards.board import Board, read_own_terms
from fedweave.comparison.comparison import Comparison
from fedweave.files.atomic import write_atomic
from fedweave.results.marks import CONTROLS, control_column

PAGE, TABLE = "README.md", "board.csv"
COLUMNS = {"rank": "", "method": "method", "score": "mean ± std", "interval": "95 % interval"}
TESTS = {control_column(control): f"vs {name}" for control, name in zip(CONTROLS, ("Local", "FedAvg-FT"), strict=True)}

LEGEND = """\
{metric} of test rows: mean over clients, std over seeds. Against the leader: ≈ equivalent, ? open. Against Local and
FedAvg-FT: ▲ better, ▽ worse, ≈ equivalent, ? open.
"""


def write_page(board: Board, comparison: Comparison) -> None:
    """Write README.md and board.csv of a board."""
    table = comparison.leaderboard()
    write_atomic(board.folder / TABLE, table.to_csv(index=False, lineterminator="\n", float_format="%.6g"))
    write_atomic(board.folder / PAGE, page(board, comparison))


def page(board: Board, comparison: Comparison) -> str:
    """The page as Markdown."""
    terms, about = board.terms, board.terms.about.strip()
    entries = {name: read_own_terms(board.folder / "contestants" / name) for name in board.entries}
    named = []
    for name, own in entries.items():
        about_it, digest = f": {own.about}" if own.about else "", board.entries[name]["sha256"][:12]
        named.append(f"- `{name}`: `{own.command}`{about_it} (sha256 `{digest}`)\n")
    blocks = [f"# {terms.title}\n", *([about, ""] if about else []), _table(comparison)]
    blocks += ["## Contestants\n", "".join(named) or "None yet.\n"]
    blocks += ["## What is enforced\n", "".join(f"- {line}\n" for line in enforced(board))]
    if comparison.warnings:
        blocks += ["## What to know\n", "".join(f"- {line}\n" for line in comparison.warnings)]
    return "\n".join(blocks)


def enforced(board: Board) -> list[str]:
    """What the code of the board makes sure of, one line each."""
    terms, seeds = board.terms, ", ".join(map(str, board.terms.seeds))
    closed = "There is no sandbox: **a contestant could read other files and the network**."
    if terms.sandbox:
        hidden = "the file of rows, other contestants or results"
        closed = f"A contestant runs in a sandbox: it cannot read {hidden}, and has no network."
    return [
        f"Rows: `{board.rows.file}`, sha256 `{board.rows.sha256[:12]}`. Targets of test rows are not handed out.",
        closed,
        f"Seeds {seeds}: a contestant runs once with each. The methods of fedweave train {terms.rounds} rounds.",
        f"A repetition has {terms.seconds:g} seconds, and each of its processes {terms.memory:g} MiB.",
        "Predictions are scored by the same code as those of the methods, and tested against them.",
        "A contestant is known by its command and the digest of its files; another digest is another contestant.",
    ]


def _table(comparison: Comparison) -> str:
    """The leaderboard and its controls, with a legend."""
    tables = results.compute_tables(comparison.study)
    rows = [*results.leaderboard_rows(tables.board), *results.control_rows(tables.controls)]
    shown = COLUMNS | {name: heading for name, heading in TESTS.items() if any(row.get(name) for row in rows)}
    cells = [shown, dict.fromkeys(shown, "--:") | {"method": "---"}, *rows]
    lines = [f"| {' | '.join(row.get(key, '') for key in shown)} |\n" for row in cells]
    return "".join([*lines, "\n", LEGEND.format(metric=comparison.metric)])
