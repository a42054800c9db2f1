"""Set-up that several tests of data share."""

from collections.abc import Callable

import pytest

from fedweave.data.sources.origins import CATALOGUE, File, FileSet


@pytest.fixture
def enter(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Enters the data set "toy" of these files into the catalogue; there is no mirror, but those that tests name."""
    monkeypatch.delenv("FEDWEAVE_MIRROR", raising=False)

    def catalogue(*files: File) -> None:
        monkeypatch.setitem(CATALOGUE, "toy", (FileSet(files),))

    return catalogue
