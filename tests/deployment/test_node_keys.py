"""Keys that a SuperLink has accepted are in the roster, for any end of `flwr`. Keys may move to other clients."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from fedweave.deployment.__main__ import main
from fedweave.deployment.flower import node_keys
from fedweave.deployment.wire.roster import Roster, RosterEntry
from fedweave.errors import BadInput

DYING = """import json, sys
for number, words in enumerate(json.loads(sys.argv[1])):
    if number == {answered}:
        sys.exit("the connection was lost")
    print(json.dumps({{"success": True, "node-id": 100 + number}}), "\\x1e", flush=True)
"""


@pytest.fixture
def roster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Roster:
    """An empty roster, with fingerprints that need no keys."""
    monkeypatch.setattr(node_keys, "fingerprint", lambda path: f"SHA256:{path.stem}")
    return Roster(tmp_path / "roster.json")


@pytest.mark.parametrize("answered", range(4))
def test_accepted_keys_are_stored(answered: int, roster: Roster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The message names the others, which may be registered again."""
    keys = {client: Path(f"{client}.pub") for client in range(3)}
    monkeypatch.setattr(node_keys, "CODE", DYING.format(answered=answered))
    if answered < len(keys):
        with pytest.raises(BadInput, match="the connection was lost"):
            node_keys.register(keys, roster, "here")
    else:
        assert len(node_keys.register(keys, roster, "here")) == len(keys)
    assert {entry.client: entry.node for entry in roster.entries()} == {n: 100 + n for n in range(min(answered, 3))}


@pytest.mark.parametrize("config", [None, "", "superlink = 1", '[superlink.local]\naddress = ":local:"', "[superlink"])
@pytest.mark.parametrize("command", [["register", "a.pub"], ["unregister"]])
def test_an_unknown_superlink_is_refused_before_any_work(
    config: str | None,
    command: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without the check, `flwr` writes a configuration without this SuperLink, and then speaks of an unexpected error.
    With it, the next check refuses the key or the client.
    """
    monkeypatch.setenv("FLWR_HOME", str(tmp_path / "flwr"))
    path = tmp_path / "flwr" / "config.toml"
    path.parent.mkdir()
    if config is not None:
        path.write_text(config)
    words = [*command, "--client", "0", "--roster", str(tmp_path / "roster.json")]
    assert main(words) == 2
    problem = "is not TOML (" if config == "[superlink" else "has no [superlink.federation]; write this table with the"
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {path}: {problem}")
    assert path.exists() == (config is not None)
    path.write_text('[superlink.federation]\naddress = "127.0.0.1:8000"\n')
    assert main(words) == 2
    assert str(path) not in capsys.readouterr().err
    assert main([*words, "--connection", "nosuch"]) == 2
    assert "has no [superlink.nosuch]" in capsys.readouterr().err


CHANGES = {  # clients 0 and 1 have the keys a and b -> the registered keys, and the keys that are refused afterwards
    "two clients change places": ({0: "b", 1: "a"}, {0: "b", 1: "a"}, []),
    "a new key, and its old one for another client": ({1: "c", 0: "b"}, {0: "b", 1: "c"}, ["a"]),
    "the same in the other order": ({0: "b", 1: "c"}, {0: "b", 1: "c"}, ["a"]),
    "a key of another client": ({0: "b"}, {0: "b"}, ["a"]),
    "the same key again": ({0: "a"}, {0: "a", 1: "b"}, []),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_key_may_move_to_another_client(case: str, roster: Roster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The SuperLink accepts each key once. The roster has each client's last key, and no other key is refused."""
    keys, expected, refused = CHANGES[case]
    nodes, unregistered = {"a": 1, "b": 2}, []

    def superlink(commands: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        answers = []
        for _, command, what, _ in commands:
            if command == "unregister":
                unregistered.append(int(what))
            known = command == "register" and Path(what).stem in nodes
            number = nodes.setdefault(Path(what).stem, len(nodes) + 1) if command == "register" else 0
            answers.append({"error-message": "in use"} if known else {"success": True, "node-id": number})
        return answers

    monkeypatch.setattr(node_keys, "run_flwr", superlink)
    with roster.edit() as rows:
        rows |= {client: RosterEntry(client, f"SHA256:{key}", nodes[key]) for client, key in enumerate("ab")}
    lines = node_keys.register({client: Path(f"{key}.pub") for client, key in keys.items()}, roster, "here")
    assert roster.entries() == tuple(RosterEntry(i, f"SHA256:{key}", nodes[key]) for i, key in sorted(expected.items()))
    assert unregistered == [nodes[key] for key in refused]
    assert [line for line in lines if "no key" in line] == [
        f"client {client}: has no key any more" for client in {0, 1} - {*expected}
    ]
