"""The terminal that tables are printed on."""

from rich.console import Console

WIDE = 160  # columns of output that is not a terminal


def console() -> Console:
    """A console that is wide enough for tables where the output is not a terminal."""
    screen = Console(markup=False)
    screen.width = screen.width if screen.is_terminal else WIDE
    return screen
