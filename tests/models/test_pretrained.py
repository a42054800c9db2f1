"""Weights from files: each format gives the saved values, what does not fit is one line, files have digests."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import fedweave as fw
from fedweave.comparison.plan import plan
from fedweave.errors import BadInput
from fedweave.files import weights
from fedweave.models import MODELS, build
from fedweave.models.own_module import wrap
from fedweave.models.pretrained import load_weights
from fedweave.pipelines.stages import graphs
from fedweave.study import spec, validate
from fedweave.study.model_files import add_digest
from tests.study.test_spec import good, refused

State = dict[str, torch.Tensor]


def net(outputs: int = 3) -> nn.Sequential:
    """A body with batch normalisation, and a head."""
    body = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU())
    return nn.Sequential(body, nn.Linear(5, outputs))


@pytest.fixture
def state() -> State:
    """The state of a network that was trained elsewhere."""
    torch.manual_seed(7)
    trained = net()
    trained.train()(torch.randn(8, 4))
    return trained.state_dict()


def save_shards(state: State, folder: Path) -> Path:
    """A folder of Hugging Face in two parts with an index."""
    folder.mkdir()
    names = sorted(state)
    parts = {"model-1.safetensors": names[:3], "model-2.safetensors": names[3:]}
    for file, own in parts.items():
        save_file({name: state[name] for name in own}, folder / file)
    index = {"weight_map": {name: file for file, own in parts.items() for name in own}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def save_folder(state: State, folder: Path) -> Path:
    """A folder of Hugging Face."""
    folder.mkdir()
    save_file(state, folder / "model.safetensors")
    (folder / "config.json").write_text("{}")
    return folder


def save_hub(state: State, folder: Path) -> Path:
    """A folder of torch.hub with two networks."""
    (folder / "checkpoints").mkdir(parents=True)
    torch.save(state, folder / "checkpoints" / "net-0a1b2c3d.pth")
    torch.save({"other": torch.zeros(1)}, folder / "checkpoints" / "net18-ffffffff.pth")
    return folder


def save_one(save, name: str):
    """A function that saves into one file."""

    def write(state: State, folder: Path) -> Path:
        folder.mkdir()
        save(state, folder / name)
        return folder / name

    return write


FORMS = {
    "safetensors": save_one(save_file, "net.safetensors"),
    "torch": save_one(torch.save, "net.pt"),
    "old torch": save_one(lambda s, f: torch.save(s, f, _use_new_zipfile_serialization=False), "net.pth"),
    "trainer": save_one(lambda s, f: torch.save({"epoch": 3, "state_dict": s}, f), "net.ckpt"),
    "parallel": save_one(lambda s, f: torch.save({f"module.{k}": v for k, v in s.items()}, f), "net.pth"),
    "hugging face": save_folder,
    "shards": save_shards,
    "torch.hub": save_hub,
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_gives_the_values_that_were_saved(form: str, state: State, tmp_path: Path) -> None:
    """Statistics of batch normalisation included."""
    path = FORMS[form](state, tmp_path / "weights")
    module = load_weights(net(), path, architecture="net")
    for name, value in module.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            assert torch.equal(value, state[name]), name
    assert len(weights.digest(path, "net")) == weights.DIGITS


def test_a_part_of_a_module_is_found_by_its_prefix(state: State, tmp_path: Path) -> None:
    """Here the file has the body alone, and the module calls it otherwise."""
    body = {name.removeprefix("0."): value for name, value in state.items() if name.startswith("0.")}
    save_file(body, tmp_path / "body.safetensors")
    own = nn.ModuleDict({"encoder": net()[0], "out": nn.Linear(5, 2)})
    before = own["out"].weight.clone()
    load_weights(own, tmp_path / "body.safetensors", without="out")
    assert torch.equal(own["encoder"][0].weight, state["0.0.weight"])
    assert torch.equal(own["out"].weight, before)


@pytest.mark.parametrize(("outputs", "loaded"), [(3, True), (4, False)])
def test_the_head_is_loaded_where_it_fits(outputs: int, loaded: bool, state: State, tmp_path: Path) -> None:
    save_file(state, tmp_path / "net.safetensors")
    module = load_weights(net(outputs), tmp_path / "net.safetensors", head="1")
    assert torch.equal(module[0][0].weight, state["0.0.weight"])
    assert (module[1].weight.shape == (3, 5) and torch.equal(module[1].weight, state["1.weight"])) == loaded


def test_what_does_not_fit_is_one_line(state: State, tmp_path: Path) -> None:
    """With numbers, first names, nearest names, and shapes; nothing is loaded."""
    renamed = {name.replace("0.0.", "0.first."): value for name, value in state.items()}
    save_file({**renamed, "1.weight": torch.zeros(9, 5)}, tmp_path / "net.safetensors")
    module = net()
    before = module[0][0].weight.clone()
    with refused(
        "2 missing, as 0.0.weight (nearest in the file: 0.first.weight)",
        "2 unexpected, as 0.first.bias (nearest in the model: 0.0.bias)",
        "1 of another shape, as 1.weight ([9, 5] in the file, [3, 5] in the model; without='1' leaves",
    ):
        load_weights(module, tmp_path / "net.safetensors")
    assert torch.equal(module[0][0].weight, before)


@pytest.mark.parametrize(
    ("write", "words"),
    [
        (lambda f: None, "not found at"),
        (lambda f: f.with_suffix(".onnx").write_text("x"), "not found at"),
        (lambda f: f.write_bytes(b"damaged"), "cannot be read as weights alone"),
        (lambda f: torch.save(net(), f), "cannot be read as weights alone"),
        (lambda f: torch.save([torch.zeros(1)], f), "holds no tensors by name, but 'list'"),
        (lambda f: torch.save({"epoch": 3}, f), "holds no tensors by name"),
        (lambda f: f.mkdir(), "a folder without weights"),
        (
            lambda f: [f.mkdir(), *(torch.save({}, f / n) for n in ("a.pt", "b.pt"))],
            "holds 2 files of weights (a.pt, b.pt)",
        ),
    ],
)
def test_files_that_hold_no_weights_are_one_line(write, words: str, tmp_path: Path) -> None:
    """A file with code in it is refused, and its code does not run."""
    path = tmp_path / "net.pth"
    write(path)
    with refused(words, str(path)):
        load_weights(net(), path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_text("x")
    with pytest.raises(BadInput, match=r"net\.onnx: a file of another format; use \.safetensors, \.pt"):
        weights.read(tmp_path / "net.onnx")


def change(path: Path, state: State) -> None:
    """Write other weights of the same size into a file."""
    save_file({name: value + 1 if value.is_floating_point() else value for name, value in state.items()}, path)
    os.utime(path, ns=(1, path.stat().st_mtime_ns + 10**9))


def test_a_changed_file_is_another_model(state: State, tmp_path: Path) -> None:
    """Of a function that makes the model, too: its hash changes with the file, and with what is left out."""
    file = tmp_path / "net.safetensors"
    save_file(state, file)

    def make(shape, outputs):
        return load_weights(net(outputs), file, head="1")

    first = wrap(make, (4,), 3).code
    assert wrap(make, (4,), 3).code == first
    assert wrap(lambda shape, outputs: net(outputs), (4,), 3).code != first
    change(file, state)
    assert wrap(make, (4,), 3).code != first


def federation() -> fw.Federation:
    """Three clients with eight small images each."""
    draws = np.random.default_rng(0)
    images = draws.integers(0, 256, size=(24, 3, 32, 32), dtype=np.uint8)
    return fw.Federation.from_arrays(images, images.mean((1, 2, 3)) > 127, client=["a", "b", "c"] * 8, name="pictures")


def test_torchvision_starts_from_a_file_with_another_head(tmp_path: Path) -> None:
    """The rest has the values of the file; a changed file is another run, and a declared digest must be that of it."""
    torch.manual_seed(3)
    theirs = build("torchvision", (3, 32, 32), 1000, arch="squeezenet1_1").state_dict()
    file = tmp_path / "checkpoints" / "squeezenet1_1-b8a52dc0.pth"
    file.parent.mkdir()
    torch.save(theirs, file)
    model = {"name": "torchvision", "arch": "squeezenet1_1", "weights": str(tmp_path)}
    own = build(shape=(3, 32, 32), outputs=5, **model).state_dict()
    assert own["classifier.1.weight"].shape[0] == 5
    assert all(torch.equal(own[name], theirs[name]) for name in own if not name.startswith("classifier.1."))

    def run(block):
        train = {"rounds": 1, "lr": 0.1}
        planned = plan(federation(), ["fedavg"], model=block, train=train)
        return planned.study.run("pictures-fedavg")

    first, digest = run(model), weights.digest(file)
    assert first.specification()["task"]["model"]["digest"] == digest
    assert run({**model, "weights": str(file)}).task.model["digest"] == digest
    torch.save({name: value + 1 for name, value in theirs.items()}, file)
    os.utime(file, ns=(1, 1))
    assert run(model).fingerprint() != first.fingerprint()
    with pytest.raises(BadInput, match=f"model.weights: .* but {digest} was trained or declared"):
        run({**model, "digest": digest})
    with pytest.raises(BadInput, match=r"weights: .*none: not found at"):
        run({**model, "weights": str(tmp_path / "none")})
    with pytest.raises(BadInput, match=r"resnet18: weights: .*do not fit: \d+ missing, as conv1.weight"):
        run({**model, "arch": "resnet18"})


class Own(MODELS["mlp"]):
    """A model of a plug-in with the option `weights`."""

    def __init__(self, shape, outputs, *, weights: str = "") -> None:
        super().__init__(shape, outputs, hidden=3)
        if weights:
            load_weights(self, weights)


def test_a_study_knows_the_file_of_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a model with the option `weights`: a missing file is refused, DVC gets the file, and a variant its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(MODELS, "own", Own)
    content = good()
    task = next(iter(content["tasks"].values()))
    run = next(key for key, item in content["runs"].items() if content["tasks"][item["task"]] is task)
    task["model"] = {"name": "own", "weights": "a.pt"}
    content["ablate"] = {
        "start": {"run": run, "variants": {"b": {"model.weights": "b.pt"}, "none": {"model.weights": ""}}}
    }
    with pytest.raises(BadInput, match=r"model\.weights: a\.pt: not found at"):
        validate.check(spec.parse(content))
    for number, name in enumerate("ab"):
        torch.save({"x": torch.tensor(number)}, f"{name}.pt")
    study = validate.check(spec.parse(content))
    digests = [
        validate.build_variant(study, run, {}, settings).task.model.get("digest")
        for settings in ({}, {"model.weights": "b.pt"}, {"model.weights": ""})
    ]
    assert digests == [weights.digest("a.pt"), weights.digest("b.pt"), None]
    assert {name.partition("-")[0]: path for name, path in graphs.graph_paths(content).items()} == {"weights": "b.pt"}
    assert {*graphs.graph_paths(content).values()} == {"a.pt", "b.pt"}
    assert add_digest({"name": "mlp"}) == {"name": "mlp"}
