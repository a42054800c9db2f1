"""Stage `code`: digests of packages and plug-ins, which change with their code, but not with its comments."""

from pathlib import Path

from fedweave.files.atomic import write_table
from fedweave.study import plugins
from fedweave.study.code import PACKAGE, read_source

from .. import paths, project
from ..processes import run_main


def main() -> None:
    """Write data/code/packages/<name>.csv with (file, digest) for each package.

    The names are not arguments of the command, because a shell would interpret them.
    """
    packages = {package: str(source) for package, source in plugins.find_installed().items()}
    uses = {plugins.OWN: str(PACKAGE), **packages, **project.plugin_paths()}
    for name, path in uses.items():
        source = Path(path).resolve()
        files = [source] if source.is_file() else sorted(file for file in source.rglob("*") if _is_source(file))
        rows = ((str(file.relative_to(source.parent)), read_source(file).digest) for file in files)
        write_table(paths.CODE / "packages" / f"{name}.csv", ("file", "digest"), rows)


def _is_source(file: Path) -> bool:
    """Whether results depend on `file` of a package: they depend neither on bytecode nor on fedweave's own stages."""
    is_bytecode = file.parent.name == "__pycache__" or file.suffix in (".pyc", ".pyo")
    return file.is_file() and not is_bytecode and not file.is_relative_to(PACKAGE.resolve() / "pipelines")


if __name__ == "__main__":
    run_main(main)
