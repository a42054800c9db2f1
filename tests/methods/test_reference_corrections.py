"""FedBABU, SCAFFOLD and APFL: plain loops, and their limits for extreme settings."""

from dataclasses import replace
from typing import Any

import naive
import pytest
import tiny
import torch
from torch import Tensor, nn

from fedweave.engine.engine import run, run_round
from fedweave.engine.executors import Loop
from fedweave.engine.records import Report, Settings
from fedweave.engine.schedule import Training, evaluation_cohort, participants
from fedweave.engine.start import begin
from fedweave.engine.uploads import UploadPath
from fedweave.families.tuning import fine_tune
from fedweave.tensors import trees
from fedweave.tensors.trees import Params
from fedweave.threats.privacy import Privacy

ROUNDS, LR = 3, 0.1


def vector(net: nn.Module) -> Tensor:
    """All parameters [P]."""
    return nn.utils.parameters_to_vector(net.parameters()).detach()


def only_bodies(net: nn.Module, gradients: list[Tensor]) -> list[Tensor]:
    """`gradients` with zeros in place of those of the head."""
    names = [name for name, _ in net.named_parameters()]
    return [g * 0 if n.startswith("fc.") else g for n, g in zip(names, gradients, strict=True)]


def test_the_body_of_fedbabu_is_fedavg_with_a_frozen_head() -> None:
    """Bodies are trained with the initial head, and averaged. The head keeps its bits and is never sent."""
    report = naive.last_report("fedbabu", rounds=ROUNDS)
    net = naive.network(report.method)
    head = {name: value.detach().clone() for name, value in net.named_parameters() if name.startswith("fc.")}
    for r in range(ROUNDS):
        nets = []
        for i, own in naive.model_copies(net):
            for rows in naive.batches(i, r, 0, 2):
                own = naive.move(own, only_bodies(own, naive.gradients(own, rows)), -LR)
            nets.append(own)
        net = naive.average(nets, naive.FED.sizes)
    body = report.state.server["model"]
    assert {*body} == {name for name, _ in net.named_parameters()} - {*head}
    naive.assert_same_model(net, {**body, **head})
    assert all(torch.equal(value[i], head[n]) for n, value in report.state.clients.items() for i in range(tiny.CLIENTS))


@pytest.mark.parametrize("part", ["all", "head", "body"])
def test_fine_tuning_of_fedbabu(part: str) -> None:
    """A client's model has the server's body and the initial head after steps on the tuned parts."""
    whole = Training(batch_size=0, epochs=2)
    report = naive.last_report("fedbabu", rounds=1, training=whole, fine_tune=part, fine_tune_epochs=3)
    for i in range(tiny.CLIENTS):
        net = naive.network(report.method)
        net.load_state_dict(report.state.server["model"], strict=False)
        for _ in range(3):
            slopes = naive.gradients(net, naive.rows_of(i))
            bodies = only_bodies(net, slopes)
            heads = [g - b for g, b in zip(slopes, bodies, strict=True)]
            net = naive.move(net, {"all": slopes, "head": heads, "body": bodies}[part], -LR)
        naive.assert_same_model(net, {name: value[i] for name, value in report.models["pre"].items()})


def test_an_epoch_of_fine_tuning_has_every_row_once() -> None:
    """Batches have the size of training and their own order. The default number of epochs is that of the task."""
    method = naive.build_method("fedbabu", training=Training(batch_size=4, epochs=2))
    data = evaluation_cohort(naive.FED, 1, 0).client_data(1)
    seen: list[Tensor] = []

    class Spy:
        """Records the rows that a method is trained on."""

        training = method.training

        def descend(self, model: Params, data: Any, names: tuple[str, ...], epochs: slice) -> Any:
            seen.extend(data.plan[epochs])
            return method.descend(model, data, names, epochs=epochs)

    fine_tune(Spy(), method.task.init(1), method.task.params, 3, data)
    orders = [torch.cat(epoch) for epoch in seen]
    assert [len(epoch[0]) for epoch in seen] == [4, 4, 4]
    assert all(torch.equal(order.sort().values, naive.rows_of(1).sort().values) for order in orders)
    assert not torch.equal(orders[0], orders[1])
    models = [
        replace(method, fine_tune_epochs=epochs).personalize({}, {}, method.task.init(1), data) for epochs in (0, 2)
    ]
    assert all(torch.equal(a, b) for a, b in zip(*map(trees.tree_leaves, models), strict=True))


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_with_some_of_the_clients(option: str) -> None:
    """Model and variates after three rounds with three of five clients, on flat vectors."""
    method = naive.build_method("scaffold", option=option)
    settings = Settings(rounds=ROUNDS, seed=naive.SEED, participation=3)
    *_, report = run(method, naive.FED, settings, Loop())
    net, sizes = naive.network(method), naive.FED.sizes.double()
    c, own = 0 * vector(net), [0 * vector(net) for _ in range(tiny.CLIENTS)]

    def gradient(at: Tensor, rows: Tensor) -> Tensor:
        nn.utils.vector_to_parameters(at, net.parameters())
        return torch.cat([g.flatten() for g in naive.gradients(net, rows)])

    x = vector(net)
    for r in range(ROUNDS):
        ids = participants(naive.SEED, r, naive.FED.ids, 3).tolist()
        shares = sizes[ids] / sizes[ids].sum()
        ends, changes = [], []
        for i in ids:
            y, steps = x, naive.batches(i, r, 0, 2)
            for rows in steps:
                y = y - LR * (gradient(y, rows) - own[i] + c)
            new = gradient(x, naive.rows_of(i)) if option == "I" else own[i] - c + (x - y) / (len(steps) * LR)
            ends.append(y)
            changes.append(new - own[i])
            own[i] = new
        x = sum(s * y for s, y in zip(shares, ends, strict=True))
        c = c + 3 / 5 * sum(s * change for s, change in zip(shares, changes, strict=True))
    state = report.state
    for expected, params in ((x, state.server["model"]), (c, state.server["control"])):
        torch.testing.assert_close(trees.to_matrix(trees.broadcast(params, 1))[0], expected, rtol=1e-8, atol=1e-10)
    torch.testing.assert_close(trees.to_matrix(state.clients["control"]), torch.stack(own), rtol=1e-8, atol=1e-10)


def test_scaffold_with_variates_of_zero_is_fedavg() -> None:
    """In each round the variates are set to zero. Without that it differs, and it sends twice the bytes."""
    settings, results = Settings(rounds=1, seed=naive.SEED), {}
    for name in ("fedavg", "scaffold", "corrected"):
        method = naive.build_method("fedavg" if name == "fedavg" else "scaffold")
        state = begin(method, naive.FED, naive.SEED, Loop())
        for _ in range(ROUNDS):
            state, report, _ = run_round(method, state, naive.FED, settings, Loop())
            if name == "scaffold":
                zero = trees.tree_map(
                    torch.zeros_like, {part: t["control"] for part, t in (("s", state.server), ("c", state.clients))}
                )
                state = state._replace(
                    server={**state.server, "control": zero["s"]}, clients={**state.clients, "control": zero["c"]}
                )
        results[name] = (trees.to_matrix(trees.broadcast(state.server["model"], 1)), report)
    torch.testing.assert_close(results["scaffold"][0], results["fedavg"][0], rtol=1e-12, atol=1e-14)
    assert (results["corrected"][0] - results["fedavg"][0]).abs().max() > 1e-3
    sent = [(report.bytes_down, report.bytes_up) for _, report in results.values()]
    assert sent[1] == (2 * sent[0][0], 2 * sent[0][1])


def test_scaffold_with_one_client_is_local_training() -> None:
    """c is c_i, so that there is no correction."""
    alone = tiny.rows_federation().select(torch.tensor([1]))
    ends = [naive.models(naive.last_report(name, federation=alone), "pre") for name in ("scaffold", "local")]
    torch.testing.assert_close(*ends, rtol=1e-10, atol=1e-12)


PRIVATE = UploadPath(Privacy(clip=0.05, noise=0.5))


@pytest.mark.parametrize("path", [UploadPath(), PRIVATE], ids=["plain", "private"])
def test_the_variate_of_the_server_is_the_mean_of_the_clients(path: UploadPath) -> None:
    """With uniform weights, for any participants and newcomers; under momentum, kept optimisers and noise too."""
    training = Training(batch_size=4, epochs=1, uniform_mean=True, keep_optimizer=True)
    method = naive.build_method("scaffold", training=training, solver=tiny.SOLVERS["images"])
    settings = Settings(rounds=4, seed=1, participation=2, newcomers=2, join_round=2, upload_path=path)
    *_, report = run(method, naive.FED, settings, Loop())
    clients = report.state.clients["control"]
    for name, value in report.state.server["control"].items():
        torch.testing.assert_close(value, clients[name].mean(0), rtol=1e-10, atol=1e-13)
    assert trees.norms(clients).gt(0).sum() > 2


def test_scaffold_learns_when_its_variates_are_clipped() -> None:
    """It learns like FedAvg. A client that counted unclipped changes would subtract its own gradient in each step."""
    path = UploadPath(Privacy(clip=0.1, noise=1e-3))
    training = replace(naive.TRAINING, uniform_mean=True)
    losses = {}
    for name in ("scaffold", "fedavg"):
        method = naive.build_method(name, training=training)
        reports = [*run(method, naive.FED, Settings(rounds=40, seed=naive.SEED, upload_path=path), Loop())]
        losses[name] = reports[-1].loss
    assert losses["scaffold"] < 1.2 * losses["fedavg"] < 0.3 * reports[0].loss


def apfl(**options: Any) -> Report:
    """The last of three rounds of APFL."""
    return naive.last_report("apfl", rounds=ROUNDS, **options)


@pytest.mark.parametrize(("alpha", "other"), [(1.0, "local"), (0.0, "fedavg")])
def test_apfl_at_the_ends_of_alpha(alpha: float, other: str) -> None:
    """It is Local or FedAvg, before and after local training. Between the ends it is neither."""
    report, plain, between = apfl(alpha=alpha, adaptive=False), naive.last_report(other), apfl(adaptive=False)
    for point in ("pre", "post"):
        expected = naive.models(plain, point)
        torch.testing.assert_close(naive.models(report, point), expected, rtol=1e-10, atol=1e-12)
        assert (naive.models(between, point) - expected).abs().max() > 1e-3


def test_apfl_by_hand() -> None:
    """w, v and an adaptive α of every client over three rounds."""
    report = apfl(alpha=0.4)
    net = naive.network(report.method)
    personal, alphas = [net] * tiny.CLIENTS, [0.4] * tiny.CLIENTS

    def mixed(i: int, w: nn.Module) -> nn.Module:
        return naive.average([personal[i], w], torch.tensor([alphas[i], 1 - alphas[i]], dtype=torch.float64))

    for r in range(ROUNDS):
        nets = []
        for i, w in naive.model_copies(net):
            steps = naive.batches(i, r, 0, 2)
            slope = torch.cat([g.flatten() for g in naive.gradients(mixed(i, w), steps[0])])
            alphas[i] = min(1.0, max(0.0, alphas[i] - LR * float((vector(personal[i]) - vector(w)) @ slope)))
            for rows in steps:
                at_w, at_both = naive.gradients(w, rows), naive.gradients(mixed(i, w), rows)
                personal[i] = naive.move(personal[i], at_both, -LR * alphas[i])
                w = naive.move(w, at_w, -LR)
            nets.append(w)
        net = naive.average(nets, naive.FED.sizes)
    naive.assert_same_model(net, report.state.server["model"])
    clients = report.state.clients
    torch.testing.assert_close(clients["alpha"], torch.tensor(alphas, dtype=torch.float64), rtol=1e-8, atol=1e-10)
    assert clients["alpha"].std() > 1e-4
    for i in range(tiny.CLIENTS):
        naive.assert_same_model(personal[i], trees.at(clients["personal"], i))
        naive.assert_same_model(mixed(i, net), {name: value[i] for name, value in report.models["pre"].items()})
