"""Stage `names`: names in params.yaml must be safe in a shell and in a path, and what it refers to must be there.

It runs before every other stage: DVC itself would only report that a file is missing.
"""

from collections.abc import Mapping
from typing import Any

from fedweave.files.atomic import write_atomic
from fedweave.graphs import setting
from fedweave.study.spec import PARAMS, check_names, read_yaml

from .. import paths
from ..processes import run_main


def main() -> None:
    """Write data/code/names.txt, which has the same content for every params.yaml.

    Raises:
        BadInput: a name is not safe, a graph cannot be read, or no paper prints a column.
    """
    content = read_yaml(PARAMS)
    check_names(content, str(PARAMS))
    if setting.stored_graphs(content) or _has_printed_columns(content.get("tasks")):
        from fedweave.results import published
        from fedweave.study import validate

        from . import graphs  # not at the top: they import torch, which takes time

        study = validate.load()
        graphs.check(study, str(PARAMS))
        published.check(study.tasks, str(PARAMS))
    write_atomic(paths.CODE / "names.txt", "checked\n")


def _has_printed_columns(tasks: Any) -> bool:
    """Whether a task names a column of a paper; `tasks` is not checked yet."""
    blocks = tasks.values() if isinstance(tasks, Mapping) else ()
    return any(isinstance(block, Mapping) and block.get("published") for block in blocks)


if __name__ == "__main__":
    run_main(main)
