"""Checks the package as users install it: `python -m tools.check_wheel`.

It builds the wheel and installs it with the pinned versions of its dependencies into an empty environment in a folder
that is removed at the end. There it checks the package: `pip check`, one package at the top, what
`import fedweave` loads and how long it takes, the quick start, and the code of the guides.
"""

import os
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from tools import guides

ROOT = Path(__file__).resolve().parent.parent
NEEDED = ("fedweave/py.typed", "fedweave/pipelines/commands/main.py", "fedweave/pipelines/project/dvc.yaml")
HEAVY = ("torch", "torch_geometric", "matplotlib", "pandas")
IMPORT = f"import sys, fedweave; found = {{*{HEAVY}}} & {{*sys.modules}}; assert not found, found"
PUBLIC = f"import sys, fedweave as fw; fw.fit; fw.methods.Ditto(); assert not {{*{HEAVY[1:3]}}} & {{*sys.modules}}"
GUIDES = ("README.md", "docs/own-data.md", "docs/add-method.md")
REPEATS = 5  # imports, the fastest of which counts


def build(folder: Path) -> Path:
    """Build the wheel, and check that it has one package and the files that it needs. Returns its path."""
    run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT])
    (wheel,) = folder.glob("fedweave-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    top = {name.split("/")[0] for name in names if ".dist-info/" not in name}
    assert top == {"fedweave"}, f"{wheel.name}: its top level is {sorted(top)}, and must be fedweave alone"
    missing = {*NEEDED} - {*names}
    assert not missing, f"{wheel.name}: lacks {', '.join(sorted(missing))}"
    print(f"{wheel.name}: {len(names)} files, {wheel.stat().st_size / 2**20:.1f} MiB, one package at the top")
    return wheel


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel and its dependencies into a new environment. Returns its interpreter."""
    start = time.perf_counter()
    run([sys.executable, "-m", "venv", folder])
    python = folder / "bin" / "python"
    run([python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel])
    run([python, "-m", "pip", "check"])
    print(f"installed in {time.perf_counter() - start:.0f} s; pip check is clean")
    return python


def check_install(python: Path, folder: Path) -> None:
    """Check imports, the quick start and the guides, from an empty folder."""
    folder.mkdir()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run([python, "-c", IMPORT], folder, quiet=True)
        seconds.append(time.perf_counter() - start)
    start = time.perf_counter()
    run([python, "-c", PUBLIC], folder)
    print(f"fedweave.fit and fedweave.methods: {time.perf_counter() - start:.2f} s, without {' and '.join(HEAVY[1:3])}")
    print(f"import fedweave: {min(seconds):.2f} s, the start of Python included; without {', '.join(HEAVY)}")
    start = time.perf_counter()
    run([python, ROOT / "examples" / "quickstart.py"], folder, quiet=True)
    print(f"quickstart.py: {time.perf_counter() - start:.0f} s")
    for page in GUIDES:
        subfolder = folder / Path(page).stem
        subfolder.mkdir()
        guides.follow(page, subfolder, str(python), commands=False)
        print(f"{page}: its code runs")


def run(command: list[str | Path], folder: Path = ROOT, quiet: bool = False) -> None:
    """Run a command without this checkout on the path. A failure ends this program with the command's errors."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.run(command, cwd=folder, env=env, capture_output=quiet, text=True, check=False)
    if process.returncode:
        sys.exit(f"check_wheel: {' '.join(map(str, command))}: exit code {process.returncode}\n{process.stderr or ''}")


def main(folder: Path) -> None:
    """Build, install and check the package."""
    python = install(build(folder), folder / "env")
    check_install(python, folder / "empty")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="fedweave-wheel-") as temporary:
        main(Path(temporary))
