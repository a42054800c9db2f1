"""Checks the package as users install it: `python -m tools.check_wheel [FOLDER]`.

Builds the wheel, installs it with the pinned versions of what it needs into an empty environment in FOLDER (default:
one that is removed at the end), and looks at it from there: `pip check`, one package at the top, what `import
fedweave` loads and how long it takes, the quick start, and the code of the guides.
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
REPEATS = 5  # of an import, of which the quickest counts


def build(folder: Path) -> Path:
    """The wheel, which holds one package and the files that it needs."""
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
    """The interpreter of a new environment that holds the wheel and what it needs."""
    begun = time.perf_counter()
    run([sys.executable, "-m", "venv", folder])
    python = folder / "bin" / "python"
    run([python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", wheel])
    run([python, "-m", "pip", "check"])
    print(f"installed in {time.perf_counter() - begun:.0f} s; pip check is clean")
    return python


def look(python: Path, folder: Path) -> None:
    """From an empty folder: imports, and the quick start."""
    folder.mkdir()
    seconds = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        run([python, "-c", IMPORT], folder, quiet=True)
        seconds.append(time.perf_counter() - begun)
    begun = time.perf_counter()
    run([python, "-c", PUBLIC], folder)
    print(f"fedweave.fit and fedweave.methods: {time.perf_counter() - begun:.2f} s, without {' and '.join(HEAVY[1:3])}")
    print(f"import fedweave: {min(seconds):.2f} s, the start of Python included; without {', '.join(HEAVY)}")
    begun = time.perf_counter()
    run([python, ROOT / "examples" / "quickstart.py"], folder, quiet=True)
    print(f"quickstart.py: {time.perf_counter() - begun:.0f} s")
    for page in GUIDES:
        place = folder / Path(page).stem
        place.mkdir()
        guides.follow(page, place, str(python), commands=False)
        print(f"{page}: its code runs")


def run(command: list[str | Path], folder: Path = ROOT, quiet: bool = False) -> None:
    """Run a command outside of this checkout's package; its output shows where it fails."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=quiet, text=True, check=False)
    if done.returncode:
        sys.exit(f"check_wheel: {' '.join(map(str, command))}: exit code {done.returncode}\n{done.stderr or ''}")


def main(folder: Path) -> None:
    """All of it."""
    python = install(build(folder), folder / "env")
    look(python, folder / "empty")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True)
        main(Path(sys.argv[1]).resolve())
    else:
        with tempfile.TemporaryDirectory(prefix="fedweave-wheel-") as temporary:
            main(Path(temporary))
