"""What the output of a stage that failed says of the reason, in one line."""

import re
import signal
from collections.abc import Sequence

REFUSED = re.compile(r"error: ")  # bad input and diverged training
RAISED = re.compile(r"[A-Za-z_][\w.]*(Error|Exception)\b")  # the last line of a traceback, whose other lines are code
OF_DVC = re.compile(r"ERROR: failed to reproduce .*exited with (-?\d+)$")
KILLED = "killed, as the system does where memory is short"


def find_reason(lines: Sequence[str], code: int) -> tuple[int, str]:
    """(exit code of the stage, line with the reason; empty if there is none).

    Args:
        lines: the last ones that the stage printed, without indents, and after them those of DVC, if DVC ran it.
        code: of the stage, or of DVC, which is the same for all failures.
    """
    codes = [int(match[1]) for line in lines if (match := OF_DVC.match(line))]
    code = codes[-1] if codes else code
    if code in (-signal.SIGKILL, 128 + signal.SIGKILL):
        return code, KILLED
    printed = [line for line in lines if not OF_DVC.match(line)]
    refused, raised = (list(filter(pattern.match, printed)) for pattern in (REFUSED, RAISED))
    others = [line for line in printed if "error" in line.lower()]
    return code, next(iter([*refused, *reversed(raised), *others]), "")
