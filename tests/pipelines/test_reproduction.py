"""The pages that compare our numbers with the printed ones."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
import yaml

from fedweave import results
from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.results import holm, published, statistics
from fedweave.study import catalogue
from fedweave.study.config import read_yaml
from tests.fake_results import write_study
from tools.docs import claims, differences, figures, questions, reproduction
from tools.docs.stored_numbers import CLIENTS, FOLDER, QUANTITIES, SIZES, client_scores, printed_rows
from tools.pages import fill, find_blocks

ROOT = Path(__file__).resolve().parents[2]
UNIT = {"test_acc_pct": 1.0, "test_mse_x1e-3": 1e-3}  # as papers print
FILES = sorted((ROOT / reproduction.TABLES).glob("*/*.csv"))
STORED = [path for path in FILES if "." not in path.stem]  # scores; the others have further numbers
# Names in a claim that contain digits but are not figures
NAMES = re.compile(
    r"(\d+(, | and | to ))*\d+ (clients|layers|neighbours|overlapping|epochs?)|layers \d+ to \d+"
    r"|CIFAR-?10+|TPT-48|10⁻[³⁶]"
)


def row(method: str, mean: float, std: float, printed: float | None = None, spread: float | None = None) -> dict:
    about = {
        "study": "paper/table",
        "dataset": "cora",
        "setting": "s",
        "method": method,
        "metric": "accuracy",
        "seeds": 5,
    }
    return {**about, "mean": mean, "std": std, "client_std": 9.0, "published_mean": printed, "published_std": spread}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project with a finished study."""
    monkeypatch.chdir(tmp_path)
    board = tmp_path / "results" / "paper" / "table" / "leaderboard.csv"
    board.parent.mkdir(parents=True)
    pd.DataFrame([row("A", 80.0, 0.3, 79.0, 0.4), row("B", 81.0, 0.3, 79.9, 0.4), row("C [mine]", 70.0, 1.0)]).to_csv(
        board, index=False
    )
    return tmp_path


def test_pages_are_up_to_date_with_the_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every stored study has its block, and so have the methods of the five papers."""
    monkeypatch.chdir(ROOT)
    places = (*reproduction.pages(), *reproduction.METHODS.glob("*.md"))
    pages = {path: path.read_text(encoding="utf-8") for path in places}
    assert {path: fill(text, **reproduction.BLOCKS) for path, text in pages.items()} == pages
    blocks = {
        (kind, name): path
        for path, text in pages.items()
        for kind in reproduction.BLOCKS
        for name in find_blocks(text, kind)
    }
    studies, numbers = (
        {str(path.relative_to(ROOT / reproduction.TABLES).with_suffix("")) for path in paths}
        for paths in (STORED, {*FILES} - {*STORED})
    )
    assert {name for kind, name in blocks if kind == "study"} == studies
    assert {name for kind, name in blocks if kind == "numbers"} == numbers
    assert blocks["claims", "all"] == reproduction.PAGE
    assert {name for kind, name in blocks if kind == "differences"} == {*read_yaml(differences.PAIRS)}
    own = {name: METHODS[name].label for name in ("fedaghn", "pfedgat", "pfedla", "heurpfedla", "shn", "fedsheafhn")}
    assert {path.stem: name for (kind, name), path in blocks.items() if kind == "method"} == own


@pytest.mark.parametrize("path", STORED, ids=lambda path: path.stem)
def test_printed_numbers_are_those_of_the_papers(path: Path) -> None:
    rows = pd.read_csv(path)
    name = rows["study"].iloc[0]
    tasks = [task for task in catalogue.expand(name, ROOT / "studies")["tasks"].values() if task.get("published")]
    columns = {(t["dataset"], t["setting"]): published.reference(t["published"], "", "") for t in tasks}
    numbers = [
        (column_of(r), r.method, (r.mean * UNIT[r.metric], r.std * UNIT[r.metric]))
        for r in published.rows(name.split("/")[0])
        if r.metric in UNIT
    ]
    beside = rows[rows["published_mean"].notna()]
    assert (len(beside) == 0) == (not columns or path.stem.endswith("-reduced"))
    for line in beside.to_dict("records"):
        column = column_of(columns[line["dataset"], line["setting"]])
        (printed,) = (
            n for at, method, n in numbers if at == column and published.is_same_method(line["method"], method)
        )
        # Files have six digits; pFedGAT prints no deviations
        assert (line["published_mean"], line["published_std"]) == pytest.approx(printed, rel=1e-5, nan_ok=True)


@pytest.mark.parametrize("path", sorted((ROOT / reproduction.TABLES).rglob(f"*{CLIENTS}")), ids=lambda p: p.name)
def test_scores_of_clients_are_those_of_the_table(path: Path) -> None:
    table = pd.read_csv(str(path).replace(CLIENTS, ".csv")).set_index(["dataset", "setting", "method"])
    if table["study"].iloc[0] == "shn/table1":  # its rows of TPT-48 are older than stored scores
        table = table.drop("tpt48", level="dataset")
    scores = pd.read_csv(path).groupby(["dataset", "setting", "method"])
    assert scores.ngroups == len(table)
    assert scores["value"].mean().to_dict() == pytest.approx(table["mean"].to_dict(), rel=1e-4)
    assert scores["seed"].nunique().to_dict() == table["seeds"].to_dict()


def test_claims_have_no_numbers_but_those_in_names() -> None:
    """Such names are those of tables, layers and clients."""
    for claim in claims.read_yaml(ROOT / claims.WORDS)["claims"]:
        assert {"paper", "verdict", "ours", "control"} <= claim.keys() <= claims.COLUMNS.keys()
        for text in claim.values():
            words = NAMES.sub("", claims.QUESTION.sub("", " ".join(text.split())))
            assert not re.search(r"\d", words), words


def test_printed_weights_are_those_of_the_paper() -> None:
    """The right half of FedAGHN's table of weights."""
    board = printed_rows("fedaghn/table4")
    for line in pd.read_csv(ROOT / FOLDER / "fedaghn/table3-reduced.weights.csv").to_dict("records"):
        weights = board[f"cifar100, grouped-s0.8/{line['printed stage of 200']}"]
        for kind in ("self", "similar", "other"):
            assert line[f"printed {kind}"] == weights[f"FedAGHN-{line['layers']} collab_weight_{kind}"]["mean"]
    for name, stages in (("first-round", ["first"]), ("table4", ["first", "prior", "middle", "final"])):
        stored = pd.read_csv(ROOT / FOLDER / f"fedaghn/{name}.weights.csv", index_col="key")["printed"]
        expected = {
            f"{stage} {key}": row["mean"]
            for stage in stages
            for key, row in board[f"cifar100, grouped-s0.8/{stage}"].items()
            if "descent" not in key
        }
        assert {**stored} == expected


def test_shares_of_the_group_are_those_of_the_board_and_the_paper() -> None:
    """Three of the nineteen others are in a client's group."""
    table = pd.read_csv(ROOT / FOLDER / "fedaghn/app_table2-reduced.graph.csv", index_col="key")
    board = pd.read_csv(ROOT / "docs/boards/graphs.csv")
    board = board[board["task"] == "cifar100-grouped"].set_index("method").loc[table.index]
    assert {**table["AUC"]} == {**board["group_auc"].round(2)}
    assert {**table["on the group, %"]} == {**(100 * board["group_mass"]).round(1)}
    assert {**table["score"]} == {**board["mean"].round(1)}
    weights = printed_rows("fedaghn/appendix_table2")["cifar100, grouped-s0.8/final"]
    for name, paper in (("CFL", "CFL"), ("HeurFedAMP", "H-FedAMP"), ("FedAGHN", "FedAGHN")):
        similar, other = (weights[f"{paper} collab_weight_{kind}"]["mean"] for kind in ("similar", "other"))
        assert table.iloc[:, -1][name] == round(100 * 3 * similar / (3 * similar + 16 * other), 1)


@pytest.mark.parametrize("path", sorted((ROOT / FOLDER).rglob("*.sizes.csv")), ids=lambda path: path.stem)
def test_printed_sizes_are_those_of_the_papers(path: Path) -> None:
    """Every number that the paper prints of a data set or model, or of its traffic, stands beside ours."""
    paper, table = str(path.relative_to(ROOT / FOLDER)).removesuffix(".sizes.csv").split("/")
    for line in pd.read_csv(path, na_values=results.EMPTY).to_dict("records"):
        beside = {name: line.get(f"{label}, printed", float("nan")) for name, label in QUANTITIES.items()}
        expected = {
            row.metric: row.mean
            for row in published.rows(paper)
            if row.table == table.removesuffix("-reduced")
            and ", ".join(filter(None, (row.dataset, row.setting, row.method))) == line["key"]
        }
        assert expected
        assert {name: value for name, value in beside.items() if value == value} == expected
        assert all(line[QUANTITIES[name]] > 0 for name in expected)


def test_the_page_counts_the_sizes_that_agree() -> None:
    page = " ".join((ROOT / FOLDER / "fedsheafhn.md").read_text(encoding="utf-8").split())
    higher, counts = 0, []
    for table in ("table4", "table5"):
        sizes = pd.read_csv(ROOT / FOLDER / f"fedsheafhn/{table}.sizes.csv", na_values=results.EMPTY)
        names = [name for name in SIZES.values() if name in sizes]
        ratios = pd.concat([sizes[name] / sizes[f"{name}, printed"] for name in names]).dropna()
        close = (ratios - 1).abs() <= 0.005
        assert f"{close.sum()} of the {len(close)} printed sizes of Table {table[-1]}" in page
        higher += (sizes["heterogeneity"] > sizes["heterogeneity, printed"]).sum()
        counts += [sizes["heterogeneity"].notna().sum()]
        whole = sizes[sizes["key"].str.endswith("original")]
        pairs = [(whole[name], whole[f"{name}, printed"]) for name in names if name != "heterogeneity"]
        assert all(ours.tolist() == printed.tolist() for ours, printed in pairs)
    assert f"in {higher} of {sum(counts)} rows" in page


def column_of(row: published.Row | published.Reference) -> tuple[str, str, str]:
    """A column of a printed table. Papers write TPT-48, and the files have tpt48."""
    return row.table, row.dataset.replace("-", ""), row.setting


def test_a_difference_beyond_two_deviations_is_bold(folder: Path) -> None:
    """sqrt(0.3² + 0.4²) = 0.5: a difference of 1.0 is not beyond two of them, and 1.1 is."""
    reproduction.merge_board("paper/table")
    lines = reproduction.table("paper/table").splitlines()[2:]
    assert [line.split(" | ")[1] for line in lines] == ["B", "A", "C [mine]"]
    assert "| **+1.10** |" in lines[0]
    assert "| +1.00 |" in lines[1]
    assert "| 70.00 ± 1.00 | – | – |" in lines[2]


def test_no_difference_of_one_seed_is_bold(folder: Path) -> None:
    """Its standard deviation is unknown."""
    pd.DataFrame([row("A", 90.0, float("nan"), 79.0)]).to_csv("results/paper/table/leaderboard.csv", index=False)
    reproduction.merge_board("paper/table")
    assert "| +11.00 |" in reproduction.table("paper/table").splitlines()[2]


def test_each_setting_has_a_column(folder: Path) -> None:
    """Best mean rank first (B: 1 and 2, A: 2 and 1 with the earlier name, C: 3 and none)."""
    reproduction.merge_board("paper/table")
    second = [row("A", 91.0, 0.3, 90.0, 0.4), row("B", 90.0, 0.3, 88.9, 0.4)]
    pd.DataFrame(second).assign(dataset="pubmed").to_csv("results/paper/table/leaderboard.csv", index=False)
    reproduction.merge_board("paper/table")
    assert reproduction.table("paper/table").splitlines() == [
        "| s (5 seeds) | cora | pubmed |",
        "| --- | --: | --: |",
        "| A | 80.00 ± 0.30 (79.00) | 91.00 ± 0.30 (90.00) |",
        "| B | 81.00 ± 0.30 (**79.90**) | 90.00 ± 0.30 (**88.90**) |",
        "| C [mine] | 70.00 ± 1.00 | – |",
    ]
    pd.DataFrame(second[:1]).assign(setting="t", seeds=3).to_csv("results/paper/table/leaderboard.csv", index=False)
    reproduction.merge_board("paper/table")
    assert headers() == ["| cora (3 to 5 seeds) | s | t |", "| pubmed (5 seeds) | s |"]


def test_columns_are_sorted_by_number(folder: Path) -> None:
    """The first cell of the header has what all columns have in common."""
    board = folder / "results/paper/table/leaderboard.csv"
    layers = [row("A", 80.0, 0.3) | {"setting": f"deep/layers{n}", "seeds": 1} for n in (8, 64, 2)]
    pd.DataFrame(layers).to_csv(board, index=False)
    reproduction.merge_board("paper/table")
    assert headers() == ["| cora, deep (1 seed) | layers2 | layers8 | layers64 |"]


def headers() -> list[str]:
    """The header lines of the study's tables."""
    return [line for line in reproduction.table("paper/table").splitlines() if " seed" in line]


def test_a_second_merge_replaces_a_row_and_keeps_the_others(folder: Path) -> None:
    reproduction.merge_board("paper/table")
    pd.DataFrame([row("A", 82.0, 0.1, 79.0, 0.4)]).to_csv(folder / "results/paper/table/leaderboard.csv", index=False)
    reproduction.merge_board("paper/table")
    stored = pd.read_csv(folder / reproduction.TABLES / "paper/table.csv").set_index("method")["mean"]
    assert stored.to_dict() == {"A": 82.0, "B": 81.0, "C [mine]": 70.0}
    with pytest.raises(BadInput, match="fedweave study use paper/other"):
        reproduction.merge_board("paper/other")
    with pytest.raises(BadInput, match="reproduction paper/other"):
        reproduction.table("paper/other")


def test_sizes_stand_beside_the_printed_ones(folder: Path) -> None:
    """A table without scores has sizes; a second merge replaces a line and keeps the others."""
    target = folder / reproduction.TABLES / "fedsheafhn/table4.sizes.csv"
    source = folder / "results/fedsheafhn/table4/measures.csv"
    source.parent.mkdir(parents=True)
    (folder / "studies").symlink_to(ROOT / "studies")
    part = {"task": "cora-disjoint10", "dataset": "cora", "setting": "disjoint/clients10"}
    whole = {"task": "cora-original", "dataset": "cora", "setting": "original"}
    measures = [
        {**part, "quantity": "num_nodes", "value": 248.5, "printed": 249},
        {**part, "quantity": "num_edges", "value": 891.25, "printed": None},
        {**whole, "quantity": "num_classes", "value": 7, "printed": 7},
    ]
    pd.DataFrame(measures).to_csv(source, index=False)
    reproduction.merge("fedsheafhn/table4")
    first = target.read_text()
    pd.DataFrame(measures[2:]).assign(value=8).to_csv(source, index=False)
    reproduction.merge("fedsheafhn/table4")
    lines = ['key,"data set, setting",classes,"classes, printed",nodes,"nodes, printed"']
    lines += ['"cora, disjoint/clients10","cora, disjoint/clients10",–,–,248.5,249']
    lines += [f'"cora, original","cora, original",{n},7,–,–' for n in (7, 8)]
    assert first.splitlines() == lines[:3]
    assert target.read_text().splitlines() == [*lines[:2], lines[3]]


def test_sizes_have_the_names_of_the_printed_column_and_row(folder: Path) -> None:
    """Our task is "cifar100, superclass"; the paper prints its model in the row CNN of a table without data sets."""
    source = folder / "results/shn/table6/measures.csv"
    source.parent.mkdir(parents=True)
    (folder / "studies").symlink_to(ROOT / "studies")
    task = {"task": "cifar100", "dataset": "cifar100", "setting": "superclass", "quantity": "num_parameters"}
    pd.DataFrame([{**task, "value": 128832, "printed": 128832}]).to_csv(source, index=False)
    reproduction.merge("shn/table6")
    stored = pd.read_csv(folder / reproduction.TABLES / "shn/table6.sizes.csv")
    assert stored[["key", "parameters", "parameters, printed"]].to_numpy().tolist() == [
        ["client-model, CNN", 128832, 128832]
    ]


QUESTIONS = {
    "{mean | one/two | cora, s | B}": "81.0",
    "{std | one/two | cora, s | C [mine]; A}": "1.0 to 0.3",
    "{gap | one/two | cora, s | A | C [mine]}": "+10.0",
    "{range gap | one/two, one/three | * | A | B}": "-1.0 to +2.5",
    "{at least gap | one/two | cora, s | B | all}": "+1.0",
    "{change | one/two, one/three | cora, t | cora, s | A}": "+2.9",
    "{first | one/two, one/three | B}": "1 of 2",
    "{range above | one/two, one/three | * | A}": "+1.0 to +1.0",
    "{below | one/two | cora, s | all}": "-1.0",
    "{width mean | one/two | cora, s | all but A}": "11.0",
    "{within change | one/two, one/three | cora, t | cora, s | A}": "+3.0",
    "{value | one/two.more | k | x}": "0.10",
    "{ratio | one/two.more | k | y | x}": "4.2 to 1.0",
    "{printed | shn/table1 | tpt-48, natural | Local}": "2.2",
    "{printed std | shn/table1 | tpt-48, natural | Local; SHN}": "0.6 to 0.5",
    "{printed gap | shn/table1 | tpt-48, natural | Local | SHN}": "+0.1",
    "{printed | shn/table6 | client-model | CNN num_parameters}": "128832.0",
}


def answers(folder: Path, *texts: str) -> list[str]:
    """The cells of the column `ours` of a table of claims."""
    lines = ["claims:"] + [f"  - {{paper: x, ours: '{text}'}}" for text in texts]
    (folder / claims.WORDS).write_text("\n".join(lines) + "\n")
    return [line.split(" | ")[2] for line in claims.table().splitlines()[2:]]


def test_questions_are_answered_from_rows(folder: Path) -> None:
    tables = folder / FOLDER
    (tables / "one").mkdir(parents=True)
    first = [row("A", 80.0, 0.3, 79.0, 0.4), row("B", 81.0, 0.3), row("C [mine]", 70.0, 1.0)]
    pd.DataFrame(first).to_csv(tables / "one/two.csv", index=False)
    second = pd.DataFrame([row("A", 82.94, 0.3), row("B", 80.44, 0.3)]).assign(setting="t")
    second.to_csv(tables / "one/three.csv", index=False)
    (tables / "one/two.more.csv").write_text("key,x,y\nk,0.10,0.42\n")
    assert dict(zip(QUESTIONS, answers(folder, *QUESTIONS), strict=True)) == QUESTIONS
    for wrong, words in {
        "{mean | one/two | cora, s | Z}": "'Z' is unknown",
        "{mean | one/two | cora, u | A}": "'cora, u' is unknown",
        "{change | one/two | cora, s | cora, s | A; B}": "2 rows",
        "{above | one/two | cora, s | B}": "no number answers it",
        "{mean | one/two}": "mean | one/two",
        "{mean | one/two, one/two | cora, s | A}": "two rows of 'A'",
        "{means | one/two}": "did you mean 'mean'",
        "{mean | one/four | cora, s | A}": "four.csv is not there",
        "{value | one/two.more | l | x}": "unknown",
    }.items():
        with pytest.raises(BadInput, match=re.escape(words)):
            answers(folder, wrong)


def test_every_figure_in_a_sentence_is_that_of_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert figures.problems(*(page.read_text(encoding="utf-8") for page in reproduction.pages())) == []


PAGE = """# Page

<!-- study: one/two -->
| 7.7 |
<!-- end -->

**A is first** (80.0 ± 0.3) with 20 clients in Table 2 of CIFAR-100 (`x 3.3`), by 1.0 to 10 points. A decay of
5 · 10⁻⁴ has no file.

A sentence without figures.
"""
SENTENCES = """
kinds: {trial: x}
short: {here: "one/two | cora, s"}
sections:
  Page:
    A is first:
      - 80.0 = mean | here | A
      - 0.3 = std | here | A
      - 1.0 to 10 = gap | here | A | B; C [mine]
      - 5 · 10⁻⁴ = stated | trial | x
"""


@pytest.fixture
def sentences(folder: Path) -> Path:
    """The sources of PAGE, with the rows that they name."""
    target = folder / FOLDER / "one/two.csv"
    target.parent.mkdir(parents=True)
    board = pd.DataFrame([row("A", 80.0, 0.3), row("B", 79.0, 0.3), row("C [mine]", 70.0, 1.0)])
    board.to_csv(target, index=False)
    (folder / figures.SOURCES).write_text(SENTENCES, encoding="utf-8")
    return target


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("(80.0", "(80.1", "figure 1 is 80.1 in the text and 80.0 in"),
        ("1.0 to 10 points", "10 points", "figure 3 is 10 in the text and 1.0 in"),
        ("no file", "no file in 30 %", "figure 6 is 30 in the text and none in"),
        ("**A is", "**B is", "0 paragraphs with figures begin so"),
        ("without figures", "with 3 figures", "no source for 3"),
    ],
)
def test_a_figure_without_its_source_is_named(sentences: Path, old: str, new: str, problem: str) -> None:
    assert figures.problems(PAGE) == []
    assert problem in figures.problems(PAGE.replace(old, new))[0]


def test_a_figure_that_differs_from_its_source_is_named(sentences: Path) -> None:
    sentences.write_text(sentences.read_text().replace("A,accuracy,5,80.0", "A,accuracy,5,80.06"))
    first, second = figures.problems(PAGE)
    assert first.endswith("80.0: the answer to 'mean | one/two | cora, s | A' is 80.1")
    assert second.endswith("1.0 10: the answer to 'gap | one/two | cora, s | A | B; C [mine]' is 1.1 10")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("{trial: x}", "{record: x}", "'trial' is unknown"),
        ("A | B; C [mine]", "A | B", "has 1 answers for"),
        ("80.0 = mean", "80.0 mean", "write FIGURE = QUESTION"),
    ],
)
def test_a_source_without_a_number_is_refused(sentences: Path, old: str, new: str, message: str) -> None:
    Path(figures.SOURCES).write_text(SENTENCES.replace(old, new), encoding="utf-8")
    with pytest.raises(BadInput, match=message):
        figures.problems(PAGE)


def test_p_values_are_corrected_over_the_table(folder: Path) -> None:
    """They come from the scores of clients that are stored with a study. A second study replaces the rows that it
    shares with the first.
    """
    write_study(folder / "results" / "paper" / "table", clients=12, extras=False)
    results.write(folder / "results" / "paper" / "table")
    for _ in range(2):
        reproduction.merge_board("paper/table")
        stored = folder / FOLDER / f"paper/table{CLIENTS}"
        before = stored.read_bytes()
    reproduction.merge_board("paper/table")
    assert stored.read_bytes() == before
    scores = pd.read_csv(stored)
    assert len(scores) == 6 * 3 * 12
    values = {
        str(method): rows.pivot(index="seed", columns="client", values="value").to_numpy()
        for method, rows in scores.groupby("method")
    }
    key = f"{scores['dataset'][0]}, {scores['setting'][0]}"
    pairs = [("Local", "FedAGHN"), ("FedAvg-FT", "FedAGHN")]
    raw = [test.p for test in statistics.compare_pairs(values, pairs, higher_is_better=True)]
    cells = answers(folder, *(f"{{p | paper/table | {key} | {a} | {b}}}" for a, b in pairs))
    expected = [f"{p:.3f}" if p < 0.1 else f"{p:.2f}" for p in holm.adjust(raw)]
    assert cells == ["< 0.001" if p < 0.001 else text for p, text in zip(holm.adjust(raw), expected, strict=True)]
    one = f"{{p | paper/one | {key} | Local | FedAGHN}}"
    for name in (f"paper/table{CLIENTS}", "paper/table.csv"):
        rows = pd.read_csv(folder / FOLDER / name)
        rows = rows[rows["seed"] == rows["seed"].min()] if "seed" in rows else rows
        rows.to_csv(folder / FOLDER / name.replace("table", "one"), index=False)
    # A pair of one seed has no p, and the others are corrected as if it were not there.
    assert answers(folder, *(f"{{p | paper/table | {key} | {a} | {b}}}" for a, b in pairs), one) == [
        *cells,
        "one seed: no verdict",
    ]
    with pytest.raises(BadInput, match="one seed: no verdict"):
        questions.ask(one.strip("{}"))
    assert questions.ask("better | paper/one | Local").values == (0, 0)
    assert questions.ask("undecidable | paper/one, paper/table | Local").values == (5, 0)


def test_clients_that_share_test_nodes_count_once(folder: Path) -> None:
    """The intervals and tests of the page are those of the study's own table."""
    study = write_study(folder / "results" / "paper" / "table", clients=12, extras=False)
    for file in study.glob("runs/*/run.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "sharing": [c // 2 for c in range(12)]}))
    results.write(study)
    reproduction.merge_board("paper/table")
    table = pd.read_csv(study / "significance.csv").query("family == 'controls' and other == 'Local'")
    board = pd.read_csv(study / "leaderboard.csv")
    key = f"{board['dataset'][0]}, {board['setting'][0]}"
    for row in table.itertuples():
        pair = f"paper/table | {key} | {row.method} | Local"
        interval = questions.ask(f"interval | {pair}").values
        p, p_adjusted = (questions.ask(f"{kind} | {pair}").values[0] for kind in ("p", "p controls"))
        assert (*interval, p, p_adjusted) == pytest.approx((row.low, row.high, row.p, row.p_adjusted), abs=1e-4)
    assert {scores.shape for scores in client_scores("paper/table", key).values()} == {(3, 6)}


@pytest.mark.parametrize(("clients", "decided"), [(12, True), (4, False)])
def test_differences_are_those_of_the_significance_table(clients: int, decided: bool, folder: Path) -> None:
    """Bold where the corrected test shows a difference from a control. Empty where a method has no score."""
    study = write_study(folder / "results" / "paper" / "table", clients=clients, extras=False)
    results.write(study)
    reproduction.merge_board("paper/table")
    tests = pd.read_csv(study / "significance.csv").query("family == 'controls' and other == 'Local'")
    others = tests["method"].tolist()
    tests["verdict"] = tests["verdict"].fillna("")
    assert [*tests["verdict"].ne("")] == [decided] * len(tests)
    pairs = {f"to {name}": f"{name} - Local" for name in others} | {"none": f"{others[0]} - Gone"}
    Path(differences.PAIRS).write_text(yaml.safe_dump({"paper/table": pairs}, sort_keys=False))
    header, _, line = differences.table("paper/table").splitlines()
    assert header.split(" | ")[1:] == [*[*pairs][:-1], "none |"]
    *cells, last = line.strip("| ").split(" | ")[1:]
    assert last == results.EMPTY
    for cell, test in zip(cells, tests.itertuples(), strict=True):
        numbers = f"{test.difference:+.1f} ({test.low:.1f} to {test.high:.1f})"
        shown = {"better": f"**{numbers}**", "worse": f"**{numbers}**", "equivalent": f"≈ {numbers}"}
        assert cell == shown.get(test.verdict, numbers)
    ahead, possible = (tests["verdict"] == "better").sum(), len(tests) if decided else 0
    assert questions.ask("better within | paper/table | Local").values == (ahead, possible)
    alone = holm.adjust(tests["p"].where(tests["verdict"].ne("")))
    each = ((alone < statistics.ALPHA) & (tests["difference"] > 0)).sum()
    assert questions.ask("better | paper/table | Local").values == (each, possible)
    assert (ahead > 0) == (each > 0) == decided
    assert questions.ask("undecidable | paper/table | Local").values == (0, len(tests) - possible)
    with pytest.raises(BadInput, match="'paper/other' is unknown"):
        differences.table("paper/other")
