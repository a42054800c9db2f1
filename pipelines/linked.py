"""Whether the package on which DVC's stages depend is the package that runs.

A project of `fedweave init` has a link to the package, and another environment may have another package.
"""

# ruff: noqa: PTH100, PTH110, PTH114, PTH120
# pathlib would take longer to import than all of this.

import os

import fedweave

LINK = ".fedweave/packages/fedweave"
PACKAGE = os.path.dirname(os.path.abspath(fedweave.__file__))


def difference() -> str:
    """What is wrong with the link, in one line; empty where it is right, and where its target is on another host."""
    if not os.path.islink(LINK) or not os.path.exists(LINK):
        return ""
    linked, running = os.path.realpath(LINK), os.path.realpath(PACKAGE)
    if linked == running:
        return ""
    return f"packages.yaml: fedweave is linked to {linked}, but this command runs {running}; run: fedweave init ."
