"""Keys that a SuperLink has accepted are in the roster, however `flwr` ends."""

from pathlib import Path

import pytest

from fedweave.deployment.flower import registry
from fedweave.deployment.roster import Roster
from fedweave.errors import BadInput

DYING = """import json, sys
for number, words in enumerate(json.loads(sys.argv[1])):
    if number == {answered}:
        sys.exit("the connection was lost")
    print(json.dumps({{"success": True, "node-id": 100 + number}}), "\\x1e", flush=True)
"""


@pytest.fixture
def roster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Roster:
    """An empty roster, and fingerprints without keys."""
    monkeypatch.setattr(registry, "fingerprint", lambda path: f"SHA256:{path.stem}")
    return Roster(tmp_path / "roster.json")


@pytest.mark.parametrize("answered", range(4))
def test_what_was_answered_is_kept(answered: int, roster: Roster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are named, and may be registered again."""
    keys = {client: Path(f"{client}.pub") for client in range(3)}
    monkeypatch.setattr(registry, "CODE", DYING.format(answered=answered))
    if answered < len(keys):
        with pytest.raises(BadInput, match="the connection was lost") as error:
            registry.register(keys, roster, "here")
        assert "\n" not in str(error.value)
    else:
        assert len(registry.register(keys, roster, "here")) == len(keys)
    assert {entry.client: entry.node for entry in roster.entries()} == {n: 100 + n for n in range(min(answered, 3))}
