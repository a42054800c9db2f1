"""Federations of runs: attackers, weights of classes, and the groups of clients that are reported separately."""

from dataclasses import replace

import pytest
import tiny
import torch

from fedweave import data
from fedweave.runs import federations, repetition
from fedweave.study import spec
from fedweave.threats.attacks import choose_attackers
from tests.runs.test_diagnostics import prepare_run
from tests.study.test_spec import good


def test_attackers_depend_on_the_seed_of_the_partition() -> None:
    """All methods and repetitions of a task have the same attackers."""
    prepared = prepare_run("fedavg_ft", {"name": "iid", "clients": 20})
    chosen = []
    for seed in (1, 2):
        task = replace(
            prepared.run.task,
            attack={"kind": "sign_flip", "share": 0.3, "scale": 2.0},
            partition={**prepared.run.task.partition, "seed": seed},
        )
        attack = federations.add_attackers(prepared.federation, task).attack
        assert attack is not None
        assert (attack.kind, attack.scale) == ("sign_flip", 2.0)
        assert torch.equal(attack.attackers, choose_attackers(20, 0.3, seed))
        chosen.append(attack.attackers)
    assert not torch.equal(*chosen)


def test_reported_groups_have_evaluated_clients_only() -> None:
    """A group without evaluated clients is omitted."""
    late = prepare_run("fedavg_ft", {"name": "iid"}, **{"train.newcomers": 2, "train.join_round": 1})
    for evaluated, expected in (
        ([0, 2, 4], {"newcomers": [4], "from the start": [0, 2]}),
        ([0, 1], {"from the start": [0, 1]}),
    ):
        mask = torch.zeros(5, dtype=torch.bool).index_fill(0, torch.tensor(evaluated), True)
        assert federations.cohorts(late.run, replace(late.federation, evaluated=mask)) == expected


@pytest.mark.parametrize("kind", ["rows", "nodes"])
def test_balanced_weights_count_the_classes_that_a_client_has(kind: str) -> None:
    """The mean weight of a client's training rows is 1. Each of its classes has the same total. The other classes have
    0.
    """
    federation = tiny.TASKS[kind][1]()
    name = "own" if kind == "nodes" else "shared"
    first = federation.train[0][federation.train[0] >= 0]
    y = getattr(federation, name)["y"].clone()
    (y[0] if kind == "nodes" else y)[first] = torch.arange(len(first)) % 2  # the first client lacks class 2
    federation = replace(federation, **{name: {**getattr(federation, name), "y": y}})
    weights = federations.add_balanced_weights(federation).own["class_weight"]
    assert weights[0, 2] == 0
    for i, rows in enumerate(federation.train):
        labels = (y[i] if kind == "nodes" else y)[rows[rows >= 0]]
        assert float(weights[i][labels].mean()) == pytest.approx(1)
        totals = torch.bincount(labels, minlength=tiny.CLASSES) * weights[i]
        assert totals[totals > 0].tolist() == pytest.approx([len(labels) / len(labels.unique())] * len(labels.unique()))


def test_all_splits_evaluate_the_same_clients() -> None:
    """The sample is that of the first split, although the rows of every split differ."""
    content = good("fedavg")
    block = {"name": "iid", "clients": 12, "seeds": [5, 6]}
    content["tasks"]["digits"] |= {"partition": block, "evaluate": {"clients": 4}}
    run, dataset = spec.parse(content).run("a"), data.load("digits", "unused")
    prepared = repetition.prepare(run, dataset, data.partition(dataset, **data.splits(block)[0]))
    first, second = (prepared.for_seed(seed).federation for seed in (0, 1))
    assert not torch.equal(first.train, second.train)
    assert torch.equal(first.sample, second.sample)
    assert len(first.sample) == 4
