"""Files that commands write and users may change: a checksum in the first line shows whether somebody changed them."""

import hashlib


def sign(about: str, body: str) -> str:
    """`body` below a comment line with the text `about` and the checksum of `body`."""
    return f"# {about} {_mark(body)}\n{body}"


def is_unchanged(text: str) -> bool:
    """Whether `text` is exactly what `sign` returned."""
    first, _, body = text.partition("\n")
    return first.endswith(_mark(body))


def _mark(body: str) -> str:
    return f"(unchanged: {hashlib.sha256(body.encode()).hexdigest()[:12]})"
