"""First names of 51 countries and regions, as letters and as pieces of words, and whether they are of women or men.

Source: J. Michael, `nam_dict.txt` 1.2 (2008; GNU Free Documentation License 1.2), inside gender-guesser 0.4.0 (GPL 3),
which is optional. The file is read where it is installed.
"""

import string
import unicodedata
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedweave.data.base import Dataset
from fedweave.data.registry import dataset
from fedweave.data.sources.packaged import packaged_files
from fedweave.data.sources.tables import build, spread

SEXES = {"F ": 0, "M ": 1}  # marks of names that only women or only men have
COUNTRIES = range(30, 84)  # columns of a line: how frequent the name is in a country, 1 to D, or a blank
LEAST, MOST = 80, 120  # names of a country: fewer are left out, more are thinned out through the alphabet
ANSWER: Mapping[str, Any] = {"classes": 2, "class_names": ("women", "men")}
PIECES = 6  # of a name; few names have more
BRANCHES = {  # branch of the language that most people of a country speak; a language without relatives stands alone
    "Albanian": ("Albania", "Kosovo"),
    "Armenian": ("Armenia",),
    "Baltic": ("Latvia", "Lithuania"),
    "Georgian": ("Georgia",),
    "Germanic": (
        *("Austria", "Belgium", "Denmark", "East Frisia", "Germany", "Great Britain", "Iceland", "Ireland", "Norway"),
        *("Sweden", "Swiss", "U.S.A.", "the Netherlands"),
    ),
    "Greek": ("Greece",),
    "Indo-Aryan": ("India/Sri Lanka",),
    "Japanese": ("Japan",),
    "Korean": ("Korea",),
    "Romance": ("France", "Italy", "Moldova", "Portugal", "Romania", "Spain"),
    "Semitic": ("Arabia/Persia", "Israel", "Malta"),
    "Slavic": (
        *("Belarus", "Bosnia and Herzegovina", "Bulgaria", "Croatia", "Czech Republic", "Macedonia", "Montenegro"),
        *("Poland", "Russia", "Serbia", "Slovakia", "Slovenia", "Ukraine"),
    ),
    "Turkic": ("Azerbaijan", "Kazakhstan/Uzbekistan,etc.", "Turkey"),
    "Uralic": ("Estonia", "Finland", "Hungary"),
}


@dataset("names", "images")
def names(root: Path) -> Dataset:
    """The letters of a first name [M, 105, 1, 1], and whether women or men have it; a client is a country.

    Features: the first letter and the last three, without accents, and the length. A name belongs to the country in
    which it is most frequent, so no two clients share one. `root` is not used.
    """
    del root
    (path,) = packaged_files("names")
    countries, y, texts = _read_rows(path)
    places = [[text[:1], *text[:-4:-1].ljust(3)] for text in texts]
    alphabet = np.array([*string.ascii_lowercase])
    features = (np.array(places)[:, :, None] == alphabet).reshape(len(texts), -1)
    columns = [features, [len(text) for text in texts]]
    return build("names", countries, columns, y=np.array(y), **ANSWER)


@dataset("names-pieces", "images")
def names_pieces(root: Path) -> Dataset:
    """Codes of the pieces of a first name [M, 6, 1, 1], and whether women or men have it; a client is a country.

    The names are those of `names`. A group is a branch of languages. `root` is not used.
    """
    from fedweave.models.word_vectors import encode_texts  # imports PyTorch

    del root
    path, tokenizer = packaged_files("names-pieces")
    countries, y, texts = _read_rows(path)
    codes = encode_texts([text.capitalize() for text in texts], PIECES, str(tokenizer))
    branch_of = {country: i for i, members in enumerate(BRANCHES.values()) for country in members}
    group = np.array([branch_of[country] for country in sorted({*countries})])
    groups: dict[str, Any] = {"group": group, "group_names": tuple(BRANCHES)}
    return build("names-pieces", countries, [codes], y=np.array(y), **groups, **ANSWER)


def _read_rows(path: Path) -> tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
    """Country, position of the sex and letters of every name of a client."""
    with path.open(encoding="utf-8") as lines:
        found = read_names(lines)
    kept = {country: [own[i] for i in spread(len(own), MOST)] for country, own in found.items() if len(own) >= LEAST}
    countries, y, texts = zip(*((country, *name) for country, own in kept.items() for name in own), strict=True)
    return countries, y, texts


def read_names(lines: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """(Position of the sex in `SEXES`, letters) of each name, by the country in which it is most frequent.

    Spellings with the same letters are one name. Lines that begin with # are comments; a bar in a comment stands in the
    column of the country that the line before it names.
    """
    country_of: dict[int, str] = {}
    best: dict[tuple[int, str], tuple[int, int]] = {}  # of each name: its largest frequency, and the column
    heading = ""
    for line in lines:
        if line.startswith("#"):
            if (at := line.find("|")) in COUNTRIES:
                country_of[at] = heading
            heading = line.strip("# $\n") or heading
        elif line[:2] in SEXES:
            name = SEXES[line[:2]], fold(line[2 : COUNTRIES[0]])
            frequencies = [(int(line[at].strip() or "0", 16), at) for at in COUNTRIES]
            best[name] = max([best.get(name, (0, 0)), *frequencies], key=lambda pair: pair[0])
    found: dict[str, list[tuple[int, str]]] = {}
    for name, (frequency, at) in best.items():
        if frequency:
            found.setdefault(country_of[at], []).append(name)
    return found


def fold(name: str) -> str:
    """The letters a to z of a name, without accents and capitals."""
    plain = unicodedata.normalize("NFKD", name).lower()
    return "".join(letter for letter in plain if letter in string.ascii_lowercase)
