"""Baselines compared with plain `torch.optim` loops over clients, on random data."""

import copy
from functools import partial

import pytest
import tiny
import torch
from naive import (
    FED,
    SEED,
    assert_same_model,
    average,
    batches,
    body_of,
    build_method,
    ce,
    first_uploads,
    gradients,
    last_report,
    model_copies,
    move,
    network,
    rows_of,
    sgd,
)
from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.engine.engine import run, run_round
from fedweave.engine.executors import Loop
from fedweave.engine.records import Settings
from fedweave.engine.schedule import Training, cohort
from fedweave.engine.start import begin
from fedweave.families import penalties
from fedweave.methods import fedcp
from fedweave.tensors import dropout_keys, trees
from fedweave.tensors.trees import Params


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_per_fedavg(variant: str) -> None:
    """Three-batch meta-steps, and adaptation by one step."""
    alpha, delta = 0.05, 1e-3
    g = network(build_method("perfedavg"))
    for r in range(2):
        nets = []
        for i, net in model_copies(g):
            for first, second, third in zip(*(batches(i, r, e, e + 2) for e in (0, 2, 4)), strict=True):
                d = gradients(move(net, gradients(net, second), -alpha), first)
                if variant == "hf":
                    ahead, behind = (gradients(move(net, d, s * delta), third) for s in (1, -1))
                    d = [v - alpha * (a - b) / (2 * delta) for v, a, b in zip(d, ahead, behind, strict=True)]
                net = move(net, d, -0.1)
            nets.append(net)
        g = average(nets, FED.sizes)
    settings = {"variant": variant, "alpha": alpha, "delta": delta}
    report = last_report("perfedavg", rounds=2, **settings)
    assert_same_model(g, report.state.server["model"])
    whole = last_report("perfedavg", rounds=2, **settings, training=Training(batch_size=0, epochs=1))
    g.load_state_dict(whole.state.server["model"])
    for i in range(tiny.CLIENTS):
        adapted = move(g, gradients(g, rows_of(i)), -alpha)
        assert_same_model(adapted, trees.at(whole.models["pre"], i))


def test_hessian_free_direction_is_second_order() -> None:
    """With one batch for all three draws, "hf" converges to the exact gradient of F(w − α ∇F(w)) as δ decreases."""
    method = build_method("perfedavg", variant="hf", alpha=0.3, delta=1e-4, training=Training(batch_size=0, epochs=1))
    net = network(method)
    params = {n: p.detach() for n, p in net.named_parameters()}
    rows = rows_of(0)

    def loss(p: Params) -> Tensor:
        return F.cross_entropy(torch.func.functional_call(net, p, (FED.shared["x"][rows],)), FED.shared["y"][rows])

    def adapted(p: Params) -> Tensor:
        inner = torch.func.grad(loss)(p)
        return loss({n: v - 0.3 * inner[n] for n, v in p.items()})

    exact = torch.func.grad(adapted)(params)
    one = last_report(
        "perfedavg",
        "rows",
        FED.select(torch.tensor([0])),
        1,
        variant="hf",
        alpha=0.3,
        delta=1e-4,
        training=method.training,
    )
    for name, value in params.items():
        torch.testing.assert_close(one.state.server["model"][name], value - 0.1 * exact[name], rtol=1e-5, atol=1e-7)


def test_fedfomo() -> None:
    """Every client gets every model, and compares all, its own too, with the one from which it last trained."""
    method = build_method("fedfomo", models=tiny.CLIENTS - 1)
    mixed, kept = [net for _, net in model_copies(network(method))], set()
    for r, report in enumerate(run(method, FED, Settings(rounds=6, seed=SEED), Loop())):
        bases, nets = mixed, [_sgd(net, i, r) for i, net in enumerate(mixed)]
        shares = [_first_order_shares(i, bases[i], nets) for i in range(tiny.CLIENTS)]
        kept |= {round(float(w[i] / w.sum().clamp(min=1e-12)), 6) for i, w in enumerate(shares)}
        mixed = [average(nets, w) if w.any() else nets[i] for i, w in enumerate(shares)]
        for i in range(tiny.CLIENTS):
            assert_same_model(nets[i], trees.at(report.models["post"], i))
            assert_same_model(mixed[i], trees.at(report.models["pre"], i))
    assert 0 in kept, "own models that are replaced"
    assert len(kept) > 10, "own models that are mixed with others"


def _sgd(net: nn.Module, client: int, round: int) -> nn.Module:
    for rows in batches(client, round, 0, 2):
        net = move(net, gradients(net, rows), -0.1)
    return net


def _first_order_shares(client: int, base: nn.Module, nets: list[nn.Module]) -> Tensor:
    """max(0, (L(base) - L(net)) / |net - base|) of every net, with the mean loss L on the client's validation rows."""
    rows = rows_of(client, "val")
    first, *losses = (ce(net, rows).detach() for net in (base, *nets))
    origin, *vectors = (nn.utils.parameters_to_vector(net.parameters()).detach() for net in (base, *nets))
    gains = [(first - loss) / (vector - origin).norm() for loss, vector in zip(losses, vectors, strict=True)]
    return torch.stack(gains).clamp(min=0)


def test_pfedme() -> None:
    """K proximal steps per batch, then one step of w on the envelope."""
    lam, mu, lr, beta, steps = 4.0, 0.01, 0.05, 0.7, 3
    g = network(build_method("pfedme"))
    for r in range(2):
        nets, thetas = [], []
        for i, w in model_copies(g):
            theta = copy.deepcopy(w)
            for rows in batches(i, r, 0, 2):
                for _ in range(steps):
                    theta = move(
                        theta,
                        [
                            d + lam * (p - q).detach() + mu * p.detach()
                            for d, p, q in zip(gradients(theta, rows), theta.parameters(), w.parameters(), strict=True)
                        ],
                        -lr,
                    )
                w = move(
                    w, [lam * (q - p).detach() for p, q in zip(theta.parameters(), w.parameters(), strict=True)], -0.1
                )
            nets.append(w)
            thetas.append(theta)
        g = average([g, average(nets, FED.sizes)], torch.tensor([1 - beta, beta], dtype=torch.float64))
    report = last_report("pfedme", rounds=2, lam=lam, mu=mu, inner_lr=lr, beta=beta, inner_steps=steps)
    assert_same_model(g, report.state.server["model"])
    for i, theta in enumerate(thetas):
        assert_same_model(theta, trees.at(report.models["pre"], i))


def test_heurfedamp() -> None:
    """Mixtures by cosine, and the squared penalty towards them."""
    sigma, omega, strength = 5.0, 0.3, 0.8
    nets = [net for _, net in model_copies(network(build_method("heurfedamp")))]
    for r in range(3):
        flat = torch.stack([nn.utils.parameters_to_vector(n.parameters()).detach() for n in nets])
        anchors = []
        for i in range(tiny.CLIENTS):
            others = [j for j in range(tiny.CLIENTS) if j != i]
            xi = (1 - omega) * torch.softmax(sigma * F.cosine_similarity(flat[others], flat[i][None]), 0)
            anchors.append(omega * flat[i] + xi @ flat[others])

        def pulled(net: nn.Module, rows: Tensor, anchor: Tensor, weight: float = strength / 2 if r else 0.0) -> Tensor:
            return ce(net, rows) + weight * (nn.utils.parameters_to_vector(net.parameters()) - anchor).square().sum()

        for i, net in enumerate(nets):
            sgd(net, batches(i, r, 0, 2), partial(pulled, anchor=anchors[i]))
    report = last_report("heurfedamp", sigma=sigma, omega=omega, lam=strength * 2.0, alpha=2.0)
    for i, net in enumerate(nets):
        assert_same_model(net, trees.at(report.models["post"], i))


def test_fedala() -> None:
    """W is learned for the head, and everything else comes from g."""
    own = [net for _, net in model_copies(network(build_method("fedala")))]
    g, weights = copy.deepcopy(own[0]), [[torch.ones_like(p) for p in own[0].fc.parameters()] for _ in own]
    for r in range(3):
        for i, net in enumerate(own):
            gap = [(a - b).detach() for a, b in zip(g.fc.parameters(), net.fc.parameters(), strict=True)]
            old = [p.detach().clone() for p in net.fc.parameters()]
            net.load_state_dict(g.state_dict())
            rows = rows_of(i)
            for k in range(0 if r == 0 else 1 + (r == 1)):
                del k
                mix_head(net, old, gap, weights[i])
                d = gradients(net, rows)[-2:]
                weights[i] = [(w - 2.0 * e * h).clamp(0, 1) for w, e, h in zip(weights[i], d, gap, strict=True)]
            mix_head(net, old, gap, weights[i])
            sgd(net, [rows, rows])
        g = average(own, FED.sizes)
    whole = {"training": Training(batch_size=0, epochs=2), "portion": 100.0, "eta": 2.0, "start_epochs": 2}
    report = last_report("fedala", **whole)
    assert_same_model(g, report.state.server["model"])
    assert min(float(w.min()) for i in range(5) for w in weights[i]) < 1.0
    for i in range(tiny.CLIENTS):
        for a, b in zip(weights[i], trees.at(report.state.clients["weights"], i).values(), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-10)


def mix_head(net: nn.Module, old: list[Tensor], gap: list[Tensor], weights: list[Tensor]) -> None:
    """Set the head to θ + (g − θ) ⊙ W."""
    with torch.no_grad():
        for p, o, d, w in zip(net.fc.parameters(), old, gap, weights, strict=True):
            p.copy_(o + d * w)


def test_blending_rule_stops_when_losses_settle() -> None:
    """The first training of W has at least eleven epochs, ends by the threshold, and takes place once."""
    method = build_method("fedala", start_epochs=40, threshold=1e9)
    settings = Settings(rounds=1, seed=SEED)
    state, _, _ = run_round(method, begin(method, FED, SEED, Loop()), FED, settings, Loop())
    assert not state.clients["started"].any()
    patient, eager = (
        run_round(build_method("fedala", start_epochs=n, threshold=t), state, FED, settings, Loop())[0]
        for n, t in ((11, 0.0), (40, 1e9))
    )
    torch.testing.assert_close(patient.clients["weights"], eager.clients["weights"])
    assert patient.clients["started"].all()
    later = [
        run_round(build_method("fedala", start_epochs=n, threshold=0.0), patient, FED, settings, Loop())[0]
        for n in (1, 40)
    ]
    torch.testing.assert_close(*(state.clients["weights"] for state in later))


def test_fedah() -> None:
    """With W fixed at 1, heads start from the global one. Then heads and bodies train in turn."""
    g = network(build_method("fedah"))
    for r in range(2):
        nets = []
        for i, net in model_copies(g):
            sgd(net, batches(i, r, 0, 1), params=net.fc.parameters())
            nets.append(sgd(net, batches(i, r, 1, 3), params=body_of(net)))
        g = average(nets, FED.sizes)
    assert_same_model(g, last_report("fedah", rounds=2, eta=0.0).state.server["model"])


def test_fedrod() -> None:
    """Balanced softmax for body and generic head, and the personal head on the remaining error."""
    g = network(build_method("fedrod"))
    private = [copy.deepcopy(g.fc) for _ in range(tiny.CLIENTS)]
    for r in range(2):
        nets = []
        for i, net in model_copies(g):
            counts = torch.bincount(FED.shared["y"][rows_of(i)], minlength=tiny.CLASSES)
            prior = counts.double().clamp(min=1e-12).log()

            def both(net: nn.Module, rows: Tensor, prior: Tensor = prior, head: nn.Module = private[i]) -> Tensor:
                z, y = net.features(FED.shared["x"][rows]), FED.shared["y"][rows]
                generic = net.fc(z)
                balanced = F.cross_entropy(generic + prior, y)
                return balanced + F.cross_entropy(generic.detach() + head(z.detach()), y)

            nets.append(sgd(net, batches(i, r, 0, 2), both, [*net.parameters(), *private[i].parameters()]))
        g = average(nets, FED.sizes)
    report = last_report("fedrod", rounds=2)
    assert_same_model(g, report.state.server["model"])
    for i, head in enumerate(private):
        assert_same_model(head, {n.removeprefix("fc."): v[i] for n, v in report.state.clients["private"].items()})
        rows = rows_of(i, "test")
        z = g.features(FED.shared["x"][rows])
        hits = ((g.fc(z) + head(z)).argmax(1) == FED.shared["y"][rows]).double().mean()
        assert float(report.scores["pre"]["test"][i]) == pytest.approx(100 * float(hits))


def test_fedcp() -> None:
    """Gate, personal head and body have one optimiser. The received body and head are frozen."""
    method = build_method("fedcp", lam=0.7, tau=0.5)
    state, _, _ = run_round(method, begin(method, FED, SEED, Loop()), FED, Settings(rounds=1, seed=SEED), Loop())
    shared, _, uploads = first_uploads(method, state)
    for i in range(tiny.CLIENTS):
        net, frozen, gate, norm = network(method), network(method), nn.Linear(5, 10).double(), nn.LayerNorm(10).double()
        frozen.load_state_dict({n: shared[n] for n in method.task.params})
        net.load_state_dict({**frozen.state_dict(), **{n: state.clients[n][i] for n in method.task.head}})
        places = (gate.weight, gate.bias, norm.weight, norm.bias)
        with torch.no_grad():
            for p, name in zip(places, fedcp.GATE, strict=True):
                p.copy_(shared[name])
        context = F.normalize(net.fc.weight.detach().sum(0), dim=0)
        optimizer = torch.optim.SGD([*net.parameters(), *gate.parameters(), *norm.parameters()], lr=0.1)
        key = cohort(FED, torch.arange(tiny.CLIENTS), method.training, 2, SEED, 0).keys[i]
        per_epoch = len(batches(i, 0, 0, 1))
        for k, rows in enumerate(batches(i, 0, 0, 2)):
            z = net.features(FED.shared["x"][rows])
            noise = -(
                -dropout_keys.uniform(dropout_keys.fold(key, k // per_epoch, k % per_epoch, 2), (len(rows), 2, 5))
                .clamp(min=2.0**-25)
                .log()
            ).log()
            s = torch.softmax(F.relu(norm(gate(z * context))).reshape(-1, 2, 5) / 0.5 + noise / 0.5, 1)
            mmd = penalties.discrepancy(z, frozen.features(FED.shared["x"][rows]).detach(), None)
            loss = F.cross_entropy(net.fc(z * s[:, 0]) + frozen.fc(z * s[:, 1]), FED.shared["y"][rows]) + 0.7 * mmd
            optimizer.zero_grad()
            frozen.zero_grad()
            loss.backward()
            optimizer.step()
        sent = trees.at(uploads["model"], i)
        for p, name in zip(places, fedcp.GATE, strict=True):
            torch.testing.assert_close(sent[name], p.detach())
        with torch.no_grad():
            for p, q in zip(net.fc.parameters(), frozen.fc.parameters(), strict=True):
                p.copy_((p + q) / 2)
        assert_same_model(net, sent)


@pytest.mark.parametrize("repel", [False, True])
def test_pfedgraph_turns_towards_collaborators(repel: bool) -> None:
    """F − λ cos(w, v) compared with torch.optim. The public code has the opposite sign."""
    method = build_method("pfedgraph", lam=0.3, repel=repel)
    state, _, _ = run_round(method, begin(method, FED, SEED, Loop()), FED, Settings(rounds=1, seed=SEED), Loop())
    _, own, uploads = first_uploads(method, state)
    for i in range(tiny.CLIENTS):
        net = network(method)
        net.load_state_dict(trees.at(own["mixture"], i))
        v = torch.cat([t.flatten() for t in trees.at(own["direction"], i).values()])
        stacked = trees.to_matrix(state.server["models"])
        a = method.weights(state.server, torch.tensor([i]))[0, 0]
        torch.testing.assert_close(v, a @ (stacked / stacked.norm(dim=1, keepdim=True)))

        def turned(net: nn.Module, rows: Tensor, v: Tensor = v) -> Tensor:
            cos = F.cosine_similarity(nn.utils.parameters_to_vector(net.parameters())[None], v[None])[0]
            return ce(net, rows) + (0.3 if repel else -0.3) * cos

        sgd(net, batches(i, 0, 0, 2), turned)
        assert_same_model(net, trees.at(uploads["model"], i))
