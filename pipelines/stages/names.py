"""Stage `names`: the names in params.yaml are safe in a shell and in a path. It runs before every other stage."""

from fedweave.files import write_atomic
from fedweave.pipelines import paths
from fedweave.pipelines.processes import stage
from fedweave.study.spec import PARAMS, check_names, read_yaml


def main() -> None:
    """Write data/code/names.txt, which has the same content for every params.yaml.

    Raises:
        BadInput: a name is not safe.
    """
    check_names(read_yaml(PARAMS), str(PARAMS))
    write_atomic(paths.CODE / "names.txt", "checked\n")


if __name__ == "__main__":
    stage(main)
