"""Files that commands write and users may change: the first line has a sum, by which a changed file is kept."""

import hashlib


def sign(about: str, body: str) -> str:
    """`body` below a line that says `about` and holds its sum."""
    return f"# {about} {_mark(body)}\n{body}"


def is_unchanged(text: str) -> bool:
    """Whether `text` is, letter for letter, what `sign` returned."""
    first, _, body = text.partition("\n")
    return first.endswith(_mark(body))


def _mark(body: str) -> str:
    return f"(unchanged: {hashlib.sha256(body.encode()).hexdigest()[:12]})"
