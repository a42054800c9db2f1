"""One self-contained page that shows a recommendation. It needs no network."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd

from fedweave import plots, results
from fedweave.comparison.comparison import Comparison
from fedweave.files.atomic import write_atomic
from fedweave.metrics import spell_out, unit
from fedweave.prediction.input_description import read_description
from fedweave.report import html, picture
from fedweave.report.board import CSS_CLASSES, BoardRow, Cell, score_range
from fedweave.results import EMPTY, format_score
from fedweave.results.formats import format_change, format_change_interval, format_p
from fedweave.results.marks import SYMBOLS

PAGE = "recommendation.html"
FIRST = ("Best", "Does collaboration pay?", "Deploy")  # topics above the picture
MARKS = {"leads": "lead", "worse": "behind"}  # verdict against the leader -> its word in the picture
STYLES = {"gains": "win", "better": "win", "loses": "loss", "worse": "loss", "open": "open"}


class Advice(Protocol):
    """What the page shows; see `Recommendation`."""

    @property
    def folder(self) -> Path: ...
    @property
    def comparison(self) -> Comparison: ...
    @property
    def facts(self) -> Mapping[str, Any]: ...
    @property
    def method(self) -> str: ...
    @property
    def lines(self) -> Sequence[Any]: ...
    @property
    def note_on_local(self) -> str: ...
    @property
    def groups(self) -> Sequence[Sequence[str]]: ...
    @property
    def race(self) -> pd.DataFrame: ...
    @property
    def board(self) -> pd.DataFrame: ...
    @property
    def clients(self) -> pd.DataFrame: ...
    @property
    def rows(self) -> pd.DataFrame: ...
    @property
    def graph(self) -> pd.DataFrame | None: ...


def build(advice: Advice) -> Path:
    """Write the page of a recommendation into its folder and return its path."""
    path = advice.folder / PAGE
    write_atomic(path, html.render("fedweave.recommendation", "recommendation.html", lambda: context(advice)))
    return path


def context(advice: Advice) -> dict[str, Any]:
    """The variables of the template."""
    comparison = advice.comparison
    study = results.load_study(advice.folder)
    labels = dict(zip(advice.board["method"], advice.board["label"], strict=True))
    metric = str(advice.facts["metric"])
    recommended = "" if advice.facts.get("under_trained") else advice.method
    return {
        "name": comparison.study.runs[0].info["dataset"],
        "answers": [(line.topic, *_split(line.text)) for line in advice.lines if line.topic in FIRST],
        "lines": [line for line in advice.lines if line.topic not in FIRST],
        "view": _first_screen(advice, study, metric),
        "styles": plots.assign_styles(list(advice.board["label"]), list(advice.board["label"])),
        "predicts": recommended and read_description(advice.folder, study.runs[0].task).get("kind", "graph") != "graph",
        "folder": shlex.quote(str(advice.folder)),
        "client": shlex.quote(str(comparison.clients[0])),
        "notes": advice.facts["notes"],
        "tiles": _tiles(advice, len(comparison.clients)),
        "metric": metric,
        "direction": "higher" if study.runs[0].higher_is_better else "lower",
        "unit": unit,
        "spell_out": spell_out,
        "board": [_format_method(row, metric) for row in advice.board.to_dict("records")],
        "controls": [(row["method"], row["score"]) for row in results.control_rows(results.controls(study))],
        "clients": list(_gains(advice, labels, metric)),
        "graph": _graph(advice),
        "graph_method": labels.get(advice.facts["woven"], ""),
        "tests": [
            {**test, "text": format_change(test["difference"], metric), "p": format_p(test["p"])}
            for test in advice.facts["graph_tests"]
        ],
        "rows": [_format_share(row, metric) for row in advice.rows.to_dict("records")],
        "curve": _curve(advice, study, metric),
        "narrow_curve": _curve(advice, study, metric, narrow=True),
        "race": [_format_candidate(row, metric) for row in advice.race.to_dict("records")],
        "recommended": recommended,
        "note_on_local": advice.note_on_local,
        "facts": advice.facts,
        "margin": advice.facts["margin"],
    }


def _split(text: str) -> tuple[str, str]:
    """(the answer itself, which is the first sentence or what stands before a colon; the rest)."""
    ends = [end for mark in (": ", ". ") if (end := text.find(mark)) >= 0]
    end = min(ends) + 1 if ends else len(text)
    return text[:end], text[end:]


def _first_screen(advice: Advice, study: results.Study, metric: str) -> dict[str, Any]:
    """What `forest` of the report draws: finalists and controls, with the verdicts of the recommendation: against the
    method that is best on validation rows, and against local training.
    """
    board, margin = advice.board.rename(columns={"test": "mean"}).assign(metric=metric), study.margin(metric)
    leads, (low, high) = board[board["verdict"] == "leads"]["mean"], score_range(board)
    scale, rows = 100 / (high - low), []
    for series, row in enumerate(board.to_dict("records")):
        ends = np.array([row["low"], row["high"], row["mean"]])
        left, right, at = (ends - low) * scale
        place = {"left": left, "width": right - left, "at": at} if np.isfinite(ends).all() else {}
        word = str(row["verdict_local"]).replace("no verdict", "")
        difference = f"{SYMBOLS.get(word, '')} {format_change(row['over_local'], metric)}"
        local = Cell(difference if word in SYMBOLS and word else "", style=CSS_CLASSES.get(word, ""))
        mark, score = MARKS.get(row["verdict"], row["verdict"]), Cell(format_score(row["mean"], np.nan, metric))
        interval = Cell(results.format_interval(row["low"], row["high"], metric))
        rows.append(BoardRow(row["label"], series, mark, score, place, interval, {"vs_local": local}, ""))
    drawn = picture.draw(board, rows, results.controls(study), margin, float(leads.iloc[0]) if len(leads) else None)
    note = "The leader is the collaborating method that is best on validation rows."
    if any(advice.facts["own"].values()):
        note += " Against Local: clients that do worse on validation rows keep their own model."
    return {
        "picture": drawn,
        "metric": metric,
        "higher_is_better": study.runs[0].higher_is_better,
        "interval": "95 % interval" + " over clients" * int(len(advice.facts["seeds"]) == 1),
        "margin": margin.describe(metric),
        "note": note,
    }


def _tiles(advice: Advice, clients: int) -> list[tuple[str, str]]:
    methods = advice.race["method"].nunique()
    seconds = float(advice.facts["seconds"])
    duration = f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"
    tiles = [(clients, "clients"), (methods, "methods"), (advice.race["candidate"].nunique(), "candidates")]
    return [*((str(number), word) for number, word in tiles), (duration, "in all")]


def _format_method(row: dict[str, Any], metric: str) -> dict[str, Any]:
    return {
        **row,
        "style": STYLES.get(row["verdict"], "quiet"),
        **{name: format_score(row[name], np.nan, metric) for name in ("validation", "test")},
        "interval": results.format_interval(row["low"], row["high"], metric),
        "difference": "" if row["verdict"] == "leads" else format_change(row["difference"], metric),
        "p": format_p(row["p"]),
        "models": "one" if row["models"] == 1 else f"{row['models']}",
        **{name: _format_number(row[name]) for name in ("mib", "seconds", "server_mib", "client_mib")},
    }


def _gains(advice: Advice, labels: dict[str, str], metric: str) -> Iterator[dict[str, Any]]:
    """The bars of the clients for every method, the recommended one first; positions are in percent of the width."""
    if advice.clients.empty:
        return
    ends = {name: advice.clients[name].fillna(advice.clients["difference"]) for name in ("low", "high")}
    low, high = min(0.0, float(ends["low"].min())), max(0.0, float(ends["high"].max()))
    scale = 100 / ((high - low) or 1.0)
    clients = advice.clients.assign(left=(ends["low"] - low) * scale, width=(ends["high"] - ends["low"]) * scale)
    methods = [name for name in advice.board["method"] if (advice.clients["method"] == name).any()]
    for method in sorted(methods, key=lambda name: name != advice.method):
        rows = clients[clients["method"] == method].sort_values("difference", kind="stable")
        bars = [
            {
                "client": row["client"],
                "left": row["left"],
                "width": row["width"],
                "position": (row["difference"] - low) * scale,
                "zero": -low * scale,
                "text": format_change(row["difference"], metric),
                "span": format_change_interval(row["low"], row["high"], metric),
                "verdict": row["verdict"],
                "style": STYLES.get(row["verdict"], "quiet"),
                "score": format_score(row["score"], np.nan, metric),
                "local": format_score(row["local"], np.nan, metric),
            }
            for row in rows.to_dict("records")
        ]
        yield {"method": method, "label": labels[method], "bars": bars}


def _graph(advice: Advice) -> str:
    if advice.graph is None:
        return ""
    names, client_groups = [str(name) for name in advice.graph.index], advice.groups
    number = {name: k for k, group in enumerate(client_groups) for name in group}
    group = np.array([number[name] for name in names]) if client_groups else None
    titles = [f"group {k + 1}" for k in range(len(client_groups))]
    return plots.graph(advice.graph.to_numpy(), names, group, titles)


def _format_share(row: dict[str, Any], metric: str) -> tuple[str, str, str, str]:
    gain = "" if not np.isfinite(row["gain"]) else format_change(row["gain"], metric)
    span = format_change_interval(row["gain_low"], row["gain_high"], metric) if gain else ""
    return f"{100 * row['share']:.0f} %", format_score(row["mean"], np.nan, metric), gain, span


def _curve(advice: Advice, study: results.Study, metric: str, narrow: bool = False) -> str:
    """Validation score by round of the recommended method and local training; `narrow`: for the screen of a phone."""
    runs = {run.name.removeprefix(f"{run.task}-"): run for run in study.runs}
    names = dict.fromkeys((advice.method, advice.facts["rival"], advice.facts["alone"]))
    selection = [runs[name] for name in names if name in runs]
    reported = results.reported_curves(results.curves(study), selection, "val")
    labels = [run.label for run in selection]
    return plots.convergence(reported, plots.assign_styles(labels, labels), metric, bold=labels, narrow=narrow)


def _format_candidate(row: dict[str, Any], metric: str) -> dict[str, Any]:
    shown = {"settings": row["settings"] or "declared", "validation": format_score(row["validation"], np.nan, metric)}
    return {**row, **shown, **{name: _format_number(row[name]) for name in ("seconds", "mib")}}


def _format_number(value: float) -> str:
    return f"{value:.3g}" if np.isfinite(value) else EMPTY
