"""Methods with several models or prototypes compared with plain loops of `torch.optim`, clients in sequence."""

import copy
from dataclasses import replace

import pytest
import tiny
import torch
from naive import (
    FED,
    SEED,
    TRAINING,
    assert_same_model,
    average,
    batches,
    body_of,
    build_method,
    ce,
    gradients,
    last_report,
    model_copies,
    network,
    rows_of,
    sgd,
)
from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.client.data import shuffled_batches
from fedweave.engine.clients import Clients
from fedweave.engine.engine import run
from fedweave.engine.executors import Loop
from fedweave.engine.records import Report, Settings
from fedweave.engine.schedule import Training, cohort, evaluation_cohort
from fedweave.engine.start import ENROLMENT
from fedweave.graphs.quality import MASS, MEANING
from fedweave.tensors import trees

MOMENTUM, KAPPA = 0.4, 0.8


def draw_models(name: str, count: int) -> list[nn.Module]:
    """The common initial model, and those that are drawn after it."""
    first = network(build_method(name))
    others = [copy.deepcopy(first) for _ in range(1, count)]
    for i, net in enumerate(others, 1):
        net.load_state_dict(build_method(name).task.init(SEED * 1000 + 5 + i))
    return [first, *others]


def class_means(net: nn.Module, rows: Tensor) -> dict[int, Tensor]:
    """Mean features of the classes of `rows`."""
    with torch.no_grad():
        z, y = net.features(FED.shared["x"][rows]), FED.shared["y"][rows]
    return {int(c): z[y == c].mean(0) for c in y.unique()}


def outputs(report: Report, client: int, rows: Tensor, point: str = "pre") -> Tensor:
    """The outputs of a client's model for `rows`."""
    data = evaluation_cohort(FED, SEED, 0).client_data(client)
    return report.method.predict(trees.at(report.models[point], client), data, rows)


@pytest.mark.parametrize("averaging", ["models", "gradients"])
def test_ifca(averaging: str) -> None:
    """Each client trains the model with the lowest loss. A model is the mean over the clients that selected it."""
    models, k = draw_models("ifca", 3), 3
    for r in range(3):
        takers: list[list[int]] = [[] for _ in range(k)]
        nets = []
        for i in range(tiny.CLIENTS):
            with torch.no_grad():
                best = min(range(k), key=lambda j: float(ce(models[j], rows_of(i))))
            takers[best].append(i)
            net = copy.deepcopy(models[best])
            steps = batches(i, r, 0, 2) if averaging == "models" else [rows_of(i)]
            nets.append(sgd(net, steps))
        for j, members in enumerate(takers):
            if members and averaging == "models":
                models[j] = average([nets[i] for i in members], FED.sizes[members])
            elif members:
                old = [models[j]] * tiny.CLIENTS
                models[j] = average([nets[i] if i in members else old[i] for i in range(tiny.CLIENTS)], FED.sizes)
    report = last_report("ifca", clusters=3, averaging=averaging)
    for j, net in enumerate(models):
        assert_same_model(net, trees.at(report.state.server["models"], j))
    labels = report.state.server["labels"]
    assert [(labels == j).nonzero().flatten().tolist() for j in range(k)] == takers
    assert len({len(members) > 0 for members in takers}) == 2, "some cluster is empty, and some is not"
    graph = report.method.collaboration(report.state.server)[0]
    for members in takers:
        torch.testing.assert_close(
            graph[members][:, members],
            (FED.sizes[members] / FED.sizes[members].sum()).expand(len(members), -1).double(),
        )
    size = sum(p.numel() for p in models[0].parameters())
    assert (report.bytes_down, report.bytes_up) == (4 * 5 * k * size, 4 * 5 * (size + k))


def opposed_groups() -> Clients:
    """The classes of two clients have another meaning than those of the other three."""
    group = torch.tensor([0, 1, 0, 1, 0])
    y = FED.shared["y"].clone()
    for i in group.nonzero().flatten().tolist():
        for part in (FED.train, FED.val, FED.test):
            rows = part[i][part[i] >= 0]
            y[rows] = (y[rows] + 1) % tiny.CLASSES
    return replace(FED, shared={**FED.shared, "y": y}, group=group)


def test_ifca_finds_planted_groups() -> None:
    """Clients with another meaning of the classes select another model. Newcomers do so too."""
    federation = opposed_groups()
    settings = Settings(rounds=12, seed=1, newcomers=1, join_round=10)
    *_, report = run(build_method("ifca"), federation, settings, Loop())
    labels = report.state.server["labels"]
    assert torch.equal(labels == labels[0], federation.group == 0)
    assert report.diagnostics["clusters in use"] == 2
    assert report.diagnostics[MEANING[MASS]] == pytest.approx(1.0)
    assert report.scores["pre"]["test"].mean() > 90


@pytest.mark.parametrize("name", ["ifca", "fedem"])
def test_a_module_as_model_does_not_make_them_fedavg(name: str) -> None:
    """Every draw of the clients' model is equal, as those of a module are. With one model only, both are FedAvg."""
    scores = {}
    for method in (build_method("fedavg"), build_method(name)):
        net = network(method)
        fixed = replace(method, task=replace(method.task, build=lambda net=net: copy.deepcopy(net)))
        *_, report = run(fixed, opposed_groups(), Settings(rounds=20, seed=1), Loop())
        scores[method.label] = float(report.scores["pre"]["test"].mean())
    assert scores.pop("FedAvg") + 20 < min(scores.values())


def test_fedem() -> None:
    """E-step, M-step and weighted training of every component; the prediction is the mixture of probabilities."""
    m = 3
    components, pi = draw_models("fedem", m), torch.full((tiny.CLIENTS, m), 1 / m, dtype=torch.float64)
    for r in range(3):
        nets: list[list[nn.Module]] = [[] for _ in range(m)]
        for i in range(tiny.CLIENTS):
            rows = rows_of(i)
            x, y = FED.shared["x"][rows], FED.shared["y"][rows]
            with torch.no_grad():
                joint = torch.stack(
                    [pi[i, j] * net(x).softmax(1)[range(len(y)), y] for j, net in enumerate(components)]
                )
            q = joint / joint.sum(0)
            pi[i] = q.mean(1)
            share = {int(row): q[:, s] for s, row in enumerate(rows)}
            for j in range(m):

                def weighted(net: nn.Module, batch: Tensor, j: int = j, share: dict[int, Tensor] = share) -> Tensor:
                    losses = F.cross_entropy(net(FED.shared["x"][batch]), FED.shared["y"][batch], reduction="none")
                    return (losses * torch.stack([share[int(row)][j] for row in batch])).mean()

                nets[j].append(sgd(copy.deepcopy(components[j]), batches(i, r, 0, 2), weighted))
        components = [average(each, FED.sizes) for each in nets]
    report = last_report("fedem", components=m)
    torch.testing.assert_close(report.state.clients["weights"], pi, rtol=1e-8, atol=1e-10)
    model = report.state.server["model"]
    for j, net in enumerate(components):
        assert_same_model(net, {name: model[f"{j}/{name}" if j else name] for name in report.method.task.params})
    rows = rows_of(1, "test")
    with torch.no_grad():
        mixture = sum(pi[1, j] * net(FED.shared["x"][rows]).softmax(1) for j, net in enumerate(components))
    torch.testing.assert_close(outputs(report, 1, rows).exp(), mixture, rtol=1e-8, atol=1e-10)
    assert report.bytes_down == report.bytes_up == 4 * 5 * m * sum(p.numel() for p in components[0].parameters())


def test_fedem_mixes_forecasts() -> None:
    """Forecasts are mixed directly. A client without training takes one step of EM from equal weights."""
    federation, settings = tiny.series_federation(), Settings(rounds=2, seed=SEED, participation=2)
    *_, report = run(build_method("fedem", "series"), federation, settings, Loop())
    task, client = report.method.task, int((~report.state.clients["trained"]).nonzero()[0])
    data = evaluation_cohort(federation, SEED, 0).client_data(client)
    deployed = trees.at(report.models["pre"], client)
    parts = [{name: deployed["components"][prefix + name] for name in task.params} for prefix in ("", "1/")]
    rows = data.train[data.train >= 0]
    forecasts = torch.stack([task.predict(part, data, rows) for part in parts])
    density = torch.exp(-(forecasts - task.targets(data, rows)).square().mean(-1))
    pi = (density / density.sum(0)).mean(1)
    torch.testing.assert_close(deployed["weights"], pi, rtol=1e-9, atol=1e-12)
    mixture = torch.einsum("m,mbh->bh", pi, forecasts)
    torch.testing.assert_close(report.method.predict(deployed, data, rows), mixture, rtol=1e-9, atol=1e-12)


def train_with_mean(net: nn.Module, steps: list[Tensor], bias: Tensor | None, consensus: Tensor | None) -> Tensor:
    """Train `net`, and `bias` with it, by hand; returns the running mean of the features."""
    mean = torch.zeros(5, dtype=torch.float64)
    optimizer = torch.optim.SGD([*net.parameters(), *([] if bias is None else [bias])], lr=0.1)
    for rows in steps:
        optimizer.zero_grad()
        z, y = net.features(FED.shared["x"][rows]), FED.shared["y"][rows]
        mean = (1 - MOMENTUM) * mean.detach() + MOMENTUM * z.mean(0)
        loss = F.cross_entropy(net.fc(z if bias is None else z + bias), y)
        if consensus is not None:
            loss = loss + KAPPA * 0.5 * ((mean - consensus) ** 2).mean()
        loss.backward()
        optimizer.step()
    return mean.detach()


@pytest.mark.parametrize("uniform", [False, True])
def test_feddbe(uniform: bool) -> None:
    """The consensual mean before the first round, then bias memories and the pull of running means towards it."""
    weights = torch.ones(tiny.CLIENTS) if uniform else FED.sizes
    g = network(build_method("feddbe"))
    means = [train_with_mean(net, batches(i, ENROLMENT, 0, 2), None, None) for i, net in model_copies(g)]
    consensus = sum(n * mean for n, mean in zip(weights.double() / weights.sum(), means, strict=True))
    biases = [torch.zeros(5, dtype=torch.float64, requires_grad=True) for _ in range(tiny.CLIENTS)]
    for r in range(3):
        nets = [net for _, net in model_copies(g)]
        for i, net in enumerate(nets):
            train_with_mean(net, batches(i, r, 0, 2), biases[i], consensus)
        g = average(nets, weights)
    report = last_report("feddbe", kappa=KAPPA, momentum=MOMENTUM, training=replace(TRAINING, uniform_mean=uniform))
    torch.testing.assert_close(report.state.server["model"]["memory/consensus"], consensus, rtol=1e-8, atol=1e-10)
    for name, value in g.named_parameters():
        torch.testing.assert_close(report.state.server["model"][name], value.detach(), rtol=1e-8, atol=1e-10)
    for i, bias in enumerate(biases):
        torch.testing.assert_close(report.state.clients["memory/bias"][i], bias.detach(), rtol=1e-8, atol=1e-10)
        assert bias.abs().max() > 1e-3
    rows = rows_of(2, "test")
    with torch.no_grad():
        logits = g.fc(g.features(FED.shared["x"][rows]) + biases[2])
    torch.testing.assert_close(outputs(report, 2, rows), logits, rtol=1e-8, atol=1e-10)
    size = sum(p.numel() for p in g.parameters())
    assert (report.bytes_down, report.bytes_up) == (4 * 5 * (size + 5), 4 * 5 * size)


@pytest.mark.parametrize(("weighted", "classes"), [(True, "all"), (False, "own")])
def test_fedproto(weighted: bool, classes: str) -> None:
    """Local models with a penalty towards the mean features of all clients. Only class means and counts are sent."""
    lam, nets = 0.7, [net for _, net in model_copies(network(build_method("fedproto")))]
    prototypes: dict[int, Tensor] = {}
    for r in range(3):
        defined_before = len(prototypes)

        def drawn(net: nn.Module, rows: Tensor, prototypes: dict[int, Tensor] = prototypes) -> Tensor:
            z, y = net.features(FED.shared["x"][rows]), FED.shared["y"][rows]
            near = torch.stack([prototypes.get(int(c), z[b].detach()) for b, c in enumerate(y)])
            return F.cross_entropy(net.fc(z), y) + lam * F.mse_loss(z, near)

        for i, net in enumerate(nets):
            sgd(net, batches(i, r, 0, 2), drawn)
        own = [class_means(net, rows_of(i)) for i, net in enumerate(nets)]
        counts = [torch.bincount(FED.shared["y"][rows_of(i)], minlength=3) for i in range(tiny.CLIENTS)]
        for c in range(tiny.CLASSES):
            holders = [i for i in range(tiny.CLIENTS) if c in own[i]]
            weights = torch.tensor([float(counts[i][c]) if weighted else 1.0 for i in holders], dtype=torch.float64)
            means = torch.stack([own[i][c] for i in holders])
            prototypes[c] = (weights[:, None] * means).sum(0) / weights.sum()
    report = last_report("fedproto", lam=lam, weighted=weighted, classes=classes)
    torch.testing.assert_close(report.state.server["prototypes"], torch.stack([prototypes[c] for c in range(3)]))
    for i, net in enumerate(nets):
        assert_same_model(net, trees.at(report.state.clients, i))
        rows, candidates = rows_of(i, "test"), sorted(own[i]) if classes == "own" else [0, 1, 2]
        with torch.no_grad():
            z = net.features(FED.shared["x"][rows])
        distance = torch.stack([(z - prototypes[c]).norm(dim=1) for c in candidates], 1)
        expected = torch.tensor(candidates)[distance.argmin(1)]
        assert torch.equal(outputs(report, i, rows).argmax(1), expected)
    present = sum(len(means) for means in own)
    assert (report.bytes_down, report.bytes_up) == (5 * (defined_before * 5 * 4 + 3), present * 5 * 4 + 5 * 3 * 4)


def test_fedproto_without_a_prototype() -> None:
    """In the first round the trained head predicts. A class without a prototype is never predicted."""
    first = last_report("fedproto", rounds=1)
    local = last_report("local", rounds=1)
    torch.testing.assert_close(first.scores["post"]["test"], local.scores["post"]["test"])
    y = FED.shared["y"].clone()
    y[y == 2] = 0
    report = last_report("fedproto", "rows", replace(FED, shared={**FED.shared, "y": y}))
    assert report.state.server["defined"].tolist() == [True, True, False]
    assert all(outputs(report, i, FED.test[i][:1]).argmax() < 2 for i in range(tiny.CLIENTS))


def epoch(client: int, round: int, training: Training, *purpose: int) -> list[Tensor]:
    """A pass over a client's rows in its own order."""
    data = cohort(FED, torch.tensor([client]), training, 2, SEED, round).client_data(0)
    return shuffled_batches(data, 4, training.drop_last, *purpose)


@pytest.mark.parametrize(
    "training", [Training(batch_size=4, epochs=2), Training(batch_size=4, epochs=2, drop_last=True)]
)
def test_fedas(training: Training) -> None:
    """Bodies are aligned to class means of the last body, and averaged by the remaining squared gradients."""
    own = [net for _, net in model_copies(network(build_method("fedas")))]
    g = copy.deepcopy(own[0])
    for r in range(2):
        traces = []
        for i, net in enumerate(own):
            means, parts, last = class_means(net, rows_of(i)), epoch(i, r, training, 4, 0), epoch(i, r, training, 5)
            head = copy.deepcopy(net.fc)
            net.load_state_dict(g.state_dict())
            net.fc = head

            def aligned(net: nn.Module, batch: Tensor, means: dict[int, Tensor] = means) -> Tensor:
                z, y = net.features(FED.shared["x"][batch]), FED.shared["y"][batch]
                return sum(F.mse_loss(z[y == c], means[int(c)].expand_as(z[y == c])) for c in y.unique())

            sgd(net, parts, aligned, body_of(net), lr=0.05)
            steps = batches(i, r, 0, 2)
            sgd(net, [b for b in steps if len(b) == 4] if training.drop_last else steps)
            traces.append(sum(float(d.square().sum()) for batch in last for d in gradients(net, batch)))
        g = average(own, torch.tensor(traces, dtype=torch.float64))
    report = last_report("fedas", rounds=2, align_lr=0.05, training=training)
    body_names = [name for name in report.method.task.params if not name.startswith("fc.")]
    assert [*report.state.server["model"]] == body_names
    for name, value in g.named_parameters():
        if name in body_names:
            torch.testing.assert_close(report.state.server["model"][name], value.detach(), rtol=1e-8, atol=1e-10)
    for i, net in enumerate(own):
        assert_same_model(net, trees.at(report.state.clients, i))
    size = sum(value.numel() for value in report.state.server["model"].values())
    assert (report.bytes_down, report.bytes_up) == (4 * 5 * size, 4 * 5 * (size + 1))
