"""The documentation: links and paths exist, and generated parts are up to date."""

import csv
import re
from itertools import groupby
from pathlib import Path

import pytest

from benchmarks.promotions import LIMITS
from fedweave.data import DATASETS
from fedweave.lifecycle.drift import DriftSettings
from tools import dataset_table, promotion_tables, study_gallery, verdict_tables
from tools.pages import fill, find_blocks

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.*?) *$", re.MULTILINE)
PATH = re.compile(r"`((?:src|docs|studies|tests|tools|pipelines|benchmarks)/[\w./-]*)`")


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(text: str) -> set[str]:
    """The anchors of the headings, as GitHub and the site make them."""
    plain = (re.sub(r"[^\w\- ]", "", LINK.sub("", heading)).strip() for heading in HEADING.findall(text))
    names = sorted(heading.lower().replace(" ", "-") for heading in plain)
    return {f"{name}-{i}" if i else name for name, same in groupby(names) for i, _ in enumerate(same)}


def broken(page: Path, text: str) -> list[str]:
    """The relative links of a page without a target."""
    links = [link for link in LINK.findall(text) if not re.match(r"[a-z]+:", link)]
    parts = [(link, *link.partition("#")[::2]) for link in links]
    targets = [(link, (page.parent / path).resolve() if path else page, anchor) for link, path, anchor in parts]
    return [
        link
        for link, target, anchor in targets
        if not target.is_relative_to(ROOT) or not target.exists() or (anchor and anchor not in anchors(prose(target)))
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_have_a_target(page):
    assert broken(page, prose(page)) == []


def test_links_without_a_target_are_found():
    page = ROOT / "docs" / "tutorial.md"
    text = (
        "[a](none.md) [b](architecture.md#one-round) [c](architecture.md#none) [d](../../x.md) [e](#none) ![f](x.png)"
    )
    assert broken(page, text) == ["none.md", "architecture.md#none", "../../x.md", "#none", "x.png"]


def test_anchors_of_equal_headings():
    assert anchors("# One round\n## A `b`, c\n# One round\n") == {"one-round", "one-round-1", "a-b-c"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_have_at_most_120_columns(page):
    """Except in tables, and where a single link is longer."""
    lines = [line for line in prose(page).splitlines() if not line.lstrip().startswith("|")]
    assert [line for line in lines if len(line) > 120 and len(line.split("](")[0]) > 120] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_lines_of_code_have_at_most_120_columns(page):
    """Except in blocks of the language "text", which show what a command prints."""
    blocks = [block for block in FENCE.findall(page.read_text(encoding="utf-8")) if not block.startswith("```text")]
    assert [line for block in blocks for line in block.splitlines() if len(line) > 120] == []


def test_comments_of_settings_have_at_most_120_columns():
    """Except in params.yaml, which a command writes."""
    files = [file for file in [*ROOT.glob("*.y*ml"), *(ROOT / "studies").rglob("*.yaml")] if file.name != "params.yaml"]
    lines = [(file.name, line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert [row for row in lines if row[1].lstrip().startswith(("#", "about:", "note:")) and len(row[1]) > 120] == []


def test_templates_have_at_most_120_columns():
    files = [*(ROOT / "src").rglob("*.html"), *(ROOT / "src").rglob("*.css")]
    lines = [(file.name, line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    assert [row for row in lines if len(row[1]) > 120] == []


@pytest.mark.parametrize("page", [ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")], ids=lambda page: page.name)
def test_paths_exist(page):
    """Paths are in backticks. Words in capitals are placeholders."""
    paths = [path for path in PATH.findall(prose(page)) if not re.search(r"[A-Z]{4}", path)]
    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_named_tests_exist(page):
    """They are named as `test_module`, or `test_module::test_name`."""
    files = {file.stem: file for file in (ROOT / "tests").rglob("test_*.py")}
    names = re.findall(r"`(test_\w+)(?:::(test_\w+))?`", prose(page))
    missing = [
        name for name, one in names if name not in files or (one and f"def {one}(" not in files[name].read_text())
    ]
    assert missing == []


def test_every_page_has_a_place_on_the_site():
    site = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = [page.relative_to(ROOT / "docs") for page in PAGES if page.is_relative_to(ROOT / "docs")]
    places = {str(page) if len(page.parts) == 1 else f"{page.parts[0]}/" for page in pages}
    assert {place for place in places if place not in re.findall(r"[\w-]+(?:\.md|/)$", site, re.MULTILINE)} == set()


def test_the_table_of_data_sets_is_up_to_date():
    text = dataset_table.PAGE.read_text(encoding="utf-8")
    assert find_blocks(text, "datasets") == ["all"]
    assert fill(text, datasets=lambda _: dataset_table.table()) == text, "run: python -m tools.dataset_table"
    assert text.count("\n| `") + text.count("\n| [`") == len(DATASETS) + 12  # the short table has twelve of them


def test_the_tables_of_false_claims_are_those_of_the_files():
    text = verdict_tables.PAGE.read_text(encoding="utf-8")
    assert fill(text, verdicts=verdict_tables.table) == text, "run: python -m tools.verdict_tables"


def test_no_cell_makes_more_false_claims_than_it_may():
    """The sentence of the page about all cells: none has the mark (!)."""
    for name, cells in (
        ("false-claims", 60),
        ("unstable", 48),
        ("shared", 16),
        ("other-families", 4),
        ("equivalence", 9),
    ):
        table = verdict_tables.table(name)
        assert len(table.splitlines()) == cells + 2
        assert "(!)" not in table


def test_the_tables_of_false_promotions_are_those_of_the_files() -> None:
    """So are the numbers in the sentences; only cells that are said to be above the level have the mark (!)."""
    text = promotion_tables.PAGE.read_text(encoding="utf-8")
    assert fill(text, promotions=promotion_tables.table) == text, "run: python -m tools.promotion_tables"
    with (promotion_tables.FOLDER / "false.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    limits = {(row["scores"], int(row["clients"])): float(row["promotions"]) for row in rows if row["scores"] in LIMITS}
    largest = max(float(row["promotions"]) for row in rows if row["scores"] not in LIMITS)
    page = " ".join(text.split())
    assert f"are promotions above {100 * largest:.1f} % of 2,000 years" in page
    assert f"last {('six', 'eight')[len(limits) == 8]} lines" in page
    few = [f"{100 * limits['lopsided', clients]:.1f} %" for clients in (6, 10, 20)]
    assert f"{few[0]} and {few[1]} of years promote. With 20 clients it is {few[2]}." in page
    marked = [line.split(" | ")[:2] for line in text.splitlines() if line.startswith("|") and "(!)" in line]
    assert marked == [["| lopsided", "6"], ["| lopsided", "10"]]
    with (promotion_tables.FOLDER / "gain.csv").open(encoding="utf-8") as file:
        nights = [
            [float(row[name]) for name in row if name.startswith("nights")]
            for row in csv.DictReader(file)
            if (row["clients"], row["rows"]) == ("48", "50") and row["effect"] != "1.0"
        ]
    assert {round(night) for row in nights for night in row} <= {6, 7, 8}  # "about a week with any patience"
    with (promotion_tables.FOLDER / "drift.csv").open(encoding="utf-8") as file:
        assert not [row for row in csv.DictReader(file) if float(row["false alarms"]) > 0.05]
    settings = DriftSettings()
    assert f"| `level` | {settings.level:g} |" in text
    assert f"| `least_shift` | {settings.least_shift:g} |" in text


def test_the_gallery_of_studies_is_up_to_date():
    text = study_gallery.PAGE.read_text(encoding="utf-8")
    assert study_gallery.fill_tables(text) == text, "run: python -m tools.study_gallery"


def test_the_gallery_changes_with_a_study(tmp_path, monkeypatch):
    (tmp_path / "base.yaml").write_text((ROOT / "studies" / "base.yaml").read_text())
    study = (
        "about: {about}\nseeds: [0]\ntasks:\n"
        "  digits: {{train: {{rounds: 7}}, methods: [local, mine: {{method: fedavg}}]}}\n"
    )
    monkeypatch.setattr(study_gallery, "STUDIES", tmp_path)
    page = "<!-- studies: own -->\n<!-- end -->\n"
    for about in ("First.", "Second."):
        (tmp_path / "mine.yaml").write_text(study.format(about=about))
        row = f"| `mine` | {about} | `digits` | `fedavg`, `fedavg_ft`, `local` | 3 | 7 rounds, 1 seed |\n"
        assert study_gallery.fill_tables(page).endswith(row + "<!-- end -->\n")
