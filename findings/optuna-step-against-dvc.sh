#!/bin/sh
# Optuna 5.0.0 with DVC 3.67.1: a grid with steps of 0.1 has no 0.3, so that a finished training runs again.
#
# Guess: `suggest_float("share", 0, 1, step=0.1)` gives 0.0, 0.1, ... 1.0: with a step the values are a set, and the
# default for `high` is corrected in decimal numbers.
# What happens: the value is low + k x step in binary numbers, so that 0.3, 0.6 and 0.7 are 0.30000000000000004 and so
# on. Written into params.yaml it is another value than the 0.3 that a person wrote: DVC does not find the finished
# stage and trains again, and a filter by the text of a parameter (as in MLflow) misses these trials.
# Output seen: "suggested: 0.30000000000000004, DVC: changed, other values with 17 digits: 3".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" optuna==5.0.0 dvc==3.67.1
cd "$dir"
env/bin/python -W ignore - <<'END'
import os
import subprocess
import sys
from pathlib import Path

os.environ |= {"DVC_NO_ANALYTICS": "1", "DVC_GLOBAL_CONFIG_DIR": os.getcwd()}


def dvc(*words):
    command = [Path(sys.executable).with_name("dvc"), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout



import optuna

optuna.logging.set_verbosity(optuna.logging.ERROR)
study, values = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0)), set()
for _ in range(100):
    trial = study.ask()
    values.add(trial.suggest_float("share", 0, 1, step=0.1))
    study.tell(trial, 0.0)
near = next(value for value in values if abs(value - 0.3) < 1e-6)
dvc("init", "--no-scm")
Path("dvc.yaml").write_text("stages:\n  train:\n    cmd: echo train\n    params: [share]\n")
Path("params.yaml").write_text("share: 0.3\n")
dvc("repro")
Path("params.yaml").write_text(f"share: {near}\n")
state = "changed" if "modified" in dvc("status") else "up to date"
long = sum(len(str(value)) > 5 for value in values)
print(f"suggested: {near}, DVC: {state}, other values with 17 digits: {long}")
assert near != 0.3 and state == "changed" and len(values) == 11 and long == 3
END
