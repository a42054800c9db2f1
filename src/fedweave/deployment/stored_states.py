"""States on disk, of the server and of a client on its node: one file for each version, written whole or not at all.

Version v is the state before round v. The server may go back to its last checkpoint, so versions of nodes since then
stay.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedweave.errors import BadInput
from fedweave.files.atomic import load_tensors, remove_temporary_files, save_tensors
from fedweave.tensors.trees import Tree

VERSION = 1
MODEL = "model.pt"


@dataclass(frozen=True)
class StoredStates:
    """The folder of a server, or of one client, in one federation.

    Attributes:
        folder: of the files.
        spec: hash of the specification that they belong to.
    """

    folder: Path
    spec: str

    def prepare(self) -> None:
        """Create the folder, and remove temporary files of killed processes."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        remove_temporary_files(self.folder)

    def save(self, version: int, state: Tree, kind: str = "state") -> None:
        """Write the `kind` of `version`."""
        header = {"version": VERSION, "spec": self.spec, "round": version}
        save_tensors(self.path(version, kind), {**header, "content": state})

    def load(self, version: int, kind: str = "state") -> Any:
        """The `kind` of exactly this version, or None.

        Raises:
            BadInput: the file is damaged, or of another federation.
        """
        path = self.path(version, kind)
        if not path.is_file():
            return None
        try:
            content = load_tensors(path)
            header = (content["version"], content["spec"], content.get("round", version))
        except Exception as error:  # a damaged file can raise nearly anything
            raise BadInput(path, f"not a readable state ({type(error).__name__}); delete it to continue") from error
        if header != (VERSION, self.spec, version):
            raise BadInput(path, f"is of (version, specification, round) {header}; give this one another folder")
        return content["content"]

    def load_newest(self, version: int) -> Any:
        """The newest readable state up to `version`, or None. States of later versions are removed.

        A damaged file is skipped, and the state before it is taken.
        """
        for stored in sorted(self.versions(), reverse=True):
            if stored > version:
                self.path(stored, "state").unlink()
                continue
            try:
                return self.load(stored)
            except BadInput:
                continue
        return None

    def remove_older(self, kind: str, before: int, keep: int = -1) -> None:
        """Remove files of `kind` from before version `before`, except for version `keep`.

        If there is no state of version `before`, the newest one from before it stays.
        """
        older = [stored for stored in sorted(self.versions(kind)) if stored < before and stored != keep]
        if kind == "state" and not any(stored == before for stored in self.versions(kind)):
            older = older[:-1]  # the state that version `before` continues from
        for stored in older:
            self.path(stored, kind).unlink(missing_ok=True)

    def versions(self, kind: str = "state") -> list[int]:
        """Versions of which there is a file."""
        return [int(path.stem.removeprefix(f"{kind}-")) for path in self.folder.glob(f"{kind}-*.pt")]

    def path(self, version: int, kind: str) -> Path:
        """The file of a version."""
        return self.folder / f"{kind}-{version:09d}.pt"
