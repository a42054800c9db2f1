"""One self-contained page that shows a life. It needs no network."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave import plots
from fedweave.errors import format_count
from fedweave.files.atomic import write_atomic
from fedweave.lifecycle.life import Lifecycle
from fedweave.lifecycle.record import CHALLENGER, CHAMPION
from fedweave.lifecycle.roles import FIRST, MOVES
from fedweave.metrics import clip, higher_is_better, unit
from fedweave.report import html
from fedweave.results import format_interval, format_score
from fedweave.results.repetitions import interval

if TYPE_CHECKING:
    import pandas as pd

PAGE = "lifecycle.html"
MOST_PANELS = 40  # clients that are drawn, those with the worst scores first


def build(life: Lifecycle) -> Path:
    """Write the page of a life into its folder and return its path."""
    path = life.folder / PAGE
    write_atomic(path, html.render("fedweave.lifecycle", "lifecycle.html", lambda: context(life)))
    return path


def context(life: Lifecycle) -> dict[str, Any]:
    """The variables of the template."""
    ledger, now, record, drifts = life.deliveries.ledger, life.roles, life.record, life.drifts
    metric = str(record["metric"].iloc[-1]) if len(record) else ""
    styles = dict(zip((CHAMPION, CHALLENGER), plots.assign_styles(["a", "b"]).values(), strict=True))
    moves = [event.delivery for event in now.events if event.event in MOVES and event.event != FIRST]
    aside = life.deliveries.quarantined
    counts = [
        (len(ledger.arrivals), "delivery"),
        (len(life.deliveries.rows()), "row"),
        (len({*record["client"]}), "client"),
        (len(moves), "new champion"),
    ]
    order = _order(record, metric)
    return {
        "name": life.folder.resolve().name,
        "tiles": [format_count(count, noun).split(" ", 1) for count, noun in counts],
        "answers": [*_answers(life, metric)],
        "aside": aside,
        "metric": metric,
        "unit": unit,
        "mean": _draw_means(record, styles, metric, moves),
        "panels": _draw_clients(record, order[:MOST_PANELS], styles, metric, moves),
        "left_out": len(order) - len(order[:MOST_PANELS]),
        "clients": [*_clients(record, order, metric)],
        "events": [*reversed(now.events)],
        "drifts": [(number, sentence) for number in sorted(drifts, reverse=True) for sentence in drifts[number]],
        "without_drift": sum(not sentences for sentences in drifts.values()),
        "drift": life.settings.drift,
        "arrivals": [*reversed(ledger.arrivals)],
        "test": life.describe_test(),
    }


def _answers(life: Lifecycle, metric: str) -> Iterator[tuple[str, str]]:
    """(topic, sentence) of what one asks first."""
    now, record, newest = life.roles, life.record, life.newest
    if now.champion is not None:
        event = next(one for one in reversed(now.events) if one.event in MOVES)
        model = f"{now.champion.method} of version {now.champion.version}"
        yield "Champion", f"{model}, since delivery {event.delivery}. {event.reason}"
    own = record[record["version"] == now.champion.version] if now.champion else record[:0]  # also as a challenger
    if len(own):
        last = own[own["delivery"] == own["delivery"].max()]
        mean, low, high = interval_of_mean(last["score"].to_numpy(dtype=float), metric)
        span = f" (95 % interval {format_interval(low, high, metric)})" if math.isfinite(low) else ""
        score = f"{metric} {format_score(mean, math.nan, metric)}{unit(metric)}"
        over = format_count(len(last), "client")
        yield "How good is it?", f"{score} over {over} in delivery {int(last['delivery'].iloc[0])}{span}."
    yield "Is a better one in sight?", life.describe_test()
    if newest in life.drifts:
        yield "Does a client drift?", " ".join(life.drifts[newest]) or f"None in delivery {newest}."
    count = len(life.deliveries.quarantined)
    yield "Is a delivery waiting?", f"{format_count(count, 'delivery')} in quarantine." if count else "None."


def interval_of_mean(scores: np.ndarray, metric: str) -> tuple[float, float, float]:
    """(mean, low, high): the 95 % interval of the mean over clients, by Student's t; NaN for one client."""
    scores = scores[np.isfinite(scores)]
    if not len(scores):
        return math.nan, math.nan, math.nan
    low, high = clip(metric, interval(scores))
    return float(scores.mean()), float(low), float(high)


def _draw_means(record: "pd.DataFrame", styles: Any, metric: str, moves: list[int]) -> list[str]:
    """The means over clients, wide and narrow; nothing without scores."""
    import pandas as pd

    if not len(record):
        return []
    rows = []
    for (role, number), part in record.groupby(["role", "delivery"]):
        interval_ends = interval_of_mean(part["score"].to_numpy(dtype=float), metric)
        rows.append((role, number, part["version"].iloc[0], *interval_ends))
    means = pd.DataFrame(rows, columns=["role", "delivery", "version", "score", "low", "high"])
    return [plots.over_deliveries(means, styles, metric, moves, narrow=narrow) for narrow in (False, True)]


def _order(record: "pd.DataFrame", metric: str) -> list[str]:
    """The clients of the champion, those with the worst mean score first."""
    means = record[record["role"] == CHAMPION].groupby("client")["score"].mean()
    return [str(name) for name in means.sort_values(ascending=higher_is_better(metric), kind="stable").index]


def _draw_clients(record: "pd.DataFrame", names: list[str], styles: Any, metric: str, moves: list[int]) -> list[str]:
    """The panels of clients, wide and narrow; nothing without scores."""
    if not names:
        return []
    place = {name: i for i, name in enumerate(names)}
    own = record[record["client"].isin(names)].sort_values("client", key=lambda names: names.map(place), kind="stable")
    return [plots.clients_over_deliveries(own, styles, metric, moves, narrow=narrow) for narrow in (False, True)]


def _clients(record: "pd.DataFrame", order: list[str], metric: str) -> Iterator[dict[str, Any]]:
    """A row of the table for each client."""
    own = record[record["role"] == CHAMPION]
    for name in order:
        rows = own[own["client"] == name].sort_values("delivery")
        last, mean = rows.iloc[-1], float(rows["score"].mean())
        yield {
            "client": name,
            "delivery": int(last["delivery"]),
            "rows": int(last["rows"]),
            "all": int(rows["rows"].sum()),
            "score": format_score(float(last["score"]), math.nan, metric),
            "key": float(last["score"]),
            "interval": format_interval(float(last["low"]), float(last["high"]), metric),
            "mean": format_score(mean, math.nan, metric),
            "mean_key": mean,
            "calibration": f"{last['calibration']:.3f}" if np.isfinite(last["calibration"]) else "",
            "coverage": f"{last['coverage']:.0%}" if np.isfinite(last["coverage"]) else "",
        }
