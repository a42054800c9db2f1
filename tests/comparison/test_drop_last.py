"""`drop_last`: a last batch with fewer rows is left out, as other frameworks do, and the record says so."""

from pathlib import Path

import numpy as np

import fedweave as fw

ROWS = 10  # training rows of a client


def trained(out: Path, **settings: object) -> tuple[float, dict]:
    """The mean loss of one round with one learning rate, and the recorded settings of the training."""
    draws = np.random.default_rng(0)
    x, y = draws.normal(size=(60, 3)), draws.integers(2, size=60)
    split = (["train"] * ROWS + ["val"] * 5 + ["test"] * 5) * 3
    federation = fw.Federation.from_arrays(x, y, client=np.repeat(["a", "b", "c"], 20), split=split)
    run = fw.fit("local", federation, rounds=1, lr=0.3, metric="log_loss", progress=False, out=out, **settings)
    return float(run.scores.mean()), run.run.info["spec"]["train"]


def test_a_last_batch_with_fewer_rows_is_left_out(tmp_path: Path) -> None:
    """Ten rows in batches of five have none, in batches of six they have; a client keeps the only batch that it has."""
    names = iter(range(9))
    scores = {
        (size, drop): trained(
            tmp_path / str(next(names)), batch_size=size, **({} if drop is None else {"drop_last": drop})
        )
        for size, drop in ((5, None), (5, True), (6, None), (6, False), (6, True), (32, None), (32, True))
    }
    assert scores[5, None][0] == scores[5, True][0]
    assert scores[32, None][0] == scores[32, True][0]
    assert scores[6, None][0] == scores[6, False][0]
    assert scores[6, None][0] != scores[6, True][0]
    assert "drop_last" not in scores[6, None][1]  # records of before are those of today
    assert scores[6, True][1]["drop_last"] is True
