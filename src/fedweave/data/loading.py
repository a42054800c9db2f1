"""Reading a data set by its name."""

from pathlib import Path

from fedweave.data.base import Dataset
from fedweave.data.facts import check
from fedweave.data.registry import DATASETS, KINDS
from fedweave.data.sources.retrieval import require
from fedweave.errors import BadInput, choose


def load(name: str, root: Path | str) -> Dataset:
    """Read the data set `name` of DATASETS from its files below `root`, which are checked first.

    Raises:
        BadInput: an unknown name, a missing or damaged file, or content that is not the data set.
    """
    loader = DATASETS[choose(name, DATASETS, "dataset")]
    require(name, Path(root))
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
        return check(loaded)
    except BadInput:
        raise
    except Exception as error:  # a file that is not what its name says can raise nearly anything
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise BadInput(
            f"dataset {name}: its files below {root} cannot be read ({reason}); run the download stage again"
        ) from error
