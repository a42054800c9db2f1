#!/bin/sh
# Prefect 3.8.8 under SQLAlchemy 2.1.9 and under FastAPI 0.165.0: it allows both, and its server does no work.
#
# Guess: a version that the package's own bounds allow (`pip check` is content) works, or the server fails at its start
# with a message. If the server is healthy, deployments get their runs.
# What happens: under FastAPI 0.165 the server does not start. Under SQLAlchemy 2.1 it starts, its address /api/health
# says true, and it stores flows and deployments with their schedules. But its scheduler fails again and again, as one
# bulk insert is refused, so that no deployment gets a run. The error is in the log of the server only. A new
# environment without bounds of its own gets both versions.
# Output seen (the server is started three times, which takes a minute or more):
# "FastAPI 0.150.0, SQLAlchemy 2.0.58: compatible, healthy, scheduled runs",
# "FastAPI 0.150.0, SQLAlchemy 2.1.9: compatible, healthy, no run, bulk DML refused",
# "FastAPI 0.165.0, SQLAlchemy 2.0.58: compatible, does not start".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat > serve.py <<'END'
import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

settings = {"PREFECT_HOME": os.getcwd() + "/" + sys.argv[1], "PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false", "DO_NOT_TRACK": "1"}
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    port = str(free.getsockname()[1])
command = [sys.executable, "-m", "uvicorn", "--factory", "prefect.server.api.server:create_app", "--port", port]
log = open(sys.argv[1] + ".log", "w")
server = subprocess.Popen(command, env=os.environ | settings, stdout=log, stderr=log)
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def call(path, content=None):
    data = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/{path}", data, {"Content-Type": "application/json"})
    return json.load(direct.open(request, timeout=60))


def healthy():
    end = time.monotonic() + 300
    while time.monotonic() < end and server.poll() is None:
        try:
            return call("health")
        except urllib.error.URLError:
            time.sleep(0.5)
    return False


def runs():
    flow = call("flows/", {"name": "train"})
    hourly = {"schedule": {"interval": 3600, "anchor_date": "2026-01-01T00:00:00Z"}, "active": True}
    call("deployments/", {"name": "hourly", "flow_id": flow["id"], "schedules": [hourly]})
    end = time.monotonic() + 300
    while time.monotonic() < end:
        if call("flow_runs/count", {}):
            return "scheduled runs"
        with open(sys.argv[1] + ".log") as lines:
            if lines.read().count("Can't evaluate bulk DML statement") >= 2:
                return "no run, bulk DML refused"
        time.sleep(0.5)
    return "no run"


try:
    print(f"healthy, {runs()}" if healthy() else "does not start" if server.poll() else "does not answer")
finally:
    server.terminate()
    server.wait(60)
END
try() {
    uv venv -q "$1"
    uv pip install -q --python "$1" prefect==3.8.8 "fastapi==$2" "sqlalchemy==$3"
    uv pip check -q --python "$1" && state="compatible, $("$1/bin/python" -W ignore serve.py "$1-home")"
    echo "FastAPI $2, SQLAlchemy $3: $state"
}
try old 0.150.0 2.0.58 | tee seen
try database 0.150.0 2.1.9 | tee -a seen
try api 0.165.0 2.0.58 | tee -a seen
cat > expected << 'END'
FastAPI 0.150.0, SQLAlchemy 2.0.58: compatible, healthy, scheduled runs
FastAPI 0.150.0, SQLAlchemy 2.1.9: compatible, healthy, no run, bulk DML refused
FastAPI 0.165.0, SQLAlchemy 2.0.58: compatible, does not start
END
cmp expected seen
