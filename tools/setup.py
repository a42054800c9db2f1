"""Makes a virtual environment: `python tools/setup.py .venv [--torch cpu] [--extras NAMES --constraints FILE]`.

It needs the standard library only, because nothing is installed yet. uv is several times faster than pip, but does not
read pip's configuration: an index or a folder of wheels in that configuration is passed to uv. If uv fails, pip
installs the same packages.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

OLDEST, TOO_NEW = (3, 11, 5), (3, 15)
PARTS = {"bin", "include", "lib", "lib64", ".gitignore"}  # files that venv makes before it writes pyvenv.cfg
PIP_TO_UV = {"find-links": "--find-links", "extra-index-url": "--extra-index-url", "index-url": "--index-url"}


def install_arguments(options: argparse.Namespace) -> list[str]:
    """The arguments of pip and uv for the packages to install."""
    return ["install", "--constraint", options.constraints, "--editable", f".[{options.extras}]"]


def pip_setting(python: Path, name: str) -> list[str]:
    """The values of one of pip's options, from the environment or its configuration files."""
    variable = os.environ.get("PIP_" + name.upper().replace("-", "_"))
    if variable is not None:
        return variable.split()
    command = [str(python), "-m", "pip", "config", "get", f"global.{name}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.split()


def install_with_uv(python: Path, arguments: list[str], torch: str) -> bool:
    """Install by uv, which pip installs first. False if either fails."""
    get_uv = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "uv>=0.9,<1"]
    if subprocess.run(get_uv, check=False).returncode:
        return False
    # pip searches every index and takes the newest version; with this strategy uv does the same.
    # Bytecode as pip writes it: without it, every process compiles its imports if PYTHONDONTWRITEBYTECODE is set.
    options = ["--python", str(python), "--index-strategy", "unsafe-best-match", "--compile-bytecode"]
    for name, flag in PIP_TO_UV.items():
        options += [part for value in pip_setting(python, name) for part in (flag, value)]
    if torch:
        options += ["--torch-backend", torch]
    certificate = pip_setting(python, "cert")
    # pip trusts the certificates of the system; the second name is for older releases of uv.
    environment = (
        {"UV_SYSTEM_CERTS": "1", "UV_NATIVE_TLS": "1"}
        | ({"SSL_CERT_FILE": certificate[0]} if certificate else {})
        | os.environ
    )
    command = [str(python.parent / "uv"), "pip", *arguments, *options]
    return subprocess.run(command, env=environment, check=False).returncode == 0


def parse_arguments() -> argparse.Namespace:
    """Parse the command line. Exits with one line if the project does not support this version of Python."""
    parser = argparse.ArgumentParser(description="Make the virtual environment of this project.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--extras", default="pipeline,datasets,natural,texts,dev", help="of the package, with commas")
    parser.add_argument("--constraints", default="constraints.txt", help="file of pinned versions")
    parser.add_argument("--torch", default="", help="PyTorch's build: cpu, cu130, auto")
    if not OLDEST <= sys.version_info < TOO_NEW:
        version = f"{sys.executable} is {sys.version.split()[0]}"
        sys.exit(f"setup: Python 3.11.5 to 3.14 is needed, {version}; name another with PYTHON=...")
    return parser.parse_args()


def remove_unfinished(folder: Path) -> None:
    """Remove an incomplete environment. Exits with one line if the folder has other content."""
    names = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
    if others := sorted(names - PARTS) if "pyvenv.cfg" not in names else []:
        sys.exit(f"setup: {folder} is not a virtual environment, as it has {others[0]}; name another folder (VENV=...)")
    shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    """Create the environment, install into it, and prepare the files of DVC and MLflow in this folder."""
    options = parse_arguments()
    tools = options.folder.resolve() / "bin"
    print(f"setting up {options.folder} with {sys.executable} (once)", flush=True)
    if not (tools / "python").exists():
        remove_unfinished(options.folder)
        subprocess.run([sys.executable, "-m", "venv", options.folder], check=True)
    if not install_with_uv(tools / "python", install_arguments(options), options.torch):
        print("uv could not install; trying pip", flush=True)
        subprocess.run([tools / "python", "-m", "pip", *install_arguments(options)], check=True)
    if "pipeline" in options.extras:
        prepare_records(tools)


def prepare_records(tools: Path) -> None:
    """Set up DVC where there is no repository of git, and MLflow's database."""
    if subprocess.run(["git", "rev-parse"], capture_output=True, check=False).returncode:
        subprocess.run([tools / "dvc", "config", "--local", "core.no_scm", "true"], check=True)
    # Without this, two first writers would migrate the database at the same time.
    upgrade = [str(tools / "mlflow"), "db", "upgrade", "sqlite:///mlflow.db"]
    subprocess.run(upgrade, capture_output=True, check=True)


if __name__ == "__main__":
    try:
        main()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"setup: {error}")
