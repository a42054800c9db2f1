"""What comes after the first study: rows that arrive, models that age, and the next ones."""

LEDGER = "ledger.json"  # what the deliveries are
ROLES = "roles.json"  # which models are champion and challenger
