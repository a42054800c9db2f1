"""A board is judged: every method and contestant on its terms, and a page that shows the result."""

import warnings
from collections.abc import Sequence
from typing import Any

from fedweave.boards.board import Board
from fedweave.boards.page import write_page
from fedweave.comparison.compare import compare
from fedweave.comparison.comparison import Comparison
from fedweave.contestants.entry import Contestant


def judge(board: Board, progress: bool = True) -> Comparison:
    """Run what has not run yet on these terms, and write README.md and board.csv of the board.

    Returns:
        all methods and contestants; those that failed are in its `lost`.

    Raises:
        BadInput: rows or a contestant have another digest, or a term is wrong.
    """
    comparison = run(board, board.build_all(), progress)
    write_page(board, comparison)
    return comparison


def run(board: Board, listed: Sequence[type[Contestant]], progress: bool = True) -> Comparison:
    """The methods of a board and some contestants, on its terms."""
    terms = board.terms
    settings: dict[str, Any] = {**({"metric": terms.metric} if terms.metric else {}), **terms.train}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # the page has them
        return compare(
            board.federation(),
            [*terms.methods, *listed],
            model=terms.model,
            rounds=terms.rounds,
            seeds=terms.seeds,
            tune=terms.tune,
            out=board.results,
            name="board",
            progress=progress,
            **settings,
        )
