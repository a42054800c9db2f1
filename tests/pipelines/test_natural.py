"""The pages on natural federations, on newcomers and on collapsed graphs say what their tables in docs/boards say."""

import re
from pathlib import Path

import pandas as pd
import pytest

from fedweave.metrics import METRICS
from tools.docs import boards, collapse, gains, newcomers
from tools.pages import fill, find_blocks

NATURAL, LATE = Path("docs/natural.md"), Path("docs/newcomers.md")
WORDS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]


def words(path: Path) -> str:
    return " ".join(path.read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def board() -> pd.DataFrame:
    return pd.read_csv(boards.FOLDER / "natural.csv", keep_default_na=False, na_values=[""]).fillna({"vs_local": ""})


def test_the_pages_show_the_files() -> None:
    page = NATURAL.read_text(encoding="utf-8")
    assert len(find_blocks(page, "board")) == 8
    assert fill(page, board=boards.board) == page
    page = LATE.read_text(encoding="utf-8")
    assert len(find_blocks(page, "newcomers")) == 10
    assert fill(page, newcomers=newcomers.table) == page


def test_the_picture_has_the_verdicts_of_the_boards(board: pd.DataFrame) -> None:
    rows = pd.read_csv(gains.TABLE)
    for control, column in (("Local", "vs_local"), ("FedAvg-FT", "vs_fedavg_ft")):
        mine = rows[rows["control"] == control].set_index(["task", "method"])["verdict"]
        theirs = board.set_index(["dataset", "method"])[column].loc[mine.index]
        assert mine.tolist() == theirs.tolist()


def test_where_collaboration_pays(board: pd.DataFrame) -> None:
    better = board[board["vs_local"] == "better"].groupby("dataset")["method"].apply(list)
    text = words(NATURAL)
    assert f"On {WORDS[len(better)]} of eight" in text
    several = [name for name, methods in better.items() if len(methods) > 1]
    assert {*several} == {*re.findall("`(.*?)`", text.split("of eight: on ")[1].split(" several methods")[0])}
    assert (better["aggression"], better["births"]) == (["FedAvg-FT"], ["pFedGraph"])
    means = board[board["dataset"] == "births"].set_index("method")["mean"]
    assert (
        f"On `births` {WORDS[(means < means['pFedGraph']).sum()]} other methods have less error than pFedGraph" in text
    )
    undecided = re.findall("`(.*?)`", text.split("from state to state. On ")[1].split(" no method")[0])
    assert {*undecided} == {*board["dataset"]} - {*better.index}


def test_for_whom(board: pd.DataFrame) -> None:
    rows, text = (
        board[board["method"] == "FedAvg-FT"].set_index("dataset").astype({"gain": int, "loss": int}),
        words(NATURAL),
    )
    for task, unit in (
        ("chemistry", "authorities"),
        ("names", "countries"),
        ("schools", "schools"),
        ("aggression", "people"),
    ):
        assert f"{rows['gain'][task]} of {int(rows['clients'][task])} {unit}" in text
    assert f"where {rows['loss']['aggression']} have more" in text


def test_the_opening_counts_methods_and_runs(board: pd.DataFrame) -> None:
    """The README and the page count the same boards."""
    runs = board.groupby("dataset")["method"].nunique()
    assert runs.max() == 15
    assert "fifteen methods, five seeds" in words(Path("README.md"))
    assert f"{runs.sum()} runs" in words(NATURAL)


def test_learned_graphs_and_what_an_analyst_would_fit(board: pd.DataFrame) -> None:
    text, against = words(NATURAL), board[board["method"] != "FedAvg-FT"]
    assert not (against["vs_fedavg_ft"] == "better").any()
    learned = against[against["effective_sources"].notna()] if "effective_sources" in against else None
    rows = pd.read_csv(gains.TABLE).query("control == 'FedAvg-FT' and graph")
    assert learned is None or {*learned["method"]} == {*rows["method"]}
    worse = (rows["verdict"] == "worse").sum()
    assert f"{WORDS[worse].capitalize()} of the {len(rows)} comparisons of learned graphs" in text
    first = board.groupby("dataset").first()["method"]
    pooled = re.findall("`(.*?)`", text.split("a linear mixed model, is first on ")[1].split(", without a verdict")[0])
    assert {*first.index[first == "Partial pooling"]} == {*pooled}
    pooling = board[board["method"] == "Partial pooling"].set_index("dataset")["vs_fedavg_ft"]
    assert [*pooling.index[pooling == "worse"]] == ["aggression"]
    sent = board[board["dataset"] == "schools"].set_index("method")["bytes_up"]
    assert f"{sent['Partial pooling'] / 1e3:.0f} KB" in text
    assert f"{sent['FedAvg-FT'] / 1e6:.1f} MB" in text
    controls = pd.read_csv(boards.FOLDER / "natural.controls.csv").query("control == 'Boosting of pooled rows'")
    leaders = board.groupby("dataset").first()
    for row in controls.to_dict("records"):
        sign = 1 if METRICS[row["metric"]].higher_is_better else -1
        assert sign * leaders["mean"][row["dataset"]] > sign * row["mean"]


def test_what_newcomers_get() -> None:
    rows, text = pd.read_csv(newcomers.file_of(newcomers.STUDY), keep_default_na=False), words(LATE)
    rows["mean"] = rows["mean"].astype(float)
    reported = rows[rows["reported"].astype(str) == "True"]
    assert "No method is shown to be better than Local for newcomers" in text
    assert "better" not in {*reported["vs_local"], *reported["vs_fedavg_ft"]}
    assert f"with {reported['clients'].min()} to {reported['clients'].max()} of them" in text
    local = reported[reported["method"] == "Local"].set_index("task")["mean"]
    sign = reported["metric"].map(lambda metric: 1 if METRICS[metric].higher_is_better else -1)
    assert (sign * reported["mean"] > sign * reported["task"].map(local)).sum() > len(reported) / 2
    best = reported.loc[(sign * reported["mean"]).groupby(reported["task"]).idxmax()].set_index("task")["method"]
    assert best.to_dict() == {
        **dict.fromkeys(("schools", "schools-together", "movies", "movies-together"), "pFedMe"),
        "names": "FedAvg-FT",
        "names-together": "Ditto",
    }
    first = rows[rows["point"] == "joined"].set_index(["task", "method"])["mean"]
    last = reported.set_index(["task", "method"])["mean"]
    for task in ("schools", "movies", "names"):
        initial, better = first[task, "pFedLA"], 1 if task == "names" else -1
        assert first[task, "FedAGHN"] == first[task, "pFedGAT"] == initial == last[task, "pFedLA"]
        assert better * last[task, "FedAGHN"] > better * initial
        for method in ("FedAGHN", "pFedGAT", "pFedLA"):
            assert first[f"{task}-together", method] == pytest.approx(first[task, "FedAvg"], rel=0.05)


def test_what_newcomers_of_a_paper_get() -> None:
    """The sentences on FedSheafHN's Figure 4."""
    study = "fedsheafhn/fig4-reduced"
    rows = pd.read_csv(newcomers.file_of(study)).set_index(["task", "method", "point"])
    text, methods = words(LATE), ("FedAvg-FT", "FedSheafHN", "Local")
    late = rows.xs("cora-new50")[lambda rows: rows["reported"]].droplevel("point").loc[[*methods]]
    sentence = "FedAvg-FT has {:.2f} %, FedSheafHN {:.2f} % and Local {:.2f} %; all tests are open"
    assert sentence.format(*late["mean"]) in text
    assert {*late["vs_local"].dropna(), *late["vs_fedavg_ft"].dropna()} == {"open"}
    generated, common = (
        [rows["mean"][f"cora-new{share}", method, "pre"] for share in (50, 30)]
        for method in ("FedSheafHN", "FedAvg-FT")
    )
    first, second = zip(generated, common, strict=True)
    assert "{:.2f} % in place of {:.2f} with ten newcomers, {:.2f} in place of {:.2f}".format(*first, *second) in text
    for task in rows.index.levels[0]:
        assert rows["mean"][task, "FedAvg-FT", "post"] > rows["mean"][task, "FedSheafHN", "post"]
    assert rows.xs("cora-new10")[["vs_local", "vs_fedavg_ft"]].isna().all(axis=None)


def test_where_newcomers_have_less() -> None:
    """All verdicts against a method, and SHN with vectors of newcomers' own beside SHN with the mean vector."""
    rows, text = pd.read_csv(newcomers.file_of(newcomers.STUDY), keep_default_na=False), words(LATE)
    reported = rows[rows["reported"].astype(str) == "True"].set_index(["task", "method"])
    assert {*reported.index[reported["vs_local"] == "worse"]} == {("names", "pFedGAT"), ("names", "pFedLA")}
    shn = {(task, method) for task in ("names", "names-together") for method in ("SHN", "SHN [shn-staged]")}
    assert {*reported.index[reported["vs_fedavg_ft"] == "worse"]} == {
        *shn,
        *(("names", method) for method in ("FedAGHN", "pFedGAT", "pFedLA")),
    }
    means = reported["mean"].astype(float)
    pairs = {task: (means[task, "SHN [shn-staged]"], means[task, "SHN"]) for task in ("schools", "movies", "names")}
    assert "it is {:.2f} in place of {:.2f} on `schools`".format(*pairs["schools"]) in text
    assert "and {:.3f} in place of {:.3f} on `movies`".format(*pairs["movies"]) in text
    assert {f"{mean:.2f}" for mean in pairs["names"]} == {"78.96"}


def test_which_graphs_of_subgraphs_collapse() -> None:
    rows, text = pd.read_csv(collapse.stored("collapse-subgraphs"), keep_default_na=False), words(collapse.PAGE)
    first, last = (rows[rows["when"] == when].set_index(["method", "task"]) for when in ("first", "last"))
    sources, before = last["effective_sources"], first["effective_sources"]
    assert rows["task"].nunique() == 5
    assert {*first.loc["FedAux", "collapsed"]} == {"consensus"}
    assert {*last.loc["FedAux", "collapsed"]} == {"self"}
    assert f"with {sources['FedAux'].min():.2f} to {sources['FedAux'].max():.2f} effective sources" in text
    assert (sources["FED-PUB"] > before["FED-PUB"]).all()
    rest = last["collapsed"].drop("FedAux", level="method")[lambda words: words != ""]
    assert rest.to_dict() == dict.fromkeys([("FED-PUB", "amazon-photo"), ("FedGTA", "digits-graph")], "consensus")
    assert (sources["FedGTA"] - before["FedGTA"]).abs().max() < 0.3
    assert first.loc["FedGTA", "collapsed"]["digits-graph"] == "consensus"
    assert f"with at most {before['FedSheafHN'].max():.1f} effective sources, and ends with " in text
    assert f"ends with {sources['FedSheafHN'].min():.0f} to {sources['FedSheafHN'].max():.0f}." in text
    assert first.loc["FedSheafHN", "distance_to_self"].max() < 0.2


def test_which_graphs_collapse() -> None:
    rows = pd.read_csv(collapse.stored("collapse"), keep_default_na=False)
    page = collapse.PAGE.read_text(encoding="utf-8")
    assert fill(page, collapse=collapse.table) == page
    first, last = (rows[rows["when"] == when].set_index(["method", "task"]) for when in ("first", "last"))
    tasks = set(rows["task"])
    always = {"FedAMP", "pFedGAT", "SFL"}
    for method in always:
        assert {*first.loc[method, "collapsed"], *last.loc[method, "collapsed"]} == {"consensus"}
        assert {*last.loc[method].index} == tasks
    ended = last["collapsed"][lambda words: words != ""]
    assert {*ended.index} == {(method, task) for method in always for task in tasks} | {("GCFL+", "crackers")}
    assert {*ended} == {"consensus"}
    for method in ("CFL", "Direct matrix", "GCFL+"):
        assert {*first.loc[method, "collapsed"]} == {"consensus"}
    assert {*first.loc["FedFomo", "collapsed"]} == {"self"}
    assert last.loc["FedFomo", "effective_sources"].between(2, 3.1).all()
    share = last["effective_sources"] / last["clients"]
    assert share.loc[["FedAGHN", "pFedLA"]].min() >= 0.96
    change = last["effective_sources"] - first["effective_sources"]
    assert (change.loc[["CFL", "Direct matrix"]] < 0).all()
    assert (change.loc[["pFedGraph", "FedFomo"]] > 0).all()
