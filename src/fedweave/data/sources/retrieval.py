"""Getting the files of a data set: local files, then a mirror, then the official source. All of them are checked."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fedweave.data.registry import DATASETS
from fedweave.data.sources.origins import ANY, CATALOGUE, OWN, RECORDED, Archive, File, FileSet
from fedweave.data.sources.transfer import (
    Progress,
    SourceError,
    extract,
    fetch,
    fetch_published_digest,
    join,
    matches,
    read_digest,
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

    def sources(self, path: str, url: str | None, digest: str) -> list[str]:
        """Addresses of one file in the order in which they are tried; a file with OWN never comes from a mirror."""
        mirrored = [join(self.mirror, path)] if self.mirror and digest != OWN else []
        return mirrored + ([url] if self.official and url else [])


def download(
    name: str, root: Path | str, mirror: str | None = None, progress: Progress | None = None
) -> tuple[Path, ...]:
    """Bring the files of data set `name` below `root` and return their paths (none for packaged data).

    Intact files stay, damaged ones are replaced. `mirror` is a folder or an http(s) URL laid out as `root`, by
    default the environment variable FEDWEAVE_MIRROR. `progress(file, done, total)` is called
    during transfers, with the name of the file, the bytes so far and the bytes in all.

    Raises:
        BadInput: no source has the files; the message names the file, the sources that were tried, and the way out.
    """
    choose(name, {*DATASETS, *CATALOGUE}, "dataset")
    root, mirror = Path(root), mirror or os.environ.get(MIRROR) or None
    root.mkdir(parents=True, exist_ok=True)
    file_set = find_intact_files(name, root)
    if file_set is None:
        options = [DownloadOptions(root, mirror, official, progress) for official in (False, True)]
        file_set = _fetch_file_set(name, options)
    return tuple(root / file.path for file in file_set.files)


def find_intact_files(name: str, root: Path) -> FileSet | None:
    """The form of `name` that a loader will read, if its files are intact; an empty one for packaged data.

    Loaders read the first form whose files all exist, so an intact second form does not excuse a damaged first one.
    """
    file_sets = CATALOGUE.get(name) or (FileSet(()),)  # a data set of a plug-in finds its files itself
    present = [file_set for file_set in file_sets if all((root / file.path).is_file() for file in file_set.files)]
    candidates = [form for form in present if [f.path for f in form.files] == [f.path for f in present[0].files]]
    return next((file_set for file_set in candidates if all(is_intact(root, file) for file in file_set.files)), None)


def is_intact(root: Path, file: File) -> bool:
    """Whether `file` is below `root` with its listed digest, or with the one recorded next to it."""
    path = root / file.path
    if not path.is_file() or path.stat().st_size == 0:
        return False
    recorded = read_digest(sidecar(path)) or "sha256:"  # which no file has
    return file.digest == ANY or matches(path, recorded if file.digest in (RECORDED, OWN) else file.digest)


def require_files(name: str, root: Path) -> None:
    """Refuse to read a data set with a missing or damaged file."""
    if find_intact_files(name, root) is not None:
        return
    for file_set in CATALOGUE[name]:
        for file in file_set.files:
            path = root / file.path
            if path.exists() and not is_intact(root, file):
                advice = f"; if it is the original, run: sha256sum {path} > {sidecar(path)}"
                way = advice if file.digest in (RECORDED, OWN) else ""
                raise BadInput(f"{path}: damaged, or no known copy; run the download stage for {name}{way}")
    missing = next(file.path for file in CATALOGUE[name][0].files if not (root / file.path).exists())
    raise BadInput(f"{root / missing}: not found; run the download stage for {name}")


def _fetch_file_set(name: str, option_sets: list[DownloadOptions]) -> FileSet:
    """Fetch the first form of which all files can be fetched, with the first options for which there is one."""
    tried: list[str] = []
    for options in option_sets:
        for file_set in CATALOGUE[name]:
            try:
                for file in file_set.files:
                    _fetch_from_any_source(options, file_set, file)
                return file_set
            except SourceError as error:
                tried.append(str(error))
    # Later options repeat the sources of earlier ones; each source is reported once.
    reasons = [reason for i, reason in enumerate(tried) if not any(reason in later for later in tried[i + 1 :])]
    raise BadInput(_failure_message(name, option_sets[-1].root, reasons))


def _fetch_from_any_source(options: DownloadOptions, file_set: FileSet, file: File) -> None:
    """Fetch `file` from the first source that has it, alone or inside its archive."""
    if is_intact(options.root, file):
        return
    ways: list[Callable[[], None]] = [
        partial(_fetch_file, options, file, source) for source in options.sources(file.path, file.url, file.digest)
    ]
    if file.archive:
        sources = options.sources(file.archive.path, file.archive.url, file.archive.digest)
        ways += [partial(_fetch_archive, options, file_set, file.archive, source) for source in sources]
    failures: list[str] = []
    for way in ways:
        try:
            way()
            return
        except SourceError as error:
            failures.append(str(error))
    raise SourceError(", ".join(failures))


def _fetch_file(options: DownloadOptions, file: File, source: str) -> None:
    """Fetch one file. Without a known digest a mirror must publish one, and the official source is trusted."""
    target = options.root / file.path
    expected = None if file.digest in (RECORDED, OWN, ANY) else file.digest
    if file.digest == RECORDED and source != file.url:
        expected = fetch_published_digest(source, target)
    fetch(source, target, expected, options.progress)
    if file.digest in (RECORDED, OWN):
        record_digest(target)


def _fetch_archive(options: DownloadOptions, file_set: FileSet, archive: Archive, source: str) -> None:
    """Fetch `archive`, extract the files of `file_set`, and delete it."""
    path = options.root / archive.path
    fetch(source, path, archive.digest, options.progress)
    members = [file for file in file_set.files if file.archive == archive]
    extract(path, {file.member: options.root / file.path for file in members})
    for file in members:
        if file.digest in (RECORDED, OWN):
            record_digest(options.root / file.path)
        elif not matches(options.root / file.path, file.digest):
            raise SourceError(f"{source} (holds a damaged {file.member})")
    path.unlink()


def _failure_message(name: str, root: Path, tried: list[str]) -> str:
    """One line for the user: which file could not be fetched, what was tried, and the way out."""
    file_sets = CATALOGUE[name]
    missing = next(file.path for file in file_sets[0].files if not is_intact(root, file))
    state = "damaged" if (root / missing).exists() else "missing"
    attempts = "; ".join(dict.fromkeys(line for line in tried if line)) or "nothing, there is no address for it"
    hint = "".join(f"; {file_set.hint}" for file_set in file_sets if file_set.hint)
    way = f"set {MIRROR}=<folder or URL that holds {missing.split('/')[0]}/>, or put the files there yourself"
    return f"dataset {name}: {missing} is {state} below {root}; tried {attempts}; {way}{hint}"
