"""The leaderboard with the styles of a terminal, stored apart from the plain text. Imports here must be fast."""

import re
from pathlib import Path

STYLES = re.compile(r"\x1b\[[0-9;]*m")


def remove_styles(text: str) -> str:
    """`text` without styles, and without spaces at the ends of its lines."""
    return "\n".join(line.rstrip() for line in STYLES.sub("", text).split("\n"))


def styled_path(file: Path) -> Path:
    """The path of the styled form of results/<study>/leaderboard.txt."""
    return Path(".fedweave", "boards", f"{file.parent.name}.ansi")


def read(file: Path) -> str:
    """The styled form of `file`; its plain text if the styled form is missing or of another state of the file."""
    text, copy = file.read_text(encoding="utf-8"), styled_path(file)
    styled = copy.read_text(encoding="utf-8") if copy.is_file() else ""
    return styled if remove_styles(styled) == text else text
