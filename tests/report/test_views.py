"""Parts of the page and its figures that readers may misread: marks, methods without all tasks, axes, names on maps."""

import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedweave import plots, report, results
from fedweave.plots.structure import place_labels
from fedweave.report import ablations, html, optional_files, page, picture
from fedweave.report.board import BoardRow, Cell
from tests.fake_results import SKILL, write_study


@pytest.mark.usefixtures("undrawn")
def test_ablations_have_the_marks_of_the_legend(tmp_path: Path) -> None:
    """Tooltips have difference, interval, p and margin, and how many seeds would decide an open variant."""
    folder = write_study(tmp_path / "results" / "s", seeds=(0,), clients=4, rounds=2)
    cards = ablations.views(results.load_study(folder), plots.assign_styles([*SKILL])).cards
    drawn = [card for card in cards if card["figure"].title.endswith("FedAGHN on blobs")]
    rows = {row["name"]: row for card in drawn for row in card["rows"]}
    shown = {name: rows[name]["mark"] for name in ("as declared", "without p", "frozen p, q", "depth = 5")}
    assert shown == {"as declared": "", "without p": "▽", "frozen p, q": "?", "depth = 5": "≈"}
    assert rows["frozen p, q"]["title"] == (
        "open: neither a difference nor equivalence is shown; frozen p, q against as declared: "
        "1.20 points lower, 95 % interval 0.30 to 2.10 points lower, p = 0.4, margin 2.00; "
        "7 seeds would decide"
    )
    assert {card["margin"] for card in cards} == {"1 point"}


def test_the_declared_variant_has_a_ring(tmp_path: Path) -> None:
    table = optional_files.ablations(write_study(tmp_path / "results" / "s", seeds=(0,), clients=4, rounds=2))
    for _, part in table.groupby("ablation"):
        assert plots.ablation(part.assign(declared=0)) != plots.ablation(part)


def test_methods_without_a_score_on_some_task_are_last() -> None:
    """Their ranks are over fewer tasks: a method that leads its only task is not the best of the study."""
    rows = [("a", "M", 80.0), ("a", "N", 70.0), ("b", "Part", 90.0), ("b", "M", 80.0), ("b", "N", np.nan)]
    board = pd.DataFrame(rows, columns=["task", "method", "mean"]).assign(metric="accuracy")
    marks = {task: dict.fromkeys(part["method"], "equivalent") for task, part in board.groupby("task")}
    rows = page.overview(board, marks, plots.assign_styles(["M", "N", "Part"]))
    shown = [(row.method, row.rank, row.part) for row in rows]
    assert shown == [("M", "1.5", ""), ("Part", "1.0", "1 of 2 tasks"), ("N", "2.0", "1 of 2 tasks")]


@pytest.mark.parametrize(
    ("metric", "last", "logarithmic"), [("mse", 0.02, True), ("mse", 0.2, False), ("accuracy", 0.02, False)]
)
def test_an_error_with_a_large_decrease_has_a_logarithmic_axis(metric: str, last: float, logarithmic: bool) -> None:
    rows = [(name, r, value) for name in "ab" for r, value in enumerate(np.geomspace(0.4, last, 10), 1)]
    curves = pd.DataFrame(rows, columns=["method", "round", "mean"]).assign(std=0.05)
    drawn = plots.convergence(curves, plots.assign_styles(["a", "b"]), metric)
    assert ("logarithmic axis" in drawn) == logarithmic
    assert "mathdefault" not in drawn


def test_one_diverged_method_does_not_make_the_axis_logarithmic() -> None:
    rows = [(name, r, 1e9 if name == "d" else 0.2) for name in "abcde" for r in range(1, 9)]
    curves = pd.DataFrame(rows, columns=["method", "round", "mean"]).assign(std=0.0)
    assert "logarithmic" not in plots.convergence(curves, plots.assign_styles([*"abcde"]), "mse")


@pytest.mark.parametrize(("values", "curves"), [(("1", "2", "3"), 1), (("true", "false"), 0)])
def test_a_setting_without_numbers_has_no_curve(values: tuple[str, ...], curves: int) -> None:
    rows = [(method, method, f'{{"p": {value}}}') for method in ("Aa", "Bb") for value in values]
    table = pd.DataFrame(rows, columns=["ablation", "method", "settings"])
    table = table.assign(task="blobs", metric="accuracy", mean=50.0, std=1.0)
    assert len(list(ablations._sweep_figures(table, plots.assign_styles(["Aa", "Bb"])))) == curves


def test_costs_name_every_method_with_equal_traffic() -> None:
    board = pd.DataFrame({"method": ["Aa", "Bb", "Cc"], "mean": [3.0, 2.0, np.nan], "std": 0.1, "seconds": 5.0})
    drawn = plots.cost(board.assign(bytes_up=2**20, bytes_down=0), plots.assign_styles(["Aa", "Bb", "Cc"]), "accuracy")
    assert all(drawn.count(f">{name}<") == 1 for name in ("Aa", "Bb", "Cc"))


def test_names_on_a_map_cover_no_other_name_or_point() -> None:
    points = np.random.default_rng(0).uniform(0, 200, (60, 2))
    width = 40.0
    fits = place_labels(points, [width] * 60, 240)
    assert 5 < len(fits) < 60
    starts = {client: points[client, 0] + (5 if side == "left" else -5 - width) for client, side in fits}
    for one, start in starts.items():
        height = points[one, 1]
        for other, begin in starts.items():
            assert one == other or abs(points[other, 1] - height) >= 8 or abs(begin - start) >= width
        level = points[abs(points[:, 1] - height) < 8, 0]
        assert not ((start <= level) & (level <= start + width)).any()


def test_a_map_has_a_legend_of_more_groups_than_colours() -> None:
    names = [f"region {i}" for i in range(9)]
    places, edges = np.random.default_rng(0).normal(size=(18, 2)), np.empty((2, 0), dtype=int)
    drawn = plots.client_map(places, edges, np.arange(18) % 9, [f"c{i}" for i in range(18)], names)
    assert all(drawn.count(f">{name}<") == 1 for name in names)


@pytest.mark.usefixtures("undrawn")
@pytest.mark.parametrize("control", [True, False])
def test_the_page_explains_two_marks_of_one_pair(tmp_path: Path, control: bool) -> None:
    methods = {"Local": -9.0, "Ditto": 0.0} if control else {"FedAMP": -9.0, "Ditto": 0.0}
    folder = write_study(tmp_path / "results" / "s", methods=methods, clients=8, rounds=2, extras=False)
    text = report.build(folder).read_text(encoding="utf-8")
    assert ("the leaderboard's vs Local " in " ".join(text.split())) == control
    assert "seconds of all seeds" in text
    assert "Costs are of one seed" in text
    assert text.count("How the numbers are made</") == 2


def test_names_in_any_script_are_texts_of_a_figure() -> None:
    """The browser has fonts for them. The font that measures them here does not, which is not a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        svg = plots.collaboration(np.full((1, 2, 2, 2), 0.5), [1], ["北京", "Zürich"])
    assert "北京" in svg


@pytest.mark.parametrize(
    ("against_local", "said", "unsaid"),
    [
        ("?▲", ["▲ better.", "? open", "A larger difference to Local may be open"], ["▽", "≈"]),
        ("▲?", ["▲ better.", "? open"], ["may be open", "▽", "≈"]),
        ("≈▽", ["≈ equivalent: the difference is within 1 point", "▽ worse."], ["▲", "may be open"]),
    ],
)
def test_the_picture_of_a_task_explains_every_mark_that_it_has(
    against_local: str, said: list[str], unsaid: list[str]
) -> None:
    """A reader asks why a method is better than Local, and one with a higher mean is not."""
    names = [f"M{number}" for number in range(len(against_local))]
    rows = [
        BoardRow(name, 0, "alone", Cell("70.00"), {}, Cell(""), {"vs_local": Cell(f"{sign} 9.02 points higher")}, "")
        for name, sign in zip(names, against_local, strict=True)
    ]
    view = {
        "picture": picture.Picture(rows, [], [], [], (), np.nan),
        "metric": "accuracy",
        "higher_is_better": True,
        "interval": "95 % interval",
        "margin": "1 point",
    }
    context = {"styles": plots.assign_styles(names), "spell_out": str}
    parts = html._environment("fedweave.report").get_template("parts.html").make_module(context)
    key = " ".join(str(parts.forest(view)).partition('<p class="key">')[2].split())  # type: ignore[attr-defined]
    assert [text for text in said if text not in key] == []
    assert [text for text in unsaid if text in key] == []
