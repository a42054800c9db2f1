#!/bin/sh
# pytest 9.2.0 with pytest-xdist 3.8.0: `--dist loadgroup` does not keep groups together any more.
#
# Guess: tests with the same `xdist_group` run in one process, one after the other; both packages install together and
# print no warning.
# What happens: pytest 9.2 keeps the name of a test where xdist's change of it has no effect, so that xdist sees no
# group. Tests that share a port, a server or a folder run at the same time and fail now and then; everything else
# passes. With pytest 9.1 groups hold.
# Output seen: "processes of one group: pytest 9.1.1: 1, pytest 9.2.0: 2".
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat > test_group.py <<'END'
import os
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("server")


@pytest.mark.parametrize("number", range(20))
def test_process(number):
    with Path(os.environ["SEEN"]).open("a") as file:
        file.write(os.environ["PYTEST_XDIST_WORKER"] + "\n")
END
count() {
    uv venv -q "env-$1"
    uv pip install -q --python "env-$1" "pytest==$1" pytest-xdist==3.8.0
    SEEN="$dir/seen-$1" "env-$1/bin/python" -m pytest -q -n 2 --dist loadgroup test_group.py > "log-$1"
    sort -u "seen-$1" | wc -l | tr -d ' '
}
old=$(count 9.1.1)
new=$(count 9.2.0)
echo "processes of one group: pytest 9.1.1: $old, pytest 9.2.0: $new"
test "$old" = 1
test "$new" = 2
