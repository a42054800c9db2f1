"""Weights inside of packages as frozen bodies: read where they are installed, one for all clients."""

import os
import re
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
from hosts import Hosts, planned, same
from safetensors.torch import save_file

import fedweave as fw
from fedweave import exported_model
from fedweave.client.task import RowClassification
from fedweave.comparison.plan import plan
from fedweave.errors import BadInput
from fedweave.files import weights
from fedweave.models import build, encode_texts
from fedweave.models.word_vectors import TOKENIZER, VECTORS
from fedweave.pipelines.stages import graphs
from tests.study.test_spec import refused

needs_wordllama = pytest.mark.skipif(
    not (find_spec("wordllama") and find_spec("tokenizers")), reason="the extra texts is not installed"
)
CODES = [[3, 1, -1, -1], [2, -1, -1, -1], [-1, -1, -1, -1]]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package with a matrix of vectors, whose code must not run."""
    folder = tmp_path / "packed_vectors" / "weights"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError('imported')")
    save_file({"embedding.weight": torch.arange(12.0).reshape(4, 3).half()}, folder / "small.safetensors")
    monkeypatch.syspath_prepend(tmp_path)
    return "package:packed_vectors/weights/small.safetensors"


def test_features_are_of_the_mean_vector_of_the_pieces(package: str) -> None:
    """The table is a constant: in no model, and the same for all clients."""
    task = RowClassification(lambda: build("word_vectors", (4,), 2, hidden=5, weights=package))
    assert task.constants == ("vectors.weight",)
    assert task.params == ("fc1.weight", "fc1.bias", "fc.weight", "fc.bias")
    model, table = task.init(0), torch.arange(12.0).reshape(4, 3)
    means = torch.stack([(table[3] + table[1]) / 2, table[2], torch.zeros(3)])
    expected = torch.nn.functional.linear(means, model["fc1.weight"], model["fc1.bias"]).relu()
    torch.testing.assert_close(task.call(model, torch.tensor(CODES).float(), "features"), expected)


def test_a_package_is_found_and_its_file_has_a_digest(package: str) -> None:
    """The digest is a part of the run; the file is no dependency of DVC, as it is outside of the project."""
    rows = np.array(CODES * 8)
    federation = fw.Federation.from_arrays(rows, [0, 1, 1] * 8, client=["a", "b"] * 12, normalize="none", name="toy")
    block = {"name": "word_vectors", "weights": package}
    run = plan(federation, ["fedavg"], model=block, train={"rounds": 1}).study.run("toy-fedavg")
    assert run.task.model["digest"] == weights.digest(package)
    assert graphs.graph_paths({"study": "s", "runs": {}, "methods": {}, "tasks": {"toy": {"model": block}}}) == {}


@pytest.mark.parametrize(
    ("code", "normalize", "line"),
    [
        (1, None, "normalize: standard, but word_vectors reads codes, which have no scale; use none"),
        (4, "none", "model: word_vectors reads codes from -1 to 3, not 4; make them with encode_texts"),
        (0.5, "none", "model: word_vectors reads codes from -1 to 3, not 0.5; make them with encode_texts"),
    ],
)
def test_rows_that_are_no_codes_are_one_line(code: float, normalize: str | None, line: str, package: str) -> None:
    """Scaled codes would be codes of other pieces, and those without a vector an error of PyTorch."""
    rows = np.array(CODES * 8, dtype=float)
    rows[-1, 0] = code
    toy = fw.Federation.from_arrays(rows, [0, 1, 1] * 8, client=["a", "b"] * 12, normalize=normalize)
    with pytest.raises(BadInput) as error:
        fw.fit("fedavg", toy, model={"name": "word_vectors", "weights": package}, rounds=1)
    assert str(error.value).startswith(line)


def test_codes_of_new_rows_are_checked(package: str, tmp_path: Path) -> None:
    """In predictions and by an exported folder; a code below -1 would be no piece, and a part of one another piece."""
    rows = np.array(CODES * 8)
    toy = fw.Federation.from_arrays(rows, [0, 1, 1] * 8, client=["a", "b"] * 12, normalize="none")
    result = fw.fit("fedavg_ft", toy, model={"name": "word_vectors", "weights": package}, rounds=1)
    exported = exported_model.load(result.export(tmp_path / "a", "a"))
    np.testing.assert_allclose(result.predict(rows, "a"), exported.predict(rows))
    for code in (-2, 4, 0.5):
        bad = rows.astype(float)
        bad[3, 1] = code
        problem = rf"^x: the model reads codes from -1 to 3, not {code}; make them with encode_texts"
        with pytest.raises(BadInput, match=problem):
            result.predict(bad, "a")
        with pytest.raises(exported_model.InputError, match=problem):
            exported.predict(bad)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("", "model.weights: missing, the file of the vectors; for example weights: package:wordllama/weights"),
        ("package:no_such/a.pt", "the package no_such is not installed; run: pip install no-such"),
        ("package:packed_vectors/none.pt", "not found at"),
        ("package:../a.pt", "is not installed"),
    ],
)
def test_vectors_that_are_not_there_are_one_line(path: str, words: str, package: str) -> None:
    with refused(words):
        build("word_vectors", (4,), 2, weights=path)


def test_weights_that_are_no_vectors_are_one_line(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(2, 2), "b": torch.zeros(2, 2)}, tmp_path / "two.safetensors")
    with pytest.raises(BadInput, match="2 matrices, and one is needed"):
        build("word_vectors", (4,), 2, weights=str(tmp_path / "two.safetensors"))


@pytest.mark.skipif(bool(find_spec("tokenizers")), reason="it is installed")
def test_the_tokenizer_is_optional() -> None:
    with pytest.raises(BadInput, match="encode_texts: needs wordllama, which is not installed; run: pip install"):
        encode_texts(["a"])


@needs_wordllama
def test_texts_become_pieces_of_words() -> None:
    """Two codes of equal words are equal; long texts are cut, and short ones end with -1."""
    codes = encode_texts(["good and fast", "good", "", "good " * 40], 4)
    assert codes.shape == (4, 4)
    assert codes[0, 0] == codes[1, 0] == codes[3, 3]
    assert codes[1, 1:].tolist() == [-1, -1, -1]
    assert (codes[2] == -1).all()
    for bad, words in ((["a", None], "None is not a text"), ("good", "'good' is one text")):
        with pytest.raises(BadInput, match=words):
            encode_texts(bad)
    with pytest.raises(BadInput, match="cannot be read"):
        encode_texts(["a"], tokenizer=TOKENIZER.replace("l2_supercat_tokenizer_config", "none"))


@needs_wordllama
def test_near_words_are_near_in_the_vectors_of_the_package() -> None:
    """Words that no client trained on are understood: the vectors know them."""
    model = build("word_vectors", (8,), 2, weights=VECTORS)
    words = ["happy", "joyful", "invoice"]
    means = [model.vectors(torch.from_numpy(row[row >= 0])).mean(0) for row in encode_texts(words, 8)]
    near, far = (torch.cosine_similarity(means[0], other, dim=0) for other in means[1:])
    assert near > far + 0.1


@pytest.mark.skipif(not find_spec("silero_vad"), reason="the package silero-vad is not installed")
def test_the_voice_of_the_page_is_the_network_of_the_package() -> None:
    """The network of docs/pretrained.md takes the package's file. With the weights of the package's own program, which
    are others, it has the outputs of that program.
    """
    page = Path(__file__).resolve().parents[2] / "docs" / "pretrained.md"
    block = next(b for b in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.M | re.S) if "silero" in b)
    names: dict = {}
    exec(compile(block, str(page), "exec"), names)
    voice = names["voice"]((576,), 2)
    assert [name for name, value in voice.named_parameters() if value.requires_grad] == ["fc.weight", "fc.bias"]
    theirs = torch.jit.load(weights.locate("package:silero_vad/data/silero_vad.jit"))
    state = {name.removeprefix("_model."): value for name, value in theirs.state_dict().items()}
    voice.stft_conv.weight.data = state["stft.forward_basis_buffer"]
    for i, layer in enumerate((voice.conv1, voice.conv2, voice.conv3, voice.conv4)):
        layer.load_state_dict({part: state[f"encoder.{i}.reparam_conv.{part}"] for part in ("weight", "bias")})
    voice.lstm_cell.load_state_dict({name: state[f"decoder.rnn.{name}"] for name in voice.lstm_cell.state_dict()})
    sound = torch.sin(torch.arange(512) * 0.05 + 3 * torch.sin(torch.arange(512) * 0.01))[None] * 0.3
    with torch.no_grad():
        found = voice.features(torch.nn.functional.pad(sound, (64, 0))).relu()
        logit = found @ state["decoder.decoder.2.weight"][0] + state["decoder.decoder.2.bias"]
        torch.testing.assert_close(logit.sigmoid(), theirs(sound, 16000), rtol=1e-3, atol=1e-4)


def test_separate_hosts_read_their_own_copy_of_the_file(tmp_path: Path) -> None:
    """With the bits of the simulation; no message has the vectors, and a host with another file refuses to work."""
    file = tmp_path / "vectors.safetensors"
    save_file({"embedding.weight": torch.arange(12.0).reshape(4, 3).sin()}, file)
    rows = np.random.default_rng(0).integers(-1, 4, size=(45, 5))
    federation = fw.Federation.from_arrays(rows, rows[:, 0] > 1, client=[0, 1, 2] * 15, normalize="none", name="toy")
    hosts = Hosts(tmp_path / "hosts", planned("fedavg", federation, {"name": "word_vectors", "weights": str(file)}))
    calls = hosts.calls()
    assert same(hosts.run(calls).history, hosts.simulation())
    names = {name for _, request, reply in calls.sent for name in (*request.shared, *reply.upload)}
    assert "model|fc1.weight" in names
    assert not any("vectors" in name for name in names)
    save_file({"embedding.weight": torch.zeros(4, 3)}, file)
    os.utime(file, ns=(1, 1))
    with pytest.raises(BadInput, match=r"model\.weights: .*vectors\.safetensors: its digest is .* was trained"):
        Hosts(tmp_path / "hosts", hosts.planned).node(0)
