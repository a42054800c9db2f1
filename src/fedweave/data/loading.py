"""Reading a data set by its name."""

import traceback
import zipfile
from pathlib import Path

from fedweave.data.base import Dataset
from fedweave.data.facts import check_content
from fedweave.data.registry import DATASETS, KINDS, Loader
from fedweave.data.sources.retrieval import require_files
from fedweave.errors import BadInput, choose
from fedweave.registry import users_file

OF_FILES = (OSError, EOFError, zipfile.BadZipFile)  # what a file that is missing or damaged raises


def load(name: str, root: Path | str) -> Dataset:
    """Read the data set `name` of DATASETS from its files below `root`, which are checked first.

    Raises:
        BadInput: an unknown name, a missing or damaged file, or content that is not the data set.
    """
    loader = DATASETS[choose(name, DATASETS, "dataset")]
    require_files(name, Path(root))
    try:
        loaded = loader(Path(root))
        if not isinstance(loaded, Dataset):
            raise BadInput(
                f"dataset {name}: its loader returned a {type(loaded).__name__}; return a fedweave.data.Dataset"
            )
        if loaded.kind != KINDS.get(name, loaded.kind):
            raise BadInput(
                f"dataset {name}: its loader returned {loaded.kind} and declares {KINDS[name]}; correct one of them"
            )
        return check_content(loaded)
    except BadInput:
        raise
    except Exception as error:  # a file that is not what its name says can raise nearly anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        place = _error_location(loader, error)
        if place:
            raise BadInput(f"dataset {name}: its loader failed in {place} ({reason}); correct it there") from error
        raise BadInput(
            f"dataset {name}: its files below {root} cannot be read ({reason}); run the download stage again"
        ) from error


def _error_location(loader: Loader, error: Exception) -> str:
    """File and line of a user's loader in which `error` arose; empty for our loaders, and for errors of files."""
    file = users_file(loader)
    if file is None or isinstance(error, OF_FILES):
        return ""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).resolve() == file]
    return f"{file}, line {frames[-1].lineno}" if frames else ""
