"""Yearly income per head in the 48 contiguous states of the USA, and the borders between the states.

Source: Regional Economic Information System, Bureau of Economic Analysis, U.S. Department of Commerce (public domain),
as the example `us_income` of libpysal 4.14.1 (BSD 3-Clause). Incomes relative to the national mean are the usual
measure of regional convergence: S. Rey, B. Montouri, "US Regional Income Convergence: A Spatial Econometric
Perspective" (Regional Studies, 1999).
"""

from pathlib import Path

import numpy as np

from fedweave.data.base import Dataset, symmetrise_edges
from fedweave.data.registry import dataset
from fedweave.data.sources.packaged import packaged_files

DIVISIONS = {
    "N Eng": "New England",
    "Mid Atl": "Middle Atlantic",
    "E N Cen": "East North Central",
    "W N Cen": "West North Central",
    "S Atl": "South Atlantic",
    "E S Cen": "East South Central",
    "W S Cen": "West South Central",
    "Mtn": "Mountain",
    "Pacific": "Pacific",
}


@dataset("us-income", "series")
def us_income(root: Path) -> Dataset:
    """Log of a state's income over the mean of all states in that year [48, 81], 1929 to 2009.

    The states' borders are the given relation, the census divisions the groups. `root` is not used.
    """
    import pandas as pd

    del root
    table, borders, states = packaged_files("us-income")
    from libpysal.io import open as open_file  # here, as `packaged_files` says how to install it

    incomes = pd.read_csv(table, index_col="Name").drop(columns="STATE_FIPS")  # dollars a head
    names, years = tuple(incomes.index), incomes.columns.to_numpy(dtype=np.int64)
    income = incomes.to_numpy(dtype=np.float64)
    regions = open_file(str(states))
    division = dict(zip(regions.by_col("STATE_NAME"), regions.by_col("SUB_REGION"), strict=True))
    neighbours = open_file(str(borders)).read().neighbors
    pairs = [(int(state), int(other)) for state, others in neighbours.items() for other in others]
    return Dataset(
        "us-income",
        "series",
        np.log(income / income.mean(0)).astype(np.float32),
        None,
        classes=0,
        time=((years - years[0]) / (years[-1] - years[0])).astype(np.float32),
        relation=symmetrise_edges(np.array(pairs).T, len(names)),
        names=names,
        group=np.array([[*DIVISIONS].index(division[name]) for name in names]),
        group_names=tuple(DIVISIONS.values()),
    )
