"""Answers of `fedweave list` and `fedweave study show`, stored until a file changes that they come from.

They are worked out from the classes of methods and models themselves, which import PyTorch. That takes seconds.
"""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedweave.files import stored
from fedweave.study import plugins

from ..launching.freshness import project_files


def recall(question: Sequence[object], work_out: Callable[[], tuple[Any, Iterable[Path]]]) -> Any:
    """The answer to a question: the stored one, if no file has changed since, else that of `work_out`.

    Nothing is stored where plug-ins may have a part in it, and nothing is read in a process that has imported PyTorch.

    Args:
        question: words that say what is asked.
        work_out: gives the answer, as JSON can hold it, and the files and folders that it depends on besides fedweave's
            code and the installed packages; those that do not exist are among them.
    """
    if "torch" in sys.modules:
        return work_out()[0]
    words = [sys.version, sys.path, os.getcwd(), *question]  # noqa: PTH109  # as text
    name = f"answer-{sha256(repr(words).encode()).hexdigest()[:16]}"
    # An installation changes the folder that it writes to.
    code = stored.stamps([*map(Path, project_files()), *map(Path, sys.path)])
    facts = stored.read(name)
    if facts.get("code") == code and stored.stamps(map(Path, facts["files"])) == facts["files"]:
        return facts["answer"]
    answer, used = work_out()
    files = stored.stamps(used)
    if not plugins.find_installed() and not plugins.list_loaded() and [] not in (*code.values(), *files.values()):
        stored.write(name, {"code": code, "files": files, "answer": answer})
    return answer
