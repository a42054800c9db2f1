"""A race and its learning curve count the clients of one unit as one, as the last comparison does."""

import numpy as np
import pandas as pd

from fedweave.recommendation import finals
from fedweave.results import load_run
from fedweave.results.repetitions import interval
from tests.fake_results import write_run

SHARING = [client // 2 for client in range(8)]


def test_the_intervals_of_a_learning_curve_are_over_units() -> None:
    draws = np.random.default_rng(0)
    scores = {share: pd.DataFrame(draws.normal(50 * share, 1, size=(3, 8))) for share in (0.25, 0.5, 1.0)}
    rows = finals._curve(scores, SHARING, "mae").set_index("share")
    units = {share: frame.to_numpy().reshape(3, 4, 2).mean(2) for share, frame in scores.items()}
    for share, values in units.items():
        np.testing.assert_allclose(rows.loc[share, ["low", "high"]].astype(float), interval(values))
        np.testing.assert_allclose(rows["mean"][share], scores[share].to_numpy().mean())
    gained = units[1.0] - units[0.25]
    expected = (gained.mean(), *interval(gained))
    np.testing.assert_allclose(rows.loc[0.25, ["gain", "gain_low", "gain_high"]].astype(float), expected)
    alone = finals._curve(scores, None, "mae").set_index("share")
    np.testing.assert_allclose(alone.loc[1.0, ["low", "high"]].astype(float), interval(scores[1.0]))


def test_the_slope_of_validation_scores_is_over_units(tmp_path) -> None:
    ways = []
    for name, block in {"apart": {}, "paired": {"sharing": SHARING}}.items():
        folder = write_run(tmp_path / name, "t", "FedAvg", 0.0, block, (0, 1), 8, 12, np.random.default_rng(0))
        ways.append(finals.slope(load_run(folder)))
    assert ways[0][0] == ways[1][0]
    assert ways[0][1:] != ways[1][1:]
