"""`fedweave init`: a project of the user, outside of a checkout of fedweave."""

import re
import shlex
import shutil
import subprocess
from collections.abc import Collection
from importlib import metadata
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedweave import __version__
from fedweave.errors import BadInput
from fedweave.files.atomic import write_atomic
from fedweave.study import plugins
from fedweave.study.code import PACKAGE
from fedweave.study.spec import STATE

from .. import signed_files, template
from .data_options import output_path

CHECKOUT_STAGE_COMMAND = "python -IS pipelines/launching/launcher.py"
STAGE_COMMAND = "python -m fedweave.pipelines.launching.launcher"
CHECKOUT_DEPENDENCY = "      - pipelines/stages/leaderboard.py\n"  # a dependency that only a checkout has
PACKAGES = "packages.yaml"  # the same on every machine, so that git can store it: DVC reads it from other commits too
SIGNATURE = "Written by `fedweave init`, which renews it as long as nobody changes it."
LINKS = STATE / "packages"  # folder of links to the packages on this machine
COPIED = ("prefect.yaml", ".env", "studies/base.yaml")
SIGNED = ("dvc.yaml", "prefect.yaml")  # `fedweave init` updates these unless the user has changed them; others stay

out = Console(markup=False, highlight=False)

FIRST_STUDY = """# Methods on handwritten digits: a study of about a minute. `fedweave study run first` runs it.
about: Three methods on handwritten digits.
seeds: [0, 1, 2]
# uses: [mybench/]   # your own methods, data sets, models and partitions; see README.md

tasks:
  digits:
    methods: [local, fedavg, ditto]
    train: {rounds: 10}

tune: {trials: 5, share: 0.5, sampler: rates}   # each method's learning rate; trials: 0 turns it off
"""
GITIGNORE = """# data, results and caches: reproducible by `dvc repro`, stored by DVC
/data/
/results/
/.fedweave/
/dvc_plots/
# records that can be rebuilt from results/
/mlflow.db*
/mlruns/
/mlartifacts/
/.prefect/
# made by `fedweave federate` and `python -m fedweave.deployment`: apps, rows of clients, secret keys
/app/
/app-data/
/client.pt
/federation/
/my-keys/
/server-keys/
/state/
/superlink.db
# of the commands on a life
.answers.lock
.deliveries.lock
.roles.lock
answers/
__pycache__/
*.py[co]
"""
README = """# A project of fedweave

    fedweave study run first     # writes params.yaml, trains what is missing, prints the leaderboard
    dvc repro                    # what params.yaml says, again; nothing runs where nothing changed
    fedweave flow                # the same, scheduled by Prefect
    fedweave ui                  # MLflow and Prefect in the browser
    dvc exp run --queue -C .fedweave/packages -S seeds=[0]    # an experiment in a copy, which needs fedweave's code too

A study is a file in `studies/`, or anywhere: `fedweave study run path/to/my.yaml`. A task changes one of
`studies/base.yaml`, or defines its data set, partition, model and training itself.

## Your own methods, data sets, models and partitions

Write them in a file such as `mybench/own.py` and name the folder in the study: `uses: [mybench/]`.

    import numpy as np
    import fedweave as fw
    from fedweave.data import Dataset

    @fw.dataset("blobs")
    def blobs(root):
        \"\"\"Two classes of small images.\"\"\"
        g = np.random.default_rng(0)
        y = np.arange(600) % 2
        x = (y[:, None, None, None] + g.normal(size=(600, 1, 4, 4))).astype(np.float32)
        return Dataset("blobs", "images", x, y.astype(np.int64), classes=2)

`@fw.method`, `@fw.model` and `@fw.partition` work in the same way. A run is trained again when the code behind it
changes. A comment or another text of an error message changes nothing.

## On another machine

Clone this folder, install the versions of `requirements.txt`, and run `fedweave init .` in it: it links to where
fedweave lies there, and changes none of your files.
"""


def init(
    folder: Annotated[
        Path,
        typer.Argument(
            parser=output_path, help="a new folder, or the folder of a project, which gets its missing files"
        ),
    ],
) -> None:
    """Make FOLDER a project of your own: studies, plug-ins, results, with DVC, Prefect and MLflow."""
    if folder.is_file():
        raise BadInput(f"{folder}: is a file; name a folder")
    if (folder / "pyproject.toml").is_file() and (folder / "src" / "fedweave").is_dir():
        raise BadInput(f"{folder}: is a checkout of fedweave, which is a project already; name another folder")
    for name, text in contents().items():
        _complete(folder / name, text, renew=name in SIGNED)
    write_packages(folder)
    _init_dvc(folder, _init_git(folder))
    if not (folder / "params.yaml").exists():
        _write_first_params(folder)
    change = "" if folder.samefile(Path.cwd()) else f"cd {shlex.quote(str(folder))} && "
    out.print(f"{folder}: a project of fedweave; next: {change}fedweave study run first", soft_wrap=True)


def _complete(file: Path, text: str, renew: bool) -> None:
    """Write `file` if it is missing; with `renew`, also if the user has not changed it since `fedweave init`."""
    current = file.read_text(encoding="utf-8") if file.exists() else None
    if current is None or (renew and (signed_files.is_unchanged(current) or text.endswith(f"\n{current}"))):
        write_atomic(file, text)
    elif renew and current != text:
        out.print(
            f"{file}: has changes of your own and stays; move it away to get that of this fedweave", soft_wrap=True
        )


def is_separate() -> bool:
    """Whether the current folder is a project outside of a checkout."""
    stages = Path("dvc.yaml")
    return stages.is_file() and STAGE_COMMAND in stages.read_text(encoding="utf-8")


def write_packages(folder: Path = Path(), uses: Collection[str] = ()) -> None:
    """Write packages.yaml, and links to the packages on this machine: fedweave and the packages with plug-ins.

    DVC's stages depend on their code.

    Args:
        uses: plug-ins that params.yaml names itself; they are left out.
    """
    packages = {"fedweave": PACKAGE, **plugins.find_installed()}
    names = [name for name in packages if name not in uses]
    for name in names:
        _link(folder / LINKS / name, Path(packages[name]))
    text, file = "uses:\n" + "".join(f"  {name}: {LINKS / name}\n" for name in names), folder / PACKAGES
    if not file.is_file() or file.read_text(encoding="utf-8") != text:
        write_atomic(file, text)


def _link(link: Path, target: Path) -> None:
    """Make `link` a link to `target`, whatever it was before."""
    if not link.is_symlink() or link.readlink() != target:
        link.parent.mkdir(parents=True, exist_ok=True)
        link.unlink(missing_ok=True)
        link.symlink_to(target)


def contents() -> dict[str, str]:
    """Name -> text of the files of a new project, without params.yaml."""
    texts = {name: template(name).read_text(encoding="utf-8") for name in COPIED}
    stages = template("dvc.yaml").read_text(encoding="utf-8")
    stages = stages.replace(CHECKOUT_STAGE_COMMAND, STAGE_COMMAND).replace(CHECKOUT_DEPENDENCY, "")
    package_vars = f"vars:\n  - {PACKAGES}  # fedweave and packages with plug-ins; `fedweave init .` writes it\n"
    stages = re.sub(r"vars:\n.*\n", package_vars, stages)
    signed = {
        name: signed_files.sign(SIGNATURE, text)
        for name, text in {**texts, "dvc.yaml": stages}.items()
        if name in SIGNED
    }
    texts["requirements.txt"] = pin_requirements()
    return {
        **texts,
        **signed,
        "README.md": README,
        ".gitignore": GITIGNORE,
        "studies/first.yaml": FIRST_STUDY,
        ".dvcignore": "__pycache__\n*.py[co]\n.venv\n.prefect\n.git\nmlruns\n",
    }


def pin_requirements() -> str:
    """The text of requirements.txt: the versions that are installed here of fedweave and of what it needs."""
    try:
        needed = metadata.requires("fedweave") or []
    except metadata.PackageNotFoundError:  # a folder on the path that nobody installed
        needed = []
    extras = ("extra == 'pipeline'", "extra == 'datasets'")
    lines = [line for line in needed if "extra ==" not in line or line.replace('"', "'").endswith(extras)]
    versions = {name: _installed_version(name) for name in (re.split(r"[\s<>=!~;\[]", line)[0] for line in lines)}
    pins = sorted(f"{name}=={version}\n" for name, version in versions.items() if version and name != "fedweave")
    header = "# Written by `fedweave init`: the versions with which this project was made.\n"
    return f"{header}fedweave=={__version__}\n{''.join(pins)}"


def _installed_version(name: str) -> str:
    """The version of a package, without its build ("+cpu"); empty if it is not installed."""
    try:
        return metadata.version(name).partition("+")[0]
    except metadata.PackageNotFoundError:
        return ""


def _init_git(folder: Path) -> bool:
    """Make the folder a repository of git, unless it is inside of one; False if git is not installed.

    DVC compares with commits of git, and needs git for experiments.
    """
    if any((parent / ".git").exists() for parent in (folder.resolve(), *folder.resolve().parents)):
        return True
    git = shutil.which("git")
    return git is not None and subprocess.run([git, "init", "--quiet", str(folder)], check=False).returncode == 0


def _init_dvc(folder: Path, in_git: bool) -> None:
    """Make the folder a repository of DVC that sends no statistics; of its own if it is inside of git's repository."""
    from dvc.repo import Repo

    if not (folder / ".dvc" / "config").is_file():
        Repo.init(str(folder), no_scm=not in_git, force=True, subdir=in_git and not (folder / ".git").exists()).close()
        with Repo(str(folder)) as repo, repo.config.edit() as config:
            config["core"] |= {"analytics": False, "check_update": False}


def _write_first_params(folder: Path) -> None:
    """Write params.yaml of the first study, as `fedweave study use first` does."""
    from fedweave.study.catalogue import expand

    from .params_file import dump

    write_atomic(folder / "params.yaml", dump(expand("first", folder / "studies")))
