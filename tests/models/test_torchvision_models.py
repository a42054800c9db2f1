"""Architectures of torchvision as client models: those of torchvision, under every executor, or refused in one line."""

import pytest
import torch
from tiny import CLASSES, rows_federation

from fedweave.client.solvers import SGD
from fedweave.client.task import RowClassification
from fedweave.engine.engine import run
from fedweave.engine.executors import Batched, Loop
from fedweave.engine.records import Settings
from fedweave.engine.schedule import Training
from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.models import MODELS, build, parameter_count
from fedweave.models.own_module import wrap
from fedweave.models.torchvision_models import _names
from fedweave.tensors import trees
from fedweave.tensors.torchvision import declare_operators
from tests.study.test_spec import refused

# The first architectures of families, and the layer that is the head.
HEADS = {
    "resnet18": "fc",
    "vit_b_16": "model.heads.head",
    "mobilenet_v3_small": "classifier.3",
    "swin_t": "head",
    "vgg11": "classifier.6",
    "efficientnet_b0": "classifier.1",
    "googlenet": "fc",
    "squeezenet1_1": "classifier.1",
    "maxvit_t": "classifier.5",
}


def models():
    """The module torchvision.models."""
    declare_operators()
    from torchvision import models

    return models


@pytest.mark.parametrize("arch", HEADS)
def test_a_named_architecture_is_torchvisions_with_an_output_per_class(arch: str) -> None:
    """On grey images of another size, without memory for weights."""
    with torch.device("meta"):
        network = build("torchvision", (1, 40, 56), 7, arch=arch, size=224)
        options = {"aux_logits": False, "init_weights": True} if arch == "googlenet" else {}
        theirs = models().get_model(arch, weights=None, num_classes=7, **options)
        outputs = network(torch.zeros(2, 1, 40, 56))
    assert outputs.shape == (2, 7)
    assert network.head == (HEADS[arch],)
    assert parameter_count(network) == parameter_count(theirs)
    names = {name.removeprefix("model.") for name, _ in network.named_parameters()}
    assert names == {name for name, _ in theirs.named_parameters()}


def test_outputs_are_those_of_torchvision() -> None:
    """Of the same weights, for images of the same size; a grey image is three equal channels."""
    torch.manual_seed(0)
    network = build("torchvision", (3, 32, 32), 5, arch="squeezenet1_1")
    torch.manual_seed(0)
    theirs = models().squeezenet1_1(num_classes=5).eval()
    grey = torch.rand(2, 1, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(network(grey), theirs(grey.repeat(1, 3, 1, 1)))
        larger = torch.nn.functional.interpolate(grey, (64, 64), mode="bilinear")
        resized = build("torchvision", (1, 32, 32), 5, arch="squeezenet1_1", size=64)
        resized.load_state_dict(theirs.state_dict())
        torch.testing.assert_close(resized(grey), theirs(larger.repeat(1, 3, 1, 1)))


def small_swin(shape, outputs):
    """A Swin transformer with stochastic depth, integer buffers, and dropout in attention."""
    return models().SwinTransformer(
        patch_size=[2, 2],
        embed_dim=8,
        depths=[1, 1],
        num_heads=[2, 2],
        window_size=[2, 2],
        num_classes=outputs,
        dropout=0.1,
        attention_dropout=0.1,
        stochastic_depth_prob=0.3,
    )


def small_vit(shape, outputs):
    """A vision transformer with dropout in attention."""
    return models().VisionTransformer(
        image_size=8,
        patch_size=4,
        num_layers=1,
        num_heads=2,
        hidden_dim=8,
        mlp_dim=8,
        num_classes=outputs,
        dropout=0.1,
        attention_dropout=0.2,
    )


@pytest.mark.parametrize("model", [small_swin, small_vit])
def test_executors_agree(model) -> None:
    """Training of clients at once gives the models of training in sequence, with the same random draws."""
    shape = (3, 8, 8)
    task = RowClassification(wrap(model, shape, CLASSES), torch.float64)
    method = METHODS["fedavg_ft"](task=task, solver=SGD(lr=0.1), training=Training(batch_size=4, steps=2))
    ends = [
        [*run(method, rows_federation(shape), Settings(1), executor)][-1].models["post"]
        for executor in (Loop(), Batched(), Loop())
    ]
    for first, other in zip(*map(trees.tree_leaves, ends[:2]), strict=True):
        torch.testing.assert_close(first, other, rtol=1e-6, atol=1e-8)
    assert trees.equal(ends[0], ends[2])


def test_buffers_that_never_change_are_constants() -> None:
    """The relative positions of a Swin transformer are in no model that is sent or mixed."""
    task = RowClassification(lambda: build("torchvision", (3, 32, 32), 3, arch="swin_t"))
    with torch.device("meta"):
        positions = [name for name in task.constants if name.endswith("relative_position_index")]
        assert len(positions) == 12
        assert not task.buffers


@pytest.mark.parametrize(
    ("shape", "options", "words"),
    [
        ((3, 32, 32), {"arch": "resnet19"}, ["model.arch: 'resnet19'", "did you mean 'resnet18'"]),
        ((3, 8, 8), {"arch": "alexnet"}, ["alexnet does not take images of 8 x 8", "set size, as in size: 224"]),
        ((1, 8, 12), {"arch": "vit_b_16"}, ["vit_b_16 takes square images, not 8 x 12", "set size"]),
        ((1, 8, 8), {"arch": "vit_b_16", "size": 40}, ["vit_b_16 does not take images of 40 x 40", "set size"]),
        ((3, 8, 8), {"arch": "maxvit_t", "size": 32}, ["maxvit_t does not take images of 32 x 32", "set size"]),
        ((4, 32, 32), {}, ["resnet18 takes images [1, h, w] or [3, h, w], not [4, 32, 32]"]),
        ((12,), {}, ["resnet18 takes images [1, h, w] or [3, h, w], not [12]"]),
    ],
)
def test_what_does_not_fit_is_one_line(shape, options, words) -> None:
    with refused(*words):
        build("torchvision", shape, 3, **options)


def test_a_wrong_name_is_found_without_data() -> None:
    with pytest.raises(BadInput, match=r"t.model.arch: 'swin' is unknown; did you mean 'swin_t'"):
        MODELS["torchvision"].check({"name": "torchvision", "arch": "swin"}, "t.model")
    MODELS["torchvision"].check({"name": "torchvision"}, "t.model")
    assert len(_names()) >= 80
