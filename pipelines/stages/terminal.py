"""The terminal that tables are printed on."""

from rich.console import Console

WIDE = 160  # columns of output that is no terminal


def console() -> Console:
    """A console that is wide enough for tables where the output is no terminal."""
    screen = Console(markup=False)
    screen.width = screen.width if screen.is_terminal else WIDE
    return screen
