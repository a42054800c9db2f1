#!/bin/sh
# MLflow 3.17.2: a loss of infinity comes back as the finite number 1.7976931348623157e+308.
#
# Guess: `log_metric("loss", float("inf"))` is refused, or the run has the value inf, as a run with NaN has NaN.
# What happens: the store of SQLite writes the largest finite number of float64 in its place, for every reader: the run,
# the history of the metric, `search_runs`. A diverged repetition is no longer found by `math.isinf` or by "not finite",
# as one with NaN is. It takes part in means and ranks, and two of them have the mean inf.
# Output seen: "logged inf, read 1.7976931348623157e+308, finite: True" and "logged nan, read nan, finite: False".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" mlflow-skinny==3.17.2 sqlalchemy==2.0.58 alembic==1.20.1 pandas==3.1.1
cd "$dir"
MLFLOW_DISABLE_TELEMETRY=true env/bin/python -W ignore - 2>/dev/null <<'END'
import math

import mlflow

mlflow.set_tracking_uri("sqlite:///store.db")
seen = {}
for value in (math.inf, math.nan):
    with mlflow.start_run() as run:
        mlflow.log_metric("loss", value)
    read = mlflow.get_run(run.info.run_id).data.metrics["loss"]
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "loss")[0].value
    assert history == read or math.isnan(history)
    seen[value] = read
    print(f"logged {value}, read {read}, finite: {math.isfinite(read)}")
assert seen[math.inf] == 1.7976931348623157e308 and math.isnan(seen[math.nan])
END
