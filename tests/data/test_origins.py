"""The list of files is consistent and has the sums of torchvision."""

import re
from pathlib import Path

from fedweave.data.sources.images import torchvision_datasets
from fedweave.data.sources.origins import ANY, CATALOGUE, OWN, RECORDED
from fedweave.data.sources.retrieval import DownloadOptions
from fedweave.data.sources.transfer import digest


def test_catalogue_is_consistent() -> None:
    for name, forms in CATALOGUE.items():
        for file in (file for form in forms for file in form.files):
            digest = file.digest
            assert digest in (RECORDED, OWN, ANY) or re.fullmatch(
                r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}|git:[0-9a-f]{40}", digest
            ), name
            assert not Path(file.path).is_absolute()
            assert ".." not in Path(file.path).parts
            assert (file.archive is None) == (file.member == "")
    assert len({file.path for form in CATALOGUE["cifar100"] for file in form.files}) == 3 + 121
    reader = torchvision_datasets()
    for folder, cls in (("cifar10", reader.CIFAR10), ("cifar100", reader.CIFAR100)):
        official = CATALOGUE[folder][0].files
        sums = {name: f"md5:{md5}" for name, md5 in [*cls.train_list, *cls.test_list]}
        assert {Path(file.path).name: file.digest for file in official if Path(file.path).name in sums} == sums
        assert official[0].archive.digest == f"md5:{cls.tgz_md5}"
    fashion = [file.archive for file in CATALOGUE["fashion-mnist"][0].files]
    assert {(a.path.rsplit("/", 1)[1], a.digest) for a in fashion} == {
        (name, f"md5:{md5}") for name, md5 in reader.FashionMNIST.resources
    }
    assert {file.archive.digest for file in CATALOGUE["emnist"][0].files} == {f"md5:{reader.EMNIST.md5}"}


def test_a_mirror_is_trusted_only_if_no_digest_is_known() -> None:
    trusted = {
        name
        for name, forms in CATALOGUE.items()
        if any(file.digest == RECORDED for form in forms for file in form.files)
    }
    assert trusted == {"pems-bay"}
    for name in ("amazon-computer", "amazon-photo"):
        assert {file.digest.split(":")[0] for form in CATALOGUE[name] for file in form.files} == {"sha256", "git"}
    search = DownloadOptions(Path("root"), "mirror", True, None)
    assert search.sources("a/b", "https://official/b", OWN) == ["https://official/b"]
    assert search.sources("a/b", "https://official/b", RECORDED) == [str(Path("mirror/a/b")), "https://official/b"]


def test_the_name_of_a_file_in_a_git_repository(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"test content\n")
    assert digest(tmp_path / "file", "git") == "git:d670460b4b4aece5915caf5c68d12f560a9fe3e4"
