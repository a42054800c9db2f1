"""Stage `names`: the names in params.yaml are safe in a shell and in a path, and its graphs can be read.

It runs before every other stage: DVC itself would say of a missing file only that there is none.
"""

from fedweave.federation import graph_settings
from fedweave.files import write_atomic
from fedweave.pipelines import paths
from fedweave.pipelines.processes import run_main
from fedweave.study.spec import PARAMS, check_names, read_yaml


def main() -> None:
    """Write data/code/names.txt, which has the same content for every params.yaml.

    Raises:
        BadInput: a name is not safe, or a graph cannot be read.
    """
    content = read_yaml(PARAMS)
    check_names(content, str(PARAMS))
    if graph_settings.stored_graphs(content):
        from fedweave.pipelines.stages import graphs  # not above: they load torch, which other studies need not here
        from fedweave.runs import assembly

        graphs.check(assembly.load(), str(PARAMS))
    write_atomic(paths.CODE / "names.txt", "checked\n")


if __name__ == "__main__":
    run_main(main)
