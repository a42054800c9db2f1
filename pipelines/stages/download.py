"""Stage `download`: the files of a data set, and its arrays in the common form of all data sets."""

from fedweave import data
from fedweave.errors import format_count

from .. import paths, project
from ..processes import run_main


def main(name: str) -> None:
    """Download the files of data set `name` and write data/features/<name>."""
    project.load_plugins()  # a plug-in may define the data set
    data.download(name, paths.RAW, progress=DownloadProgress().show)
    dataset = data.load(name, paths.RAW)
    data.save_dataset(paths.FEATURES / name, dataset)
    print(" ".join([f"{name}: {describe(dataset)}.", dataset.note]).rstrip())


def describe(dataset: data.Dataset) -> str:
    """The kind and the size of a data set; rows of a table are stored as images of one pixel."""
    if dataset.kind == "images" and dataset.x.shape[2:] == (1, 1):
        return f"{format_count(len(dataset.x), 'row')} of {format_count(dataset.x.shape[1], 'value')}"
    return f"{dataset.kind}, features {' x '.join(map(str, dataset.x.shape))}"


class DownloadProgress:
    """Progress for a log: a line for each tenth of a file."""

    def __init__(self) -> None:
        self.shown: dict[str, int] = {}

    def show(self, file: str, done: int, total: int | None) -> None:
        """Print `done` of `total` bytes if another tenth is complete."""
        step = 10 * done // total if total else done // 2**24
        if self.shown.get(file) != step:
            self.shown[file] = step
            print(f"{file}: {done / 2**20:.1f} MiB" + (f" of {total / 2**20:.1f}" if total else ""), flush=True)


if __name__ == "__main__":
    run_main(main)
