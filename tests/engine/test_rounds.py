"""The rounds of a run: the data that clients may use, the seeds of a run's start, and the stages of a method."""

from dataclasses import dataclass, field
from typing import Any

import pytest
import tiny
import torch
from torch import Tensor

from fedweave.client.data import ClientData
from fedweave.client.solvers import SGD
from fedweave.engine.engine import run, run_round
from fedweave.engine.evaluation import evaluate
from fedweave.engine.executors import Loop
from fedweave.engine.protocol import Method, Server, Stage, Start, Update
from fedweave.engine.records import Report, Settings
from fedweave.engine.schedule import Training, participants
from fedweave.engine.start import begin
from fedweave.engine.timeline import Timeline
from fedweave.engine.uploads import UploadPath
from fedweave.families import GlobalModel, SplitClient
from fedweave.tensors.trees import Tree
from fedweave.threats.privacy import Privacy

PRIVATE = UploadPath(privacy=Privacy(clip=1.0, noise=0.5))


@dataclass(frozen=True, kw_only=True)
class Observer(SplitClient, GlobalModel):
    """FedAvg-FT that records what its hooks get.

    Attributes:
        seen: (hook, number of test rows) of every call of a client's hooks.
        starts: what the server got before round 0 and at the beginning of a stage.
        warm_up: rounds of a first stage, which enrols as the second one does; 0 for none.
    """

    label = "Observer"
    seen: list[tuple[str, int]] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)
    warm_up: int = 0

    def enrol(self, model: Tree, data: ClientData) -> Tree:
        self.seen.append(("enrol", len(data.test)))
        return {"zeros": torch.zeros(4, dtype=torch.float64)}

    def init(self, start: Start) -> Server:
        self.starts.append(start)
        return super().init(start)

    def client_update(self, shared: Tree, own: Tree, client: Tree, data: ClientData) -> Update:
        self.seen.append(("client_update", len(data.test)))
        return super().client_update(shared, own, client, data)

    def personalize(self, shared: Tree, own: Tree, client: Tree, data: ClientData) -> Tree:
        self.seen.append(("personalize", len(data.test)))
        return super().personalize(shared, own, client, data)

    def stages(self, rounds: int) -> list[Stage]:
        return (
            [Stage(self, self.warm_up), Stage(self, rounds, self.take_over)] if self.warm_up else super().stages(rounds)
        )

    def take_over(self, server: Server, start: Start) -> Server:
        """The server of the second stage is that of the first one."""
        self.starts.append(start)
        return server


def observer(**options: Any) -> Observer:
    """The method on vectors."""
    training = Training(batch_size=4, epochs=1)
    return Observer(task=tiny.rows_task(), solver=SGD(lr=0.1), training=training, **options)


def run_rounds(method: Method, **settings: Any) -> list[Report]:
    """All rounds of a run on the toy of vectors."""
    return [*run(method, tiny.rows_federation(), Settings(**{"rounds": 2, **settings}), Loop())]


def test_clients_have_no_test_rows_while_they_train() -> None:
    """Only an evaluation has them, and the training of a method that declares its leak."""
    method, federation = observer(), tiny.rows_federation()
    state = begin(method, federation, 0, Loop())
    state, _, _ = run_round(method, state, federation, Settings(rounds=1), Loop(), shadow=True)
    assert {hook for hook, _ in method.seen} == {"enrol", "client_update", "personalize"}
    assert {rows for _, rows in method.seen} == {0}
    method.seen.clear()
    evaluate(method, state, federation, Settings(rounds=1), Loop())
    assert {*method.seen} == {("personalize", federation.test.shape[1])}
    leaky = type("Leaky", (Observer,), {"leaks": property(lambda self: True)})
    method = leaky(task=method.task, solver=method.solver, training=method.training)
    run_round(method, state, federation, Settings(rounds=1), Loop())
    assert ("client_update", federation.test.shape[1]) in method.seen


def test_every_seed_has_its_own_start() -> None:
    """Another seed gives another common model and another seed of the server."""
    starts = []
    for seed in (0, 1, 0):
        method = observer()
        begin(method, tiny.rows_federation(), seed, Loop())
        starts += method.starts
    assert starts[0].seed == starts[2].seed != starts[1].seed
    assert all(torch.equal(value, starts[2].model[name]) for name, value in starts[0].model.items())
    assert not torch.equal(starts[0].model["fc1.weight"], starts[1].model["fc1.weight"])


def test_noise_of_a_second_enrolment_is_new() -> None:
    """Clients that enrol twice send two uploads. With equal noise, the server would see their difference."""
    method = observer(warm_up=2)
    reports = run_rounds(method, upload_path=PRIVATE)
    first, second = (start.enrolled["zeros"] for start in method.starts)
    assert (first != second).all()
    assert reports[-1].diagnostics["epsilon"] == PRIVATE.privacy.epsilon(4 + 2)


def test_only_enrolments_of_stages_that_have_begun_are_counted() -> None:
    """A stage enrols clients only if it makes a new server."""
    method = observer()
    stages = (Stage(method, 3), Stage(method, 2), Stage(method, 4, method.take_over))
    timeline = Timeline(stages, tiny.rows_federation(), Settings(rounds=4))
    assert [timeline.enrolments(rounds) for rounds in range(1, 10)] == [1] * 5 + [2] * 4
    plain = tiny.method("fedavg", tiny.rows_task(), "rows")
    assert Timeline((Stage(plain, 3),), tiny.rows_federation(), Settings(rounds=3)).enrolments(3) == 0


@pytest.mark.parametrize("every", [1, 2, 3, 7])
def test_the_last_round_is_always_evaluated(every: int) -> None:
    """So is every `every`-th round of the last stage."""
    method = observer(warm_up=2)
    evaluated = [report.round for report in run_rounds(method, rounds=5, every=every) if report.scores]
    assert evaluated == sorted({*range(every, 8, every), 7} & {*range(3, 8)})


def test_epsilon_is_that_of_the_client_with_most_uploads() -> None:
    """With partial participation, clients upload in different numbers of rounds."""
    uploads: Tensor = torch.zeros(tiny.CLIENTS, dtype=torch.int64)
    method = tiny.method("fedavg", tiny.rows_task(), "rows")
    losses = []
    for report in run_rounds(method, rounds=6, participation=2, upload_path=PRIVATE, seed=4):
        uploads[participants(4, report.round - 1, torch.arange(tiny.CLIENTS), 2)] += 1
        assert report.diagnostics["epsilon"] == PRIVATE.privacy.epsilon(int(uploads.max()))
        losses.append(report.diagnostics["epsilon"])
    assert uploads.min() < uploads.max() < 6
    assert losses == sorted(losses)
