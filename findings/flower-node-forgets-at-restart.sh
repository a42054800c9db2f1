#!/bin/sh
# Flower 1.41.0: a SuperNode's state lives as long as one run; restarted without a registered key, it is a new node.
#
# Guess: `context.state` of a ClientApp is what a client keeps between rounds and runs; the node is known by its id, so
# that a server can recognise a client that comes back.
# What happens: the state is kept between the messages of one run only: a second run on the same node begins with an
# empty one. After a restart the node has another id. A personalised model that a client keeps there is lost at the end
# of a run, and a server that stores models by node id sees a new client.
# Output seen: "counts 1 2, then 1 2, after a restart 1 2; node ids: same True, after a restart False".
set -eu
dir=$(mktemp -d)
pids=""
trap 'kill $pids 2>/dev/null; wait; rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" flwr==1.41.0
cd "$dir"
export HOME="$dir" FLWR_HOME="$dir/flwr" FLWR_TELEMETRY_ENABLED=0 PATH="$dir/env/bin:$PATH"
mkdir -p app/counter flwr
cat > app/pyproject.toml <<'END'
[project]
name = "counter"
version = "1.0.0"
description = "Counts the messages of a node"
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "nobody"

[tool.flwr.app.components]
serverapp = "counter.app:server"
clientapp = "counter.app:client"

[tool.flwr.app.config]
out = ""
END
touch app/counter/__init__.py
cat > app/counter/app.py <<'END'
import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

client = ClientApp()
server = ServerApp()


@client.query()
def count(message, context):
    calls = context.state.setdefault("calls", ConfigRecord({"n": 0}))
    calls["n"] += 1
    seen = ConfigRecord({"n": calls["n"], "node": str(context.node_id)})
    return Message(RecordDict({"seen": seen}), reply_to=message)


@server.main()
def main(grid, context):
    with open(context.run_config["out"], "a") as out:
        for _ in range(2):
            while not (nodes := list(grid.get_node_ids())):
                time.sleep(0.5)
            (reply,) = grid.send_and_receive([Message(RecordDict(), dst_node_id=nodes[-1], message_type="query")])
            print(reply.content["seen"]["node"], reply.content["seen"]["n"], file=out)
END
port=$(python -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
printf '[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:%s"\ninsecure = true\n' "$port" \
    > flwr/config.toml
flower-superlink --insecure --host 127.0.0.1 --port "$port" > link.log 2>&1 &
pids=$!

start_node() {
    flower-supernode --insecure --superlink "127.0.0.1:$port" --port $((port + 1)) > node.log 2>&1 &
    node=$!
    pids="$pids $node"
}

run() { # waits for the two lines of a run, or three minutes
    flwr run app here --run-config "out=\"$dir/$1\"" > /dev/null
    for _ in $(seq 180); do
        [ "$(grep -c . "$1" 2>/dev/null)" = 2 ] && return
        sleep 1
    done
}

sleep 10
start_node
run first
run second
kill "$node"
wait "$node" || true
sleep 5
start_node
run third
python - <<'END'
runs = [[line.split() for line in open(name)] for name in ("first", "second", "third")]
counts = [" ".join(count for _, count in run) for run in runs]
ids = [{node for node, _ in run} for run in runs]
print(f"counts {counts[0]}, then {counts[1]}, after a restart {counts[2]}; "
      f"node ids: same {ids[0] == ids[1]}, after a restart {ids[0] == ids[2]}")
assert counts == ["1 2"] * 3 and ids[0] == ids[1] != ids[2]
END
