"""Versions of a life in DVC: `dvc diff` and `dvc checkout` know its deliveries and its models."""

from pathlib import Path


def store(place: Path, marker: Path) -> None:
    """Add a folder to DVC, where it lies in a project, and say so; do nothing if nothing changed.

    A call that was killed before is made up for.

    Args:
        marker: the file that is written after all others that belong to a version.
    """
    place, pointer = place.resolve(), place.with_name(f"{place.name}.dvc")
    root = next((folder for folder in place.parents if (folder / ".dvc").is_dir()), None)
    if root is None or not place.is_dir() or not marker.is_file():
        return
    if pointer.is_file() and pointer.stat().st_mtime_ns >= marker.stat().st_mtime_ns:
        return
    from dvc.repo import Repo

    with Repo(str(root), _wait_for_lock=True) as repo:
        repo.scm_context.quiet = True  # no advice about git
        repo.add([str(place)])
    pointer.touch()  # DVC leaves the file as it is where nothing has changed
    print(f"DVC has this version: {pointer}")
