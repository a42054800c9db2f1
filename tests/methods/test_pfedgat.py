"""pFedGAT's feedback: the answers of clients, their cost, and the use of test rows."""

from dataclasses import replace

import pytest
import tiny
import torch
from naive import FED, build_method
from torch import Tensor, nn
from torch.nn import functional as F

from fedweave.client.regression import Forecast
from fedweave.engine.clients import Clients
from fedweave.engine.engine import run, run_round
from fedweave.engine.executors import Batched, Loop
from fedweave.engine.records import Settings, State
from fedweave.engine.schedule import Training, evaluation_cohort
from fedweave.engine.start import add_newcomers, begin
from fedweave.families.validated_mixtures import ValidatedMixtures
from fedweave.models.base import ClientModel
from fedweave.tensors import trees
from fedweave.tensors.gradients import pull_back
from fedweave.tensors.trees import Tree
from tests.generated_models import EVERYBODY, fixture

SETTINGS = Settings(rounds=3, seed=2)


def client_answers(method: ValidatedMixtures, federation: Clients, state: State) -> Tree:
    """The answers of all clients to the models that they receive."""
    own = method.download(state.server, EVERYBODY)[1]
    answers = []
    for i in range(federation.clients):
        mine, data = trees.at(own, i), replace(evaluation_cohort(federation, 0, 0), testing=method.leaks).client_data(i)
        answers.append(method.feedback(method.personalize({}, mine, trees.at(state.clients, i), data), mine, data))
    return trees.stack(answers)


def single_process(method: ValidatedMixtures, federation: Clients, state: State, split: str = "val") -> Tree:
    """∂ Σ_i ℓ_i(θ̄_i(φ)) / ∂φ with every client's held-out loss in one graph."""
    phi = {name: value.clone().requires_grad_() for name, value in state.server["phi"].items()}
    models = method.generate(phi, state.server["fixed"], EVERYBODY)
    total = torch.zeros((), dtype=torch.float64)
    for i in range(federation.clients):
        data = evaluation_cohort(federation, 0, 0).client_data(i)
        rows = getattr(data, split)[getattr(data, split) >= 0]
        targets = method.task.targets(data, rows)
        values = method.task.row_loss(
            method.task.forward({**trees.at(models, i), **trees.at(state.clients, i)}, data, rows), targets
        )
        weights = (
            data.arrays["test_weight"][targets]
            if split == "test" and "test_weight" in data.arrays
            else torch.ones_like(values)
        )
        total = total + (values * weights).sum() / weights.sum()
    return dict(zip(phi, torch.autograd.grad(total, list(phi.values())), strict=True))


def phi_gradient(method: ValidatedMixtures, state: State, cotangent: Tree) -> Tree:
    """The gradient of φ for a gradient at every θ̄_i."""
    return pull_back(
        lambda phi: method.generate(phi, state.server["fixed"], EVERYBODY), state.server["phi"], lambda _: cotangent
    )[0]


@pytest.mark.parametrize(
    "overrides",
    [
        {},
        {"score": "gatv2", "h_scale": "rsqrt"},
        {"shared": True},
        {"features": "proj", "sketch": 16},
        {"features": "layers"},
    ],
)
@pytest.mark.parametrize("kind", ["rows", "images"])
def test_feedback_is_the_single_process_gradient(kind: str, overrides: dict) -> None:
    """The answers of the clients give the gradient that one process would compute."""
    method, federation, state = fixture("pfedgat", kind=kind, **overrides)
    actual = phi_gradient(method, state, client_answers(method, federation, state)["gradient"])
    for name, expected in single_process(method, federation, state).items():
        torch.testing.assert_close(actual[name], expected, rtol=1e-6, atol=1e-12)
    weights = method.collaboration(state.server)
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_large_held_out_sets_are_computed_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of two rows give the loss and gradient of all rows at once."""
    method, federation, state = fixture("pfedgat")
    whole = client_answers(method, federation, state)
    monkeypatch.setattr("fedweave.families.validated_mixtures.CHUNK", 2)
    parts = client_answers(method, federation, state)
    for a, b in zip(trees.tree_leaves(parts), trees.tree_leaves(whole), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["pfedgat", "direct_matrix", "pfedla", "heurpfedla", "fedaghn"])
def test_newcomers_begin_with_the_initial_model_and_are_mixed_after_an_upload(name: str) -> None:
    """Until its first upload, a newcomer has the common initial model and no weight for others."""
    method, present = build_method(name), FED.select(torch.arange(3))
    state = run_round(method, begin(method, present, 1, Loop()), present, Settings(rounds=3), Loop())[0]
    joined = add_newcomers(method, state, FED, 2, 1, Loop())
    alpha = method.collaboration(joined.server)
    assert torch.equal(alpha[:, 3:], torch.eye(5, dtype=alpha.dtype)[3:].expand(len(alpha), -1, -1))
    assert not alpha[:, :3, 3:].any()
    torch.testing.assert_close(alpha.sum(-1), torch.ones_like(alpha[..., 0]))
    after = run_round(method, joined, FED, Settings(rounds=3), Loop())[0]
    assert (method.collaboration(after.server)[:, :3, 3:] > 0).any()


def test_shared_heads_have_one_map() -> None:
    """K heads over one W are those of K equal W; W is counted once."""
    (apart, _, state), (shared, _, one) = fixture("pfedgat", rounds=1), fixture("pfedgat", rounds=1, shared=True)
    heads, width = apart.heads, apart.head_width
    assert one.server["phi"]["attend.source"].shape[:2] == (1, width)
    phi = {**state.server["phi"], "attend.source": one.server["phi"]["attend.source"].expand(heads, -1, -1)}
    same = {**state.server["phi"], "attend.source": one.server["phi"]["attend.source"]}
    fixed = state.server["fixed"]
    torch.testing.assert_close(apart.weights(phi, fixed, EVERYBODY), shared.weights(same, fixed, EVERYBODY))


def test_delta_feedback() -> None:
    """With one full-batch step and validation on the training rows, the update divided by lr is the gradient itself."""
    same = replace(FED, val=FED.train)
    method = replace(build_method("pfedgat"), training=Training(batch_size=0, epochs=1))
    ends = [
        list(run(replace(method, gat_grad=kind), same, SETTINGS, Loop()))[-1].state.server["phi"]
        for kind in ("client_grad", "delta")
    ]
    torch.testing.assert_close(*ends, rtol=1e-9, atol=1e-12)


def test_traffic() -> None:
    """A model down, with two more per probe. Up the model and, by kind of feedback, scalars and a gradient."""
    p = sum(value.numel() for value in tiny.rows_task().template.parameters())
    expected = {"client_grad": (p, 2 * p + 1), "simulated": (p, p + 1), "delta": (p, p), "spsa": (7 * p, p + 6)}
    for kind, (down, up) in expected.items():
        method, federation, state = fixture("pfedgat", gat_grad=kind, probes=3)
        _, report, _ = run_round(method, state, federation, SETTINGS, Loop())
        assert (report.bytes_down, report.bytes_up) == (4 * tiny.CLIENTS * down, 4 * tiny.CLIENTS * up)


class Line(ClientModel):
    """A linear forecast of two steps from three."""

    head = ("fc",)

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 2)

    def features(self, x: Tensor, *, key: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        return x[:, :3, 0]


def test_spsa_is_unbiased_on_a_quadratic() -> None:
    """Where the loss is quadratic in φ, a probe measures the slope along u exactly, so that E[estimate] = E[u uᵀ] g =
    g.
    """
    task = Forecast(Line, torch.float64, window=3, horizon=2)
    method = tiny.method("direct_matrix", task, "series", gat_grad="spsa", perturbation=0.3)
    federation = tiny.series_federation()
    *_, report = run(method, federation, SETTINGS, Loop())
    state = report.state
    g = single_process(method, federation, state)["matrix"]
    total, draws = torch.zeros_like(g), 3000
    for n in range(draws):
        fixed = {**state.server["fixed"], "key": torch.tensor(n)}
        server = {**state.server, "fixed": fixed}
        u = method.direction(state.server["phi"], fixed, 0)["matrix"]
        assert (u.abs() == 1).all()
        if n < 20:
            estimate = method.gradient(
                server, EVERYBODY, client_answers(method, federation, state._replace(server=server))
            )[0]["matrix"]
            torch.testing.assert_close(estimate, (u * g).sum() * u, rtol=1e-8, atol=1e-10)
        total += (u * g).sum() * u
    error = (total / draws - g).abs()
    assert error.max() < 5 * g.norm() / draws**0.5
    assert g.abs().max() > 0.02 * g.norm()


def test_more_probes_are_the_mean_of_single_ones() -> None:
    """The estimate of K probes is the mean of the K estimates along its directions."""
    method, federation, state = fixture("pfedgat", gat_grad="spsa", probes=2)
    both = method.gradient(state.server, EVERYBODY, client_answers(method, federation, state))[0]
    losses = client_answers(method, federation, state)["losses"].sum(0)
    for name, value in both.items():
        alone = [
            (losses[2 * k] - losses[2 * k + 1])
            / (2 * method.perturbation)
            * method.direction(state.server["phi"], state.server["fixed"], k)[name]
            for k in range(2)
        ]
        torch.testing.assert_close(value, sum(alone) / 2)


@pytest.mark.parametrize("kind", ["simulated", "spsa"])
def test_executors_agree(kind: str) -> None:
    """The other kinds of feedback, too, give the same mapped and in sequence, with partial participation, and after a
    restart.
    """
    method, federation, _ = fixture("pfedgat", gat_grad=kind, probes=2)
    settings = Settings(rounds=3, participation=0.6, seed=1)
    reports = list(run(method, federation, settings, Loop()))
    *_, other = run(method, federation, settings, Batched(2))
    *_, again = run(method, federation, settings, Loop(), reports[0].state)
    for a, b, c in zip(*(trees.tree_leaves(tuple(r.state)) for r in (reports[-1], other, again)), strict=True):
        if isinstance(a, Tensor):
            torch.testing.assert_close(a, b, rtol=1e-8, atol=1e-8)
            assert torch.equal(a, c)


def test_validation_feedback_never_uses_test_rows() -> None:
    """The server learns the same for any test rows. Under test feedback it does not, and reports it."""
    other = replace(tiny.rows_federation(), test=tiny.rows_federation().val)
    ends: dict[str, list[Tree]] = {}
    for split in ("val", "test"):
        method = tiny.method("pfedgat", tiny.rows_task(), "rows", gat_split=split)
        assert method.leaks == (split == "test")
        ends[split] = [
            list(run(method, f, SETTINGS, Loop()))[-1].state.server["phi"] for f in (tiny.rows_federation(), other)
        ]
    for name in ends["val"][0]:
        assert torch.equal(ends["val"][0][name], ends["val"][1][name])
    assert any(not torch.equal(ends["test"][0][name], ends["test"][1][name]) for name in ends["test"][0])


def test_test_feedback_weighs_a_shared_test_set() -> None:
    """The leaking gradient is that of the client's own weighted test loss, which is the reported number."""
    weighted = tiny.rows_federation()
    share = torch.rand(tiny.CLIENTS, tiny.CLASSES, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    rows = torch.arange(12).expand(tiny.CLIENTS, -1)
    federation = replace(weighted, test=rows, own={"test_weight": share})
    method = tiny.method("pfedgat", tiny.rows_task(), "rows", gat_split="test")
    state = begin(method, federation, 0, Loop())
    state, _, _ = run_round(method, state, federation, SETTINGS, Loop())
    actual = phi_gradient(method, state, client_answers(method, federation, state)["gradient"])
    for name, expected in single_process(method, federation, state, "test").items():
        torch.testing.assert_close(actual[name], expected, rtol=1e-6, atol=1e-12)


def test_many_probes_find_the_gradient() -> None:
    """Averaged over many probes, the estimate has the direction of the gradient."""
    method, federation, state = fixture("pfedgat", gat_grad="spsa", probes=400, perturbation=1e-4, rounds=1)
    estimate = method.gradient(state.server, EVERYBODY, client_answers(method, federation, state))[0]
    exact = single_process(method, federation, state)
    cosine = sum((estimate[n] * exact[n]).sum() for n in exact) / (
        sum(v.square().sum() for v in estimate.values()).sqrt() * sum(v.square().sum() for v in exact.values()).sqrt()
    )
    assert cosine > 0.7


def test_attention_to_the_last_dense_layers() -> None:
    """`features: layers` uses only the matrices and vectors of the last layers, at mean 0 and variance 1."""
    federation, task = tiny.rows_federation(), tiny.rows_task()
    for last, names in ((1, ("fc.",)), (2, ("fc1.", "fc."))):
        method = tiny.method("pfedgat", task, "rows", features="layers", last=last)
        state, _, _ = run_round(method, begin(method, federation, 2, Loop()), federation, SETTINGS, Loop())
        models = state.server["fixed"]["models"]
        rows = trees.to_matrix({name: value for name, value in models.items() if name.startswith(names)})
        expected = (rows - rows.mean(1, keepdim=True)) / (rows.var(1, keepdim=True, correction=0) + 1e-5).sqrt()
        torch.testing.assert_close(method._attention_input(models), expected)
    convolutions = build_method("pfedgat", "images", features="layers", last=99)
    models = trees.broadcast(trees.omit(convolutions.task.init(0), convolutions.local_names), tiny.CLIENTS)
    dense = sum(value[0].numel() for name, value in models.items() if name.startswith(("fc1.", "fc.")))
    assert convolutions._attention_input(models).shape == (tiny.CLIENTS, dense)


@pytest.mark.parametrize(("features", "length"), [("all", None), ("proj", 16)])
def test_attention_to_whole_models_or_to_their_sketch(features: str, length: int | None) -> None:
    method = build_method("pfedgat", features=features, sketch=16)
    models = trees.broadcast(method.task.init(0), tiny.CLIENTS)
    whole = trees.to_matrix(models)
    rows = method._attention_input(models)
    assert rows.shape == (tiny.CLIENTS, length or whole.shape[1])
    if features == "all":
        torch.testing.assert_close(rows, F.layer_norm(whole, whole.shape[1:]))
