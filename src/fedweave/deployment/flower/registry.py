"""Keys of nodes in the SuperLink, by the commands of `flwr`, and in the roster."""

import json
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fedweave.deployment.roster import Entry, Roster, fingerprint
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


def register(keys: Mapping[int, Path], roster: Roster, connection: str) -> list[str]:
    """Let the nodes with these public keys connect as these clients; returns a line for each change.

    Where a client had another key before, the SuperLink refuses that one from now on. A key that was another client's
    is this one's from now on.

    Args:
        keys: client -> file of its public key.
        connection: name of the SuperLink in the configuration of `flwr`.

    Raises:
        BadInput: a file is no public key, two clients would have the same one, or the SuperLink refuses one.
    """
    prints = {client: fingerprint(path) for client, path in keys.items()}
    if len({*prints.values()}) < len(prints):
        raise BadInput("register: two clients have the same key; make one on each node")
    refused, lines, old = [], [], []
    with roster.edit() as rows:
        before = {entry.key: entry for entry in rows.values()}
        answers = run_flwr([["supernode", "register", str(path.resolve()), connection] for path in keys.values()])
        for (client, path), answer in zip(keys.items(), answers, strict=True):
            key = prints[client]
            if not answer.get("success") and key not in before:
                refused.append(f"{path}: {_reason(answer)}")
                continue
            node = int(answer["node-id"]) if answer.get("success") else before[key].node
            if client in rows and rows[client].key != key:
                old.append(rows[client])
            if key in before and before[key].client != client:
                rows.pop(before[key].client, None)
                lines.append(f"client {before[key].client}: has no key any more")
            rows[client] = Entry(client, key, node)
            lines.append(f"client {client}: {path} {key}")
    lines += _remove(old, connection)
    if refused:
        raise BadInput(f"the SuperLink refuses {'; '.join(refused)}")
    return lines


def unregister(client: int, roster: Roster, connection: str) -> list[str]:
    """Refuse the key of `client` from now on.

    Raises:
        BadInput: the roster has no such client.
    """
    with roster.edit() as rows:
        if client not in rows:
            present = ", ".join(map(str, sorted(rows))) or "none"
            raise BadInput(f"client: {client} has no key in {roster.path}; clients with a key: {present}")
        entry = rows.pop(client)
    return _remove([entry], connection)


def _remove(entries: Sequence[Entry], connection: str) -> list[str]:
    """Remove nodes from the SuperLink; one that it does not know any more is no error, as the roster decides."""
    if entries:
        run_flwr([["supernode", "unregister", str(entry.node), connection] for entry in entries])
    return [f"client {entry.client}: {entry.key} is refused from now on" for entry in entries]


def _reason(answer: Mapping[str, Any]) -> str:
    words = str(answer.get("error-message", "no answer")).strip().splitlines()[-1:]
    again = "; it takes no key twice: make another one" if "in use" in str(words) else ""
    return re.sub(r"^\[code: \d+\] |\.$", "", " ".join(words)) + again


def run_flwr(commands: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    """What commands of `flwr` answer, in JSON; those that it did not come to have failed, with its last words.

    Raises:
        BadInput: `flwr` could not be run.
    """
    done = subprocess.run(
        [sys.executable, "-c", CODE, json.dumps([*map(list, commands)])], capture_output=True, text=True, check=False
    )
    texts = done.stdout.split("\x1e")[:-1]
    words = " ".join((done.stderr or done.stdout).strip().splitlines()[-1:])
    if not texts:
        raise BadInput(f"flwr {commands[0][0]}: {words}")
    lost = {"success": False, "error-message": f"flwr ended before its answer ({words}); register it again"}
    return [*map(_parse_answer, texts), *([lost] * (len(commands) - len(texts)))]


def _parse_answer(text: str) -> dict[str, Any]:
    """The JSON object at the end of an answer."""
    start = text.find("{")
    try:
        return dict(json.loads(text[start:]))
    except ValueError:
        return {"success": False, "error-message": text}
