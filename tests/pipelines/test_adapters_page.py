"""The page of the study `adapters` says what its tables in docs/boards say."""

import pandas as pd
import pytest

from tools.docs import adapters, boards
from tools.pages import fill, find_blocks

TEXT = " ".join(adapters.PAGE.read_text(encoding="utf-8").split())


@pytest.fixture(scope="module")
def board() -> pd.DataFrame:
    return adapters.read_board().set_index(["data", "arm", "method"])


def differences(data: str, arm: str, other: str) -> dict[str, tuple[float, str]]:
    """Method -> (difference of two arms, verdict)."""
    found = {}
    for test in adapters.compare_arms(data):
        (name, first), (_, second) = test.method.split("|"), test.other.split("|")
        if (first, second) == (arm, other):
            found[name] = test.difference, test.verdict
    return found


def test_the_page_shows_the_files() -> None:
    page = adapters.PAGE.read_text(encoding="utf-8")
    assert len(find_blocks(page, "board")) == 7
    assert len(find_blocks(page, "adapters")) == 4
    assert fill(page, board=boards.board, adapters=adapters.table) == page


def test_no_other_method_of_the_front_is_as_good_for_fewer_bytes() -> None:
    points = pd.DataFrame({"mib": [2.0, 1.0, 1.0, 3.0, 4.0], "mean": [5.0, 4.0, 3.0, 5.0, 6.0]})
    assert adapters.pareto(points).index.tolist() == [1, 0, 4]
    assert len(adapters.draw(adapters.read_board()).axes) == 2


def test_what_adapters_save(board: pd.DataFrame) -> None:
    arms = ("whole", "lora", "head")
    sent = {data: [f"{board['mib'][data, arm, 'FedAvg']:.1f}" for arm in arms] for data in adapters.DATA}
    assert "On `digits` FedAvg sends {} MiB with all layers, {} with LoRA and {} with".format(*sent["digits"]) in TEXT
    assert "on `names` {}, {} and {}".format(*sent["names"]) in TEXT
    assert f"{len(board)} runs" in TEXT


def test_what_adapters_cost() -> None:
    lora, head = ({data: differences(data, arm, "whole") for data in adapters.DATA} for arm in ("lora", "head"))
    assert {verdict for _, verdict in lora["digits"].values()} == {"open"}
    low, *_, high = sorted(difference for difference, _ in lora["digits"].values())
    assert f"differ by {low:+.1f} to {high:+.1f} points" in TEXT
    worse = sorted(-difference for difference, verdict in lora["names"].values() if verdict == "worse")
    assert {name for name, (_, verdict) in lora["names"].items() if verdict != "worse"} == {"Local"}
    assert f"is worse with LoRA, by {worse[0]:.1f} to {worse[-1]:.1f} points" in TEXT
    sizes = {data: sorted(-difference for difference, _ in head[data].values()) for data in head}
    assert {verdict for data in head for _, verdict in head[data].values()} == {"worse"}
    assert "by {:.1f} to {:.1f} points on `digits`".format(*sizes["digits"][:: len(sizes["digits"]) - 1]) in TEXT
    assert "and by {:.1f} to {:.1f} on `names`".format(*sizes["names"][:: len(sizes["names"]) - 1]) in TEXT


def test_which_method(board: pd.DataFrame) -> None:
    better = board["vs_local"].eq("better").groupby(["data", "arm"]).sum()
    methods = board.drop("Local", level="method").groupby(["data", "arm"]).size()
    assert all(better[data, "whole"] == methods[data, "whole"] for data in adapters.DATA)
    counts = [f"{better[data, 'lora']} of {methods[data, 'lora']} on `{data}`" for data in ("digits", "names")]
    assert f"with LoRA, {counts[0]} and {counts[1]}" in TEXT
    heads = board.xs("head", level="arm")
    assert [*heads.index[heads["vs_local"] == "better"]] == [("digits", "SHN")]
    scores = heads.loc["digits", "mean"]
    assert f"{scores['SHN']:.1f} % in place of {scores['Local']:.1f} %" in TEXT
    assert [*board.index[board["vs_fedavg_ft"] == "better"]] == [("digits", "head", "SHN")]
    fronts = [adapters.pareto(rows[rows["mib"] > 0]) for _, rows in adapters.read_board().groupby("data")]
    middle = pd.concat(fronts).query("2 < mib < 20")
    assert {*middle["method"]} == {"FedPer", "FedAGHN", "SHN", "pFedGraph"}
    assert {*middle["arm"]} == {"lora"}


def test_which_graph_shows_the_groups() -> None:
    rows = adapters.read_graphs().set_index(["data", "method", "arm", "layer"]).sort_index()
    values, shows = rows["auc"], rows["shows"]
    for method, data, words in (
        ("FedAGHN", "digits", "an AUC of {:.2f} to {:.2f} on `digits`"),
        ("FedAGHN", "names", "and {:.2f} to {:.2f} for the branches of languages"),
    ):
        lora = values.loc[data, method, "lora"]
        assert words.format(lora.min(), lora.max()) in TEXT
    assert shows.xs("FedAGHN", level="method").all()
    assert rows["chance"].loc["names", "FedAGHN"].max() < 0.56
    graph = [values[data, "pFedGraph", "lora", "all layers"] for data in ("digits", "names")]
    assert (
        f"one graph for all layers: {graph[0]:.2f} and {graph[1]:.2f}; with all layers trained on `names` it has"
        in TEXT
    )
    assert f"it has {values['names', 'pFedGraph', 'whole', 'all layers']:.2f}, which is chance" in TEXT
    assert not shows["names", "pFedGraph", "whole", "all layers"]
    assert f"show little, {values.xs('pFedLA', level='method').max():.2f} at most" in TEXT
    assert not shows.xs("SHN", level="method").any()
    aghn = values.xs("FedAGHN", level="method").unstack("arm").dropna(subset=["whole", "lora"])
    assert (aghn["whole"] - aghn["lora"]).abs().max() < 0.015


def test_factors_and_products() -> None:
    found = differences("digits", "product", "lora")
    assert {verdict for _, verdict in found.values()} == {"open"}
    words = f"{found['FedAvg'][0]:.1f} and {found['FedAvg-FT'][0]:.1f} points higher on `digits`, and both are open"
    assert words in TEXT
