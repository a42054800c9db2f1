"""The end of `make repro`: prints the leaderboard that the stage `report` left, without importing what made it."""

import os
import re
import sys
from pathlib import Path

from fedweave.pipelines import ROOT

STYLES = re.compile(r"\x1b\[[0-9;]*m")


def main() -> None:
    """Print results/<study>/leaderboard.txt of params.yaml's study; where it is not there, build the leaderboard."""
    name = re.search(r"^study: *['\"]?([^'\"\s#]+)", Path("params.yaml").read_text(encoding="utf-8"), re.M)
    file = Path("results", name[1], "leaderboard.txt") if name else Path()
    if not file.is_file():
        os.execv(sys.executable, [sys.executable, "-m", "fedweave.pipelines.stages.leaderboard"])
    text = file.read_text(encoding="utf-8")
    print(text if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else STYLES.sub("", text), end="")


if __name__ == "__main__":
    os.chdir(ROOT)
    main()
