"""Whether the package on which the stages of DVC depend is the one that runs: in a project of `fedweave init` a link
leads to it, and another environment has another.
"""

# ruff: noqa: PTH100, PTH110, PTH114, PTH120
# pathlib would take longer to import than all of this.

import os

LINK = ".fedweave/packages/fedweave"
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def difference() -> str:
    """What is wrong with the link, in one line; empty where nothing is, or where it leads to another host's folder."""
    if not os.path.islink(LINK) or not os.path.exists(LINK):
        return ""
    linked, running = os.path.realpath(LINK), os.path.realpath(PACKAGE)
    if linked == running:
        return ""
    return f"packages.yaml: fedweave is linked to {linked}, but this command runs {running}; run: fedweave init ."
