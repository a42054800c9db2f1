"""Reading a data set by its name."""

import zipfile
from pathlib import Path

from fedweave.data.base import Dataset
from fedweave.data.facts import check_content
from fedweave.data.registry import DATASETS, KINDS
from fedweave.data.sources.retrieval import require_files
from fedweave.errors import BadInput, choose, describe_error
from fedweave.registry import error_line, users_file

FILE_ERRORS = (OSError, EOFError, zipfile.BadZipFile)  # raised for a file that is missing or damaged


def load(name: str, root: Path | str) -> Dataset:
    """Read the data set `name` of DATASETS from its files below `root`, which are checked first.

    Raises:
        BadInput: an unknown name, a missing or damaged file, or content that is not the data set.
    """
    loader = DATASETS[choose(name, DATASETS, "dataset")]
    require_files(name, Path(root))
    try:
        dataset = loader(Path(root))
        if not isinstance(dataset, Dataset):
            raise BadInput(
                f"dataset {name}: its loader returned an object of type {type(dataset).__name__}; "
                "return a fedweave.data.Dataset"
            )
        if dataset.kind != KINDS.get(name, dataset.kind):
            raise BadInput(
                f"dataset {name}: its loader returned {dataset.kind} and declares {KINDS[name]}; correct one of them"
            )
        return check_content(dataset)
    except BadInput:
        raise
    except Exception as error:  # a damaged or wrong file can raise nearly any exception
        reason = describe_error(error)
        line = error_line(loader, error)
        if line and not (isinstance(error, FILE_ERRORS) and _is_below(root, error)):
            place = f"{users_file(loader)}, line {line}"
            raise BadInput(f"dataset {name}: its loader failed in {place} ({reason}); correct it there") from error
        raise BadInput(
            f"dataset {name}: its files below {root} cannot be read ({reason}); run the download stage again"
        ) from error


def _is_below(root: Path | str, error: Exception) -> bool:
    """Whether `error` is of a file below `root`, or of a file that it does not name."""
    file = getattr(error, "filename", None)
    return not isinstance(file, str | Path) or Path(file).resolve().is_relative_to(Path(root).resolve())
