#!/bin/sh
# MLflow 3.17.2: runs in a copy of a project write their files into the original.
#
# Guess: with `sqlite:///mlflow.db`, a relative address, a folder with its database and its mlruns is complete: a copy
# works for itself.
# What happens: the experiment keeps the absolute path of its files from its first run. A run that is started in the
# copy is in the copy's database, and its files go into the original's folder, without a message. Set the experiment's
# location of files, or make a new experiment in the copy.
# Output seen: "file of the run in the copy: below the original".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" mlflow==3.17.2
cd "$dir"
env/bin/python -W ignore - <<'END'
import os
import shutil
from pathlib import Path

import mlflow


def run():
    mlflow.set_tracking_uri("sqlite:///mlflow.db")
    mlflow.set_experiment("study")
    with mlflow.start_run():
        mlflow.log_text("score", "scores.txt")


here = Path.cwd()
(here / "original").mkdir()
os.chdir(here / "original")
if os.fork() == 0:
    run()
    os._exit(0)
assert os.wait()[1] == 0
shutil.copytree(here / "original", here / "copy")
os.chdir(here / "copy")
run()
counts = [len(list((here / place).rglob("scores.txt"))) for place in ("original", "copy")]
print(f"file of the run in the copy: below {'the original' if counts == [2, 1] else 'the copy'}")
assert counts == [2, 1]
END
