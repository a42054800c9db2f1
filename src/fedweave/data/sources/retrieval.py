"""Getting the files of a data set: what is there, then a mirror, then the official source; all checked."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedweave.data.registry import DATASETS
from fedweave.data.sources.origins import ANY, CATALOGUE, OWN, RECORDED, Archive, File, FileSet, size_limit
from fedweave.data.sources.transfer import (
    Progress,
    SourceError,
    extract,
    fetch,
    fetch_published_digest,
    join,
    matches,
    read_recorded_digest,
    record_digest,
    sidecar,
)
from fedweave.errors import BadInput, choose

MIRROR = "FEDWEAVE_MIRROR"


@dataclass(frozen=True)
class DownloadOptions:
    """Where to look for files, and where to put them."""

    root: Path
    mirror: str | None
    official: bool
    progress: Progress | None
    limit: int  # bytes of a file

    def sources(self, path: str, url: str | None, digest: str) -> list[str]:
        """Addresses of one file in the order in which they are tried; a mirror has no say in what is OWN."""
        mirrored = [join(self.mirror, path)] if self.mirror and digest != OWN else []
        return mirrored + ([url] if self.official and url else [])


def download(
    name: str, root: Path | str, mirror: str | None = None, progress: Progress | None = None
) -> tuple[Path, ...]:
    """Bring the files of data set `name` below `root` and return their paths (none for packaged data).

    Good files stay, damaged ones are replaced. `mirror` is a folder or an http(s) URL laid out as `root`, by
    default the environment variable FEDWEAVE_MIRROR. `progress(file, done, total)` is called on the way.

    Raises:
        BadInput: no source has the files; the line names the file, what was tried, and the way out.
    """
    choose(name, {*DATASETS, *CATALOGUE}, "dataset")
    root, mirror = Path(root), mirror or os.environ.get(MIRROR) or None
    root.mkdir(parents=True, exist_ok=True)
    form = find_intact_files(name, root)
    if form is None:
        form = _fetch_file_set(
            name, [DownloadOptions(root, mirror, official, progress, size_limit(name)) for official in (False, True)]
        )
    return tuple(root / file.path for file in form.files)


def find_intact_files(name: str, root: Path) -> FileSet | None:
    """The form of `name` that a loader will read, if its files are good; an empty one for packaged data.

    Loaders read the first form whose files are all there: a damaged one must not hide behind a good one.
    """
    forms = CATALOGUE.get(name) or (FileSet(()),)  # one of a plug-in brings its own files
    present = [form for form in forms if all((root / file.path).is_file() for file in form.files)]
    same = [form for form in present if _paths(form) == _paths(present[0])]
    return next((form for form in same if all(is_intact(root, file) for file in form.files)), None)


def _paths(form: FileSet) -> list[str]:
    return [file.path for file in form.files]


def is_intact(root: Path, file: File) -> bool:
    """Whether `file` is below `root` with its listed digest, or with the one recorded next to it."""
    path = root / file.path
    if not path.is_file() or path.stat().st_size == 0:
        return False
    return file.digest == ANY or matches(
        path, read_recorded_digest(path) if file.digest in (RECORDED, OWN) else file.digest
    )


def require_files(name: str, root: Path) -> None:
    """Refuse to read a data set whose files are not all there and good.

    Raises:
        BadInput: naming the file, and what to do.
    """
    if find_intact_files(name, root) is not None:
        return
    for form in CATALOGUE[name]:
        for file in form.files:
            path = root / file.path
            if path.exists() and not is_intact(root, file):
                own = f"; if it is the original, run: sha256sum {path} > {sidecar(path)}"
                way = own if file.digest in (RECORDED, OWN) else ""
                raise BadInput(f"{path}: damaged, or no known copy; run the download stage for {name}{way}")
    missing = next(file.path for file in CATALOGUE[name][0].files if not (root / file.path).exists())
    raise BadInput(f"{root / missing}: not there; run the download stage for {name}")


def _fetch_file_set(name: str, searches: list[DownloadOptions]) -> FileSet:
    """The first form of which some search finds every file."""
    tried: list[str] = []
    for search in searches:
        for form in CATALOGUE[name]:
            try:
                for file in form.files:
                    _fetch_from_any_source(search, form, file)
                return form
            except SourceError as error:
                tried.append(str(error))
    # A later search repeats the places of an earlier one; each is reported once.
    reasons = [reason for i, reason in enumerate(tried) if not any(reason in later for later in tried[i + 1 :])]
    raise BadInput(_failure_message(name, searches[-1].root, reasons))


def _fetch_from_any_source(search: DownloadOptions, form: FileSet, file: File) -> None:
    """Fetch `file` from the first source that has it, alone or inside its archive."""
    if is_intact(search.root, file):
        return
    ways: list[Callable[[], None]] = [
        partial(_fetch_file, search, file, source) for source in search.sources(file.path, file.url, file.digest)
    ]
    if file.archive:
        sources = search.sources(file.archive.path, file.archive.url, file.archive.digest)
        ways += [partial(_fetch_archive, search, form, file.archive, source) for source in sources]
    failed: list[str] = []
    for way in ways:
        try:
            way()
            return
        except SourceError as error:
            failed.append(str(error))
    raise SourceError(", ".join(failed))


def _fetch_file(search: DownloadOptions, file: File, source: str) -> None:
    """Fetch one file; without a published sum a mirror must have its own, the official source is believed."""
    target = search.root / file.path
    expected = None if file.digest in (RECORDED, OWN, ANY) else file.digest
    if file.digest == RECORDED and source != file.url:
        expected = fetch_published_digest(source, target)
    fetch(source, target, expected, search.progress, search.limit)
    if file.digest in (RECORDED, OWN):
        record_digest(target)


def _fetch_archive(search: DownloadOptions, form: FileSet, archive: Archive, source: str) -> None:
    """Fetch `archive`, take the files of `form` out of it, and drop it."""
    path = search.root / archive.path
    fetch(source, path, archive.digest, search.progress, search.limit)
    members = [file for file in form.files if file.archive == archive]
    extract(path, {file.member: search.root / file.path for file in members}, search.limit)
    for file in members:
        if file.digest in (RECORDED, OWN):
            record_digest(search.root / file.path)
        elif not matches(search.root / file.path, file.digest):
            raise SourceError(f"{source} (holds a damaged {file.member})")
    path.unlink()


def _failure_message(name: str, root: Path, tried: list[str]) -> str:
    """The one line a user reads when nothing worked."""
    forms = CATALOGUE[name]
    lacking = next(file.path for file in forms[0].files if not is_intact(root, file))
    state = "damaged" if (root / lacking).exists() else "missing"
    attempts = "; ".join(dict.fromkeys(line for line in tried if line)) or "nothing, there is no address for it"
    hint = "".join(f"; {form.hint}" for form in forms if form.hint)
    way = f"set {MIRROR}=<folder or URL that holds {lacking.split('/')[0]}/>, or put the files there yourself"
    return f"dataset {name}: {lacking} is {state} below {root}; tried {attempts}; {way}{hint}"
