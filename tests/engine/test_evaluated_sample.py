"""Evaluation of a sample of the clients: the same clients for all methods, and the scores of a full evaluation."""

from dataclasses import replace

import pytest
import tiny
import torch

from fedweave.engine.engine import run
from fedweave.engine.executors import Loop
from fedweave.engine.records import Settings
from fedweave.engine.schedule import evaluation_sample
from fedweave.methods import METHODS
from fedweave.tensors import dropout_keys, trees
from fedweave.testing.contract import CLOSE, SOME, assert_close

KINDS = ("rows", "nodes", "images", "series")
METHODS_ON = [(name, next(kind for kind in KINDS if kind in tiny.TASKS and tiny.suits(name, kind))) for name in METHODS]
MARKED = [pytest.param(*pair, marks=tiny.sweep(pair[0])) for pair in METHODS_ON]


@pytest.mark.parametrize(("name", "kind"), MARKED)
def test_sampled_clients_have_the_scores_of_a_full_evaluation(name: str, kind: str) -> None:
    """Training keeps its bits. The scores and models of these clients are those of a full evaluation."""
    method, federation = tiny.pair(name, kind)
    settings = replace(SOME, edges=1)
    sampled = replace(federation, evaluated=torch.tensor([False, True, False, False, True]))
    *_, full = run(method, federation, settings, Loop())
    *_, some = run(method, sampled, settings, Loop())
    assert_close(some.state, full.state, 0.0, "the state with a sample, and without")
    expected = trees.take((full.scores, full.models), sampled.sample)
    assert_close((some.scores, some.models), expected, CLOSE, "a sample, and these clients of all")
    expected_edges = [row for row in full.edges if row.learner in (1, 4)]
    assert [row[:3] for row in expected_edges] == [row[:3] for row in some.edges]
    assert_close(*(torch.tensor([row[3:] for row in rows]) for rows in (expected_edges, some.edges)), CLOSE)


def test_the_sample_is_a_function_of_seed_and_identities() -> None:
    """The order of clients has no effect. Another seed gives another one. With 0, or N or more, all are evaluated."""
    ids = torch.arange(50)
    mask = evaluation_sample(3, ids, 7)
    assert mask is not None
    assert mask.sum() == 7
    order = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    moved = evaluation_sample(3, ids[order], 7)
    assert moved is not None
    assert torch.equal(moved, mask[order])
    smaller, other = evaluation_sample(3, ids, 4), evaluation_sample(4, ids, 7)
    assert smaller is not None
    assert other is not None
    assert (smaller <= mask).all(), "a smaller sample is a part of a larger one"
    assert not torch.equal(other, mask)
    assert evaluation_sample(3, ids, 0) is None
    assert evaluation_sample(3, ids, 50) is None
    assert evaluation_sample(3, ids, 51) is None


def test_there_are_no_scores_before_an_evaluated_client_has_joined() -> None:
    """A sample of newcomers only has scores from the round in which they join."""
    task, federation = (make() for make in tiny.TASKS["rows"])
    late = replace(federation, evaluated=torch.tensor([False, False, False, True, True]))
    settings = Settings(rounds=3, newcomers=2, join_round=2)
    reports = [*run(tiny.method("fedper", task, "rows"), late, settings, Loop())]
    assert [len(report.scores.get("pre", {}).get("test", ())) for report in reports] == [0, 0, 2]


def test_single_rows_of_draws_are_those_of_the_matrix() -> None:
    key, rows = dropout_keys.key(1, 2), torch.tensor([4, 0])
    assert torch.equal(dropout_keys.uniform_rows(key, rows, 3), dropout_keys.uniform(key, (5, 3))[rows])
