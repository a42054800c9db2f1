"""Any nn.Module as a client model: equal under both executors, deterministic in evaluation, or refused."""

from threading import Thread

import pytest
import torch
import torch.nn.functional as F
from tiny import CLASSES, rows_federation
from torch import nn

from fedweave.client.model_check import check_model
from fedweave.client.solvers import SGD
from fedweave.client.task import RowClassification
from fedweave.engine.clients import Clients
from fedweave.engine.engine import run
from fedweave.engine.executors import Batched, Loop
from fedweave.engine.records import Settings
from fedweave.engine.schedule import Training
from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.models.keyed_functions import KeyedFunctions
from fedweave.models.keyed_layers import make_keyed
from fedweave.models.own_module import OwnModule, wrap
from fedweave.tensors import dropout_keys, trees
from fedweave.tensors.attention import plain_attention
from fedweave.tensors.torchvision import declare_operators
from tests.functional_model import Functional

pytestmark = pytest.mark.usefixtures("seeded")


class Sequence(nn.Module):
    """A recurrent layer and a head on its last output."""

    def __init__(self, kind: type[nn.RNNBase], **options: object) -> None:
        super().__init__()
        self.rnn = kind(2, 4, batch_first=True, **options)
        self.fc = nn.Linear(4 * (1 + self.rnn.bidirectional), CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.rnn(x)[0][:, -1])


class Attention(nn.Module):
    """Attention over the values of a row that are not 0, then a head on their mean."""

    def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.embed, self.fc = nn.Linear(1, 4), nn.Linear(4, outputs)
        self.mix = self.layer()

    def layer(self) -> nn.Module:
        return nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.mix(self.embed(x[..., None]), src_key_padding_mask=x == 0).mean(1))


class Multihead(Attention):
    """The attention alone, without a mask."""

    def layer(self) -> nn.Module:
        return nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(x[..., None])
        return self.fc(self.mix(tokens, tokens, tokens, need_weights=False)[0].mean(1))


class TimeFirst(Attention):
    """Dropout in attention, with the tokens on the first axis."""

    def layer(self) -> nn.Module:
        return nn.MultiheadAttention(4, 2, dropout=0.3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(x[..., None]).transpose(0, 1)
        return self.fc(self.mix(tokens, tokens, tokens, key_padding_mask=x == 0)[0].mean(0))


class Scaled(Attention):
    """Attention as a function, with dropout."""

    def layer(self) -> nn.Module:
        return nn.Linear(4, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        tokens = self.embed(x[..., None])
        query, key = self.mix(tokens).chunk(2, -1)
        rate = 0.2 if self.training else 0.0
        return self.fc(F.scaled_dot_product_attention(query, key, tokens, dropout_p=rate, is_causal=True).mean(1))


def residual(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Stochastic depth, by rows and by batches."""
    declare_operators()
    from torchvision.ops import StochasticDepth

    depths = [StochasticDepth(0.4, "row"), StochasticDepth(0.1, "batch")]
    return nn.Sequential(nn.Linear(shape[0], 8), *depths, nn.Linear(8, outputs))


def dense(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Batch normalisation and dropout."""
    return nn.Sequential(nn.Linear(shape[0], 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, outputs))


def normalised(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Layer normalisation and alpha dropout."""
    return nn.Sequential(
        nn.Linear(shape[0], 8), nn.LayerNorm(8), nn.SELU(), nn.AlphaDropout(0.2), nn.Linear(8, outputs)
    )


def convolutional(shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Batch and group normalisation, dropout of channels."""
    return nn.Sequential(
        nn.Conv2d(shape[0], 4, 3, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Dropout2d(0.3),
        nn.MaxPool2d(2),
        nn.GroupNorm(2, 4),
        nn.Flatten(),
        nn.LazyLinear(outputs),
    )


MODELS = {
    "dense": (dense, (6,)),
    "normalised": (normalised, (6,)),
    "functional": (Functional, (6,)),
    "convolutional": (convolutional, (1, 8, 8)),
    "gru": (lambda shape, outputs: Sequence(nn.GRU), (3, 2)),
    "lstm": (lambda shape, outputs: Sequence(nn.LSTM, num_layers=2, dropout=0.3, bidirectional=True), (3, 2)),
    "encoder": (Attention, (6,)),
    "multihead": (Multihead, (6,)),
    "time first": (TimeFirst, (6,)),
    "scaled": (Scaled, (6,)),
    "residual": (residual, (6,)),
}


def maker(name: str) -> OwnModule:
    """What makes models of one of MODELS."""
    model, shape = MODELS[name]
    return wrap(model, shape, CLASSES)


def federation(name: str) -> Clients:
    """Clients of different sizes, with rows for one of MODELS."""
    shape = MODELS[name][1]
    return rows_federation(shape if len(shape) == 3 else (6,))


@pytest.mark.filterwarnings("error:steps run without the kernel")
@pytest.mark.parametrize("name", MODELS)
def test_executors_agree(name: str) -> None:
    """Training with padded batches gives the models of training in sequence, and the kernel covers it."""
    task = RowClassification(maker(name), torch.float64)
    method = METHODS["fedavg_ft"](task=task, solver=SGD(lr=0.1), training=Training(batch_size=4, epochs=2))
    ends = [
        [*run(method, federation(name), Settings(2), executor)][-1]
        for executor in (Loop(), Batched(), Batched(chunk=2), Batched(kernel=True))
    ]
    for end in ends[1:]:
        for first, other in zip(*(trees.tree_leaves(e.models["post"]) for e in (ends[0], end)), strict=True):
            torch.testing.assert_close(first, other, rtol=1e-9, atol=1e-10)
        torch.testing.assert_close(ends[0].scores["post"]["test"], end.scores["post"]["test"])


@pytest.mark.parametrize("name", MODELS)
def test_check_accepts(name: str) -> None:
    """Models on which the executors agree pass the check, alone and stacked."""
    own = maker(name)
    check_model(RowClassification(own), torch.rand(7, *own.shape), CLASSES, own.name)


@pytest.mark.parametrize("setting", [True, False])
@pytest.mark.parametrize("name", ["encoder", "multihead"])
def test_attention_in_evaluation_is_that_of_training(name: str, setting: bool) -> None:
    """Also for rows that are padded whole, of which PyTorch's fast path makes NaN. The user's setting stays."""
    task = RowClassification(maker(name))
    model, x = task.init(0), torch.rand(5, 6)
    x[1], x[2, 3:] = 0.0, 0.0
    torch.backends.mha.set_fastpath_enabled(setting)
    try:
        with torch.no_grad():
            outputs = task.call(model, x)
        assert torch.backends.mha.get_fastpath_enabled() == setting
    finally:
        torch.backends.mha.set_fastpath_enabled(True)
    assert outputs.isfinite().all()
    for layer in task.template.modules():
        if hasattr(layer, "p"):
            layer.p = 0.0
    torch.testing.assert_close(outputs, task.call(model, x, key=dropout_keys.key(1)))


def test_blocks_of_plain_attention_overlap() -> None:
    """A thread that leaves its block does not end that of another one."""
    task, is_on = RowClassification(maker("encoder")), torch.backends.mha.get_fastpath_enabled
    with plain_attention:
        thread = Thread(target=task.call, args=(task.init(0), torch.rand(5, 6)))
        thread.start()
        thread.join()
        assert not is_on()
    assert is_on()


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"normalised", "gru", "lstm", "multihead"}))
def test_dropout_is_a_function_of_the_key(name: str) -> None:
    """Evaluation has no dropout. Training has, with the same result for the same key."""
    task = RowClassification(maker(name))
    model, x = task.init(0), torch.rand(5, *MODELS[name][1])

    def outputs(key: torch.Tensor | None) -> torch.Tensor:
        return task.call({n: v.clone() for n, v in model.items()}, x, key=key)

    assert torch.equal(outputs(None), outputs(None))
    assert torch.equal(outputs(dropout_keys.key(1)), outputs(dropout_keys.key(1)))
    assert not torch.equal(outputs(dropout_keys.key(1)), outputs(dropout_keys.key(2)))


def test_dropout_has_its_rate() -> None:
    """The mean is unchanged."""
    task = RowClassification(
        wrap(lambda shape, outputs: nn.Sequential(nn.Dropout(0.3), nn.Linear(50, outputs)), (50,), 2)
    )
    layer = task.template.inner[0]
    layer.context.key = dropout_keys.key(5)
    dropped = layer(torch.ones(400, 50))
    assert abs(float((dropped == 0).double().mean()) - 0.3) < 0.02
    assert abs(float(dropped.mean()) - 1.0) < 0.03


MASKS = {
    "key_padding_mask": torch.tensor([[False] * 5, [False] * 3 + [True] * 2]),
    "attn_mask": torch.ones(4, 5, dtype=torch.bool).triu(1),
    "average_attn_weights": False,
}


@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"kdim": 2, "vdim": 3}, {"bias": False}])
@pytest.mark.parametrize("masks", [{}, MASKS])
def test_attention_with_dropout_equals_torchs_where_nothing_is_dropped(options: dict, masks: dict) -> None:
    """A rate so small that no element is dropped takes the same path as a larger one."""
    torch.manual_seed(2)
    own = nn.MultiheadAttention(4, 2, dropout=1e-9, **options)
    sizes = [(2, 4, 4), (2, 5, options.get("kdim", 4)), (2, 5, options.get("vdim", 4))]
    inputs = [torch.rand(size) if options.get("batch_first") else torch.rand(size).transpose(0, 1) for size in sizes]
    expected, weights = own.eval()(*inputs, **masks)
    make_keyed(own, "layer").key = dropout_keys.key(3)
    actual, own_weights = own(*inputs, **masks)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(own_weights, weights)


def test_dropout_in_attention_has_its_rate() -> None:
    """Of the weights, whose mean is unchanged; other layers and other functions have other draws."""
    own = nn.ModuleList([nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True) for _ in range(2)])
    key = make_keyed(own, "layer").key = dropout_keys.key(3)
    x = torch.rand(40, 12, 4)
    with torch.no_grad():
        dropped, others = (layer(x, x, x)[1] for layer in own)
        zeros = own[0](x, x, x, average_attn_weights=False)[1] == 0
    assert not torch.equal(dropped == 0, others == 0)
    assert abs(float(zeros.double().mean()) - 0.3) < 0.01
    assert abs(float(dropped.sum(-1).mean()) - 1.0) < 0.03
    grouped = [torch.rand(8, heads, 12, 4) for heads in (4, 2, 2)]
    with KeyedFunctions(key):
        first, second = (
            F.scaled_dot_product_attention(*grouped, dropout_p=0.3, is_causal=True, enable_gqa=True) for _ in range(2)
        )
        none = F.scaled_dot_product_attention(*grouped, dropout_p=1e-9, is_causal=True, enable_gqa=True)
    assert not torch.equal(first, second)
    torch.testing.assert_close(none, F.scaled_dot_product_attention(*grouped, is_causal=True, enable_gqa=True))


def test_stochastic_depth_drops_whole_rows() -> None:
    """Kept rows are scaled, so that the mean is unchanged; with the mode "batch" all rows share one draw."""
    task = RowClassification(maker("residual"))
    rows, batch = task.template.inner[1], task.template.inner[2]
    rows.context.key, x = dropout_keys.key(4), torch.rand(4000, 3)
    kept = rows(x)[:, 0] != 0
    assert abs(float(kept.double().mean()) - 0.6) < 0.03
    torch.testing.assert_close(rows(x), x * kept[:, None] / 0.6, rtol=1e-4, atol=1e-6)
    kept = []
    for draw in range(400):
        rows.context.key = dropout_keys.key(draw)
        kept.append(float((batch(x)[:, 0] != 0).double().mean()))
    assert {*kept} == {0.0, 1.0}
    assert abs(sum(kept) / len(kept) - 0.9) < 0.05


@pytest.mark.parametrize(
    ("kind", "options"), [(nn.GRU, {}), (nn.LSTM, {"bidirectional": True}), (nn.RNN, {"nonlinearity": "relu"})]
)
def test_recurrent_layers_equal_torchs(kind: type[nn.RNNBase], options: dict) -> None:
    """The layers as matrix products have the outputs and states of torch's own."""
    torch.manual_seed(1)
    own = kind(3, 5, num_layers=2, **options)
    x = torch.rand(4, 2, 3)
    expected, states = own(x)
    make_keyed(own, "layer")
    actual, actual_states = own(x)
    torch.testing.assert_close(actual, expected)
    for mine, theirs in zip(trees.tree_leaves(actual_states), trees.tree_leaves(states), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_batch_norm_equals_torchs() -> None:
    """Training on a full batch, and on the real rows of a padded one, updates the statistics as torch does."""
    own = nn.BatchNorm1d(3)
    x = torch.rand(6, 3)
    theirs = nn.BatchNorm1d(3)
    expected = theirs.train()(x[:4])
    context = make_keyed(own, "layer")
    context.key, context.mask = dropout_keys.key(0), torch.tensor([True] * 4 + [False] * 2)
    torch.testing.assert_close(own(x)[:4], expected)
    torch.testing.assert_close(own.running_mean, theirs.running_mean)
    torch.testing.assert_close(own.running_var, theirs.running_var)


def test_the_head_of_a_network_with_a_parameter_of_its_own() -> None:
    """It ends after its head, whose output it returns; the head is not the whole network."""

    class Token(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = nn.Parameter(torch.zeros(6))
            self.body, self.fc = nn.Linear(6, 4), nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.fc(self.body(x + self.token).relu())

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Token()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

    assert wrap(Token, (6,), 3).head == "model.fc"
    assert wrap(Outer, (6,), 3).head == "net.fc"


def test_a_wrapped_module_has_the_names_head_and_features_of_its_module() -> None:
    """Parameters keep their names. The head is the last layer that runs. The model is its head on its features."""

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head, self.features = nn.Linear(4, 3), nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.features(x).relu())

    task = RowClassification(wrap(Named, (6,), 3))
    assert task.head == ("head.weight", "head.bias")
    assert {*task.params} == {*Named().state_dict()}
    model, x = task.init(0), torch.rand(5, 6)
    features = task.call(model, x, "features")
    torch.testing.assert_close(task.call(model, features, "classify"), task.call(model, x))
    assert RowClassification(wrap(Named, (6,), 3, head="features")).head == ("features.weight", "features.bias")
    own = Named()
    own.load_state_dict(model)
    torch.testing.assert_close(own(x), task.call(model, x))


def test_instances_keep_their_values_and_classes_are_drawn() -> None:
    """An instance starts from its values for every seed. A class is drawn for each seed. Frozen parts stay on the
    client.
    """
    instance = nn.Sequential(nn.Linear(6, 4), nn.Linear(4, 3))
    task = RowClassification(wrap(instance, (6,), 3))
    assert all(torch.equal(task.init(0)[name], task.init(1)[name]) for name in task.params)
    task = RowClassification(wrap(Functional, (6,), 3))
    assert not torch.equal(task.init(0)["first.weight"], task.init(1)["first.weight"])
    instance[0].requires_grad_(False)
    task = RowClassification(wrap(instance, (6,), 3))
    assert task.params == ("1.weight", "1.bias")
    assert {*task.constants} == {"0.weight", "0.bias"}
    assert not task.buffers
    assert {*task.init(0)} == {"1.weight", "1.bias"}


def test_a_last_layer_that_is_frozen_is_no_head() -> None:
    """The layer before it would be one, without a word; so it is refused, unless the head has a name."""
    net = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    net[2].requires_grad_(False)
    with pytest.raises(BadInput, match=r"^model: Sequential: '2', which gives the outputs, is frozen, .*: head='0'$"):
        wrap(net, (6,), 3)
    with pytest.raises(BadInput, match="head: '2' is not a layer of Sequential with trained parameters; choices: 0"):
        wrap(net, (6,), 3, head="2")
    assert wrap(net, (6,), 3, head="0").head == "0"
    net[2].requires_grad_(True)
    net[0].requires_grad_(False)
    assert wrap(net, (6,), 3).head == "2"


def test_the_code_hash_depends_on_structure_source_and_values() -> None:
    """It does not depend on a comment."""

    def code(model: object) -> str:
        return wrap(model, (6,), 3).code

    assert code(Functional) == code(Functional)
    assert code(lambda shape, outputs: nn.Linear(6, outputs)) != code(
        lambda shape, outputs: nn.Linear(6, outputs, bias=False)
    )
    assert code(nn.Sequential(nn.Linear(6, 3))) != code(nn.Sequential(nn.Linear(6, 3)))

    class Other(Functional):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(F.dropout(F.gelu(self.first(x)), 0.4, self.training))

    assert code(Other) != code(Functional)
