#!/bin/sh
# Prefect 3.9.1: a task or a flow that is given a generator finds it empty, so that its sum is 0 and its check passes.
#
# Guess: a decorated function gets the arguments of its call. Where Prefect cannot make a key of the cache from one, it
# says so and goes on without a key.
# What happens: the default policy of a task turns the arguments into JSON before the call, and this reads a generator,
# `map`, `zip`, `filter` or `csv.reader` to its end. The function then gets the same object, which has nothing left. No
# cache is in use and nothing is logged: the run is COMPLETED, a sum over clients is 0, and a gate `all(...)` is True.
# A flow does the same to its parameters. Lists are safe, and a task is with `cache_policy=NO_CACHE`. (The pinned
# versions of FastAPI and SQLAlchemy are those under which the server starts.)
# Output seen: "scores of 3 clients, passed: list (3, False), generator (0, True), zip (0, True), no cache (3, False),
# flow (0, True)".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" prefect==3.9.1 fastapi==0.150.0 sqlalchemy==2.0.58
cd "$dir"
export PREFECT_HOME="$dir/home" PREFECT_SERVER_ANALYTICS_ENABLED=false DO_NOT_TRACK=1 PREFECT_LOGGING_LEVEL=WARNING
export PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS=300
env/bin/python -W ignore - <<'END'
from prefect import flow, task
from prefect.cache_policies import NO_CACHE


def judge(scores):
    count, passed = 0, True
    for (score,) in scores:
        count, passed = count + 1, passed and score > 0.5
    return count, passed


gate, gate_without_cache, gate_flow = task(judge), task(judge, cache_policy=NO_CACHE), flow(judge)


def scores():
    return ((score,) for score in (0.9, 0.2, 0.8))


@flow
def study():
    return {"list": gate([*scores()]), "generator": gate(scores()), "zip": gate(zip([0.9, 0.2, 0.8])),
            "no cache": gate_without_cache(scores()), "flow": gate_flow(scores())}


found = study()
print("scores of 3 clients, passed:", ", ".join(f"{name} {answer}" for name, answer in found.items()))
assert found["list"] == found["no cache"] == (3, False)
assert found["generator"] == found["zip"] == found["flow"] == (0, True)
END
