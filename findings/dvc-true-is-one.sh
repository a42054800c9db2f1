#!/bin/sh
# DVC 3.67.1: a parameter that changes from true to 1, or from 0 to false, is no change.
#
# Guess: DVC compares what stands in params.yaml with what stands in dvc.lock, and runs the stage again. It does so
# for 1 and "1".
# What happens: it compares values of Python, where `True == 1 == 1.0` and `False == 0`. Where 1 means something else
# than true (`patience: true` for the default, 1 for one round; `limit: 0` against `false`), results of the old
# setting stay and `dvc status` says that they are up to date. Inside lists it is the same.
# Output seen: "true -> 1: up to date, 0 -> false: up to date, '1' -> 1: changed".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
uv venv -q "$dir/env"
uv pip install -q --python "$dir/env" dvc==3.67.1
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



def state(before, after):
    Path("params.yaml").write_text(f"patience: {before}\n")
    dvc("repro", "--force")
    Path("params.yaml").write_text(f"patience: {after}\n")
    return "changed" if "modified" in dvc("status") else "up to date"


dvc("init", "--no-scm")
Path("dvc.yaml").write_text("stages:\n  train:\n    cmd: echo train\n    params: [patience]\n")
found = [state("true", "1"), state("0", "false"), state("'1'", "1")]
print(f"true -> 1: {found[0]}, 0 -> false: {found[1]}, '1' -> 1: {found[2]}")
assert found == ["up to date", "up to date", "changed"]
END
