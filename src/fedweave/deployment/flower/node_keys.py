"""Keys of nodes in the SuperLink, by the commands of `flwr`, and in the roster."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedweave.deployment.flower.processes import find_reason, require_flower
from fedweave.deployment.wire.roster import Roster, RosterEntry, fingerprint
from fedweave.errors import BadInput

# One process for all commands, as each start of `flwr` takes a second; a record separator ends each answer.
CODE = """import json, sys
from flwr.cli.app import app
for words in json.loads(sys.argv[1]):
    try:
        app([*words, "--format", "json"], standalone_mode=False)
    except SystemExit:
        pass
    except Exception as error:
        print(json.dumps({"success": False, "error-message": str(error)}))
    print("\\x1e", flush=True)
"""


def check_connection(name: str) -> None:
    """Refuse a SuperLink that the configuration of `flwr` does not have; its own message does not say what to write."""
    path = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr") / "config.toml"
    try:
        connections = tomllib.loads(path.read_text(encoding="utf-8")).get("superlink")
    except FileNotFoundError:
        connections = None
    except ValueError as error:
        raise BadInput(path, f"is not TOML ({error}); correct it") from error
    if not isinstance(connections, dict) or name not in connections:
        raise BadInput(
            f"{path}",
            f"has no [superlink.{name}]; write this table with the address and the root-certificates of the "
            'SuperLink, such as address = "fl.example.org:8000" and root-certificates = "/home/me/ca.crt", or name '
            "another one with --connection",
        )


def register(keys: Mapping[int, Path], roster: Roster, connection: str) -> list[str]:
    """Let the nodes with these public keys connect as these clients; returns a line for each change.

    The SuperLink refuses a client's earlier keys from now on. A key of another client is taken from that client.

    Args:
        keys: client -> file of its public key.
        connection: name of the SuperLink in the configuration of `flwr`.

    Raises:
        BadInput: a file is not a public key, two clients would have the same one, or the SuperLink refuses one.
    """
    fingerprints = {client: fingerprint(path) for client, path in keys.items()}
    if len({*fingerprints.values()}) < len(fingerprints):
        raise BadInput("register", "two clients have the same key; make one on each node")
    refusals, registered = [], {}
    with roster.edit() as rows:
        before = dict(rows)
        by_key = {entry.key: entry for entry in rows.values()}
        answers = run_flwr([["supernode", "register", str(path.resolve()), connection] for path in keys.values()])
        for (client, path), answer in zip(keys.items(), answers, strict=True):
            key = fingerprints[client]
            if answer.get("success") or key in by_key:
                node = int(answer["node-id"]) if answer.get("success") else by_key[key].node
                registered[client] = RosterEntry(client, key, node)
            else:
                refusals.append(f"{path}: {_reason(answer)}")
        assigned = {entry.key for entry in registered.values()}
        lost = [client for client, entry in before.items() if client not in registered and entry.key in assigned]
        for client in lost:
            del rows[client]
        rows |= registered
        replaced = [before[client] for client in registered if client in before and before[client].key not in assigned]
    lines = [f"client {client}: has no key any more" for client in lost]
    lines += [f"client {client}: {keys[client]} {entry.key}" for client, entry in registered.items()]
    lines += _remove(replaced, connection)
    if refusals:
        raise BadInput(f"the SuperLink refuses {'; '.join(refusals)}")
    return lines


def unregister(client: int, roster: Roster, connection: str) -> list[str]:
    """Refuse the key of `client` from now on."""
    with roster.edit() as rows:
        if client not in rows:
            present = ", ".join(map(str, sorted(rows))) or "none"
            raise BadInput("client", f"{client} has no key in {roster.path}; clients with a key: {present}")
        entry = rows.pop(client)
    return _remove([entry], connection)


def _remove(entries: Sequence[RosterEntry], connection: str) -> list[str]:
    """Remove nodes from the SuperLink. An unknown one is not an error, because the roster decides."""
    if entries:
        run_flwr([["supernode", "unregister", str(entry.node), connection] for entry in entries])
    return [f"client {entry.client}: {entry.key} is refused from now on" for entry in entries]


def _reason(answer: Mapping[str, Any]) -> str:
    reason = find_reason(str(answer.get("error-message", "no answer")))
    remedy = "; it takes no key twice: make another one" if "in use" in reason else ""
    return re.sub(r"^\[code: \d+\] |\.$", "", reason) + remedy


def run_flwr(commands: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """The JSON answers of commands of `flwr`. Commands that it did not reach have failed, with its last line as reason.

    Raises:
        BadInput: `flwr` could not be run.
    """
    result = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps([*map(list, commands)])], capture_output=True, text=True, check=False
    )
    texts = result.stdout.split("\x1e")[:-1]
    reason = find_reason(result.stderr or result.stdout)
    if not texts:
        if "No module named 'flwr'" in reason:
            require_flower()
        raise BadInput(f"flwr {commands[0][0]}: {reason}")
    unanswered = {"success": False, "error-message": f"flwr ended before its answer ({reason}); register it again"}
    return [*map(_parse_answer, texts), *([unanswered] * (len(commands) - len(texts)))]


def _parse_answer(text: str) -> dict[str, Any]:
    """The JSON object at the end of an answer."""
    start = text.find("{")
    try:
        return dict(json.loads(text[start:]))
    except ValueError:
        return {"success": False, "error-message": text}
