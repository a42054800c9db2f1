"""What comes after the first study: rows that arrive, models that age, and the next ones."""

from datetime import UTC, datetime

LEDGER = "ledger.json"  # what the deliveries are
ROLES = "roles.json"  # which models are champion and challenger


def timestamp() -> str:
    """The time in UTC, to the second, as the files of a life have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
