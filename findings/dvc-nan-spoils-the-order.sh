#!/bin/sh
# DVC 3.67.1: in a table of experiments that is sorted by a metric, one NaN puts the others in a wrong order.
#
# Guess: `dvc exp show --sort-by loss` puts a diverged experiment first or last, as it does with one that has no loss,
# and the others stand from the least loss to the greatest.
# What happens: the values go to Python's `sorted` as they are, and NaN is neither less nor greater than a number. Each
# NaN may leave the rows around it unsorted, and no message says so: the best experiment can stand last, and another
# one where the winner is looked for. Which one depends on the order in which they ran, so that a repetition of the
# search names another. Tables for people and the CSV and Markdown for scripts are alike. (Needs git.)
# Output seen: "sorted by loss, with a diverged experiment: 0.3 nan 0.1; with one that has no loss: 0.1 0.3 -".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" dvc==3.67.1
cd "$dir"
env/bin/python -W ignore - <<'END'
import csv
import os
import subprocess
import sys
import time
from pathlib import Path

os.environ |= {"DVC_NO_ANALYTICS": "1", "DVC_GLOBAL_CONFIG_DIR": os.getcwd(), "GIT_CONFIG_GLOBAL": os.devnull}
TOOL = Path(sys.executable).with_name("dvc")


def call(folder, *words):
    return subprocess.run(words, cwd=folder, check=True, capture_output=True, text=True).stdout


def table(name, metrics):
    folder = Path(name)
    folder.mkdir()
    for words in ("init", "config user.name me", "config user.email me@example.org"):
        call(folder, "git", *words.split())
    call(folder, TOOL, "init")
    (folder / "dvc.yaml").write_text("metrics: [metrics.yaml]\n")
    (folder / "metrics.yaml").write_text("loss: 1.0\n")
    call(folder, "git", "add", ".")
    call(folder, "git", "commit", "-m", "start")
    for i, line in enumerate(metrics):
        (folder / "metrics.yaml").write_text(line + "\n")
        call(folder, TOOL, "exp", "save", "-n", f"e{i}")
        time.sleep(1)  # commits have times in whole seconds
    rows = csv.DictReader(call(folder, TOOL, "exp", "show", "--csv", "--sort-by", "loss").splitlines())
    return [row["loss"] or "-" for row in rows if row["Experiment"]]


diverged = table("diverged", ["loss: 0.1", "loss: .nan", "loss: 0.3"])
missing = table("missing", ["loss: 0.1", "accuracy: 0.5", "loss: 0.3"])
print("sorted by loss, with a diverged experiment:", *diverged, end="; with one that has no loss: ")
print(*missing)
assert diverged == ["0.3", "nan", "0.1"] and missing == ["0.1", "0.3", "-"]
END
