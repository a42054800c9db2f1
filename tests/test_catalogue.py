"""The list of files agrees with itself and with the sums that torchvision knows."""

import re
from pathlib import Path

from fedweave.data.catalogue import ANY, CATALOGUE, RECORDED
from fedweave.data.images import torchvision_datasets


def test_catalogue_is_consistent() -> None:
    for name, forms in CATALOGUE.items():
        for file in (file for form in forms for file in form.files):
            digest = file.digest
            assert digest in (RECORDED, ANY) or re.fullmatch(r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", digest), name
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
    assert {(a.path.rsplit("/", 1)[1], a.digest) for a in fashion} == {(name, f"md5:{md5}") for name, md5 in reader.FashionMNIST.resources}
    assert {file.archive.digest for file in CATALOGUE["emnist"][0].files} == {f"md5:{reader.EMNIST.md5}"}
