"""Bad configurations beyond those of test_spec: one line that names the key, the value and the way out, before any
work.
"""

import copy
import itertools
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from dvc.utils.serialize import parse_yaml

from fedweave import data
from fedweave.errors import BadInput, choose, shown
from fedweave.methods import METHODS
from fedweave.pipelines.commands import main, single, studies
from fedweave.pipelines.scheduling import flows
from fedweave.runs import assembly, repetition
from fedweave.study import catalogue, config, spec
from tests.study.test_spec import altered, good

ROOT = Path(__file__).resolve().parents[2]
DIGITS, GRAPH = "tasks/digits", "tasks/graph"

ALLOWED = ["letters (a-z, A-Z), digits, - and _"]

# path in the file, bad value -> words that the message must contain.
BAD: list[tuple[str, Any, list[str]]] = [
    ("study", "../../etc", ["study", "../../etc", "letters"]),
    ("study", "a//b", ["study", "a//b"]),
    ("study", 7, ["study", "7", "str"]),
    ("seeds", "0", ["seeds", "'0'", "list"]),
    ("seeds", [2**40], ["seeds", str(2**40), "2^31"]),
    ("tasks", [1], ["tasks", "[1]", "dict"]),
    ("runs", {"../x": {"task": "digits", "method": "ditto"}}, ["runs", "../x", "letters"]),
    ("runs", {5: {"task": "digits", "method": "ditto"}}, ["runs", "5", "letters"]),
    ("runs/digits-ditto", "ditto", ["runs.digits-ditto", "'ditto'", "mapping"]),
    ("runs/digits-ditto/task", 3, ["runs.digits-ditto.task", "3", "text"]),
    ("runs/digits-ditto/set", 3, ["runs.digits-ditto.set", "3", "mapping"]),
    ("runs/digits-ditto/set", {"train": 3}, ["runs.digits-ditto", "train", "3", "mapping"]),
    ("runs/digits-ditto/set", {"train.lrr": 1}, ["train.lrr", "did you mean 'lr'"]),
    ("runs/digits-ditto/set", {"train.lr": "fast"}, ["train.lr", "'fast'"]),
    ("runs/digits-ditto/set", {"lam": {"a": 1}}, ["lam", "number"]),
    ("methods", ["ditto"], ["methods", "dict"]),
    ("methods", {"dito": {}}, ["methods", "did you mean 'ditto'"]),
    ("methods/ditto", 3, ["methods.ditto", "3", "mapping"]),
    ("methods/ditto/lam", -1.0, ["methods.ditto.lam", "-1.0", "at least 0"]),
    ("methods/ditto/lam", None, ["methods.ditto.lam", "None", "number"]),
    ("methods/ditto/personal_epochs", -1, ["methods.ditto.personal_epochs", "-1"]),
    ("tasks", {"a b": {}}, ["tasks: 'a b'", *ALLOWED]),
    ("tasks", {"digits (small)": {}}, ["tasks: 'digits (small)'", *ALLOWED]),
    ("tasks", {"x" * 101: {}}, ["tasks: 'xxx", *ALLOWED]),
    ("tasks", {"ü" * 120: {}}, ["tasks: 'üüü", *ALLOWED]),
    ("tasks", {"a.b": {}}, ["tasks: 'a.b'", *ALLOWED]),
    ("tasks", {"-rf": {}}, ["tasks: '-rf'", *ALLOWED]),
    ("tasks", {"$(id)": {}}, ["tasks: '$(id)'", *ALLOWED]),
    ("tasks", {"${study}": {}}, ["tasks: '${study}'", *ALLOWED]),
    ("tasks", {"digits\n": {}}, [r"tasks: 'digits\n'", *ALLOWED]),
    ("tasks", {"digits": {}, "Digits": {}}, ["tasks: 'Digits' and 'digits'", "capital letters"]),
    ("runs", {"a;id": {"task": "digits", "method": "ditto"}}, ["runs: 'a;id'", *ALLOWED]),
    ("runs/digits-ditto/task", "a b", ["runs.digits-ditto.task: 'a b'", *ALLOWED]),
    ("methods", {"a b": {}}, ["methods: 'a b'", *ALLOWED]),
    ("ablate", {"a/b": {}}, ["ablate: 'a/b'", *ALLOWED]),
    ("ablate", {"x": {"run": "digits-ditto", "variants": {"a\nb": {}}}}, ["ablate.x.variants", r"'a\nb'", "printed"]),
    (
        "ablate",
        {"x": {"run": "digits-ditto", "grid": {"lam": [*range(2000)]}}},
        ["ablate.x.grid", "2000 combinations", "1000"],
    ),
    ("datasets", ["a; id"], ["datasets: 'a; id'", *ALLOWED]),
    ("study", "a b", ["study: 'a b'", *ALLOWED]),
    ("study", "a/.hidden", ["study: 'a/.hidden'", *ALLOWED]),
    ("study", "/".join(["a"] * 100), ["study", "150 characters"]),
    ("study", "quick/runs", ["study: 'quick/runs'", "results of 'quick'"]),
    ("about", ["x"], ["about: ['x']", "text"]),
    ("seeds", [*range(100_000)], ["seeds: [0, 1, 2", "between 1 and 1000"]),
    ("tune/seeds", [], ["tune.seeds: []", "between 1 and 1000"]),
    ("tune/seeds", [-1], ["tune.seeds: [-1]", "at least 0"]),
    ("tune/seeds", [7, 7], ["tune.seeds: [7, 7]", "different"]),
    ("tune/seeds", [10**30], ["tune.seeds", "too large"]),
    ("tune/seeds", [2**31], ["tune.seeds", "too large"]),
    ("tune/seeds", [True], ["tune.seeds", "whole number"]),
    ("tune/seeds", [*range(5, 5000)], ["tune.seeds: [5, 6", "between 1 and 1000"]),
    ("tune/workers", 10**9, ["tune.workers", "1024"]),
    ("tune/trials", 10**12, ["tune.trials", "too large"]),
    ("datasets", ["digits"], ["datasets", "digits-graph"]),
    ("datasets", 4, ["datasets", "4"]),
    ("tune", None, ["tune", "None", "mapping"]),
    ("tune/share", 0, ["tune.share", "0", "between"]),
    ("tune/share", 1.5, ["tune.share", "1.5"]),
    ("tune/workers", 0, ["tune.workers", "0"]),
    ("tune/spaces", {"dito": {}}, ["tune.spaces", "did you mean 'ditto'"]),
    ("tune/spaces", {"ditto": 3}, ["tune.spaces.ditto", "3", "mapping"]),
    ("ablate", [1], ["ablate", "mapping"]),
    ("ablate", {"x": {"run": "digits-ditto", "variants": {"a": 3}}}, ["ablate.x", "settings"]),
    (f"{DIGITS}/partition/clients", "ten", ["partition.clients", "'ten'", "whole number"]),
    (f"{DIGITS}/partition/clients", 0, ["partition.clients", "0", "at least 1"]),
    (f"{DIGITS}/partition/clients", 2.5, ["partition.clients", "2.5"]),
    (f"{DIGITS}/partition/clients", True, ["partition.clients", "True"]),
    (f"{DIGITS}/partition", {"name": "iid", "clients": 3}, ["partition.seed", "None", "whole number"]),
    (f"{DIGITS}/partition/seed", -1, ["partition.seed", "-1"]),
    (f"{DIGITS}/partition/7", 1, ["partition", "'7'", "choices"]),
    (f"{DIGITS}/model", {"name": "lenet16", "batch_norm": 1}, ["model.batch_norm", "1", "true or false"]),
    (f"{DIGITS}/model", {"name": "mlp", "hidden": 0}, ["model.hidden", "0", "at least 1"]),
    (f"{DIGITS}/model", {"name": "mlp", "hidden": "big"}, ["model.hidden", "'big'", "whole number"]),
    (f"{DIGITS}/model", {"name": "mlp", "hidden": [8, -1]}, ["model.hidden", "-1"]),
    (f"{DIGITS}/model", {}, ["model.name", "missing", "small_cnn"]),
    (f"{DIGITS}/model", "small_cnn", ["model", "'small_cnn'", "mapping"]),
    (f"{GRAPH}/model/dropout", 1.5, ["model.dropout", "1.5"]),
    (f"{GRAPH}/model/hidden", None, ["model.hidden", "None"]),
    (f"{DIGITS}/train/participation", 50, ["train.participation", "50", "10 clients"]),
    (f"{DIGITS}/train/participation", 2.5, ["train.participation", "2.5", "whole number"]),
    (f"{DIGITS}/train/participation", -0.1, ["train.participation", "-0.1"]),
    (f"{DIGITS}/train/freeze", True, ["train.freeze", "newcomers"]),
    (f"{DIGITS}/train/freeze", "yes", ["train.freeze", "'yes'", "true or false"]),
    (f"{DIGITS}/train/checkpoint", -5, ["train.checkpoint", "-5"]),
    (f"{DIGITS}/train/clip", 0, ["train.clip", "0"]),
    (f"{DIGITS}/train/weight_decay", -1, ["train.weight_decay", "-1"]),
    (f"{DIGITS}/train/lr", 10**400, ["train.lr", "about 401 digits", "too large"]),
    (f"{DIGITS}/train/lr", 10**5000, ["train.lr", "about 5001 digits", "too large"]),
    (f"{DIGITS}/train/lr", 1e308, ["train.lr", "1e+308", "too large"]),
    (f"{DIGITS}/train/lr", 1e20, ["train.lr", "1e+20", "at most 1000"]),
    (f"{DIGITS}/train/weight_decay", 1e39, ["train.weight_decay", "1e+39", "too large"]),
    (f"{DIGITS}/train/clip", 1e39, ["train.clip", "1e+39", "too large"]),
    (f"{DIGITS}/train/batch_size", 2**62, ["train.batch_size", "too large"]),
    (f"{DIGITS}/train/epochs", 10**9, ["train.epochs", "1000000000", "at most 10000"]),
    (f"{DIGITS}/train/steps", 10**9, ["train.steps", "1000000000"]),
    (f"{DIGITS}/train/rounds", 10**9, ["train.rounds", "1000000000"]),
    (f"{DIGITS}/train/privacy", {"clip": 1e39, "noise": 1.0}, ["train.privacy.clip", "1e+39"]),
    (f"{DIGITS}/train/privacy", {"clip": 1.0, "noise": 1e9}, ["train.privacy.noise", "1000000000.0"]),
    (f"{DIGITS}/attack", {"kind": "noise", "share": 0.1, "scale": 1e39}, ["attack.scale", "1e+39"]),
    (f"{DIGITS}/partition/clients", 10**9, ["partition.clients", "1000000000", "at most"]),
    (f"{DIGITS}/partition/beta", 1e300, ["partition.beta", "1e+300", "too large"]),
    (f"{DIGITS}/partition/beta", float("nan"), ["partition.beta", "nan"]),
    (f"{DIGITS}/model", {"name": "mlp", "hidden": 2**40}, ["model.hidden", "too large"]),
    (f"{DIGITS}/model", {"name": "mlp", "hidden": 10**6}, ["model.hidden", "1000000"]),
    ("methods/ditto/lam", 1e300, ["methods.ditto.lam", "1e+300", "too large"]),
    ("methods/ditto/personal_epochs", 2**40, ["methods.ditto.personal_epochs", "too large"]),
    (f"{DIGITS}/train/epochs", 0, ["train.epochs", "0", "at least 1"]),
    (f"{DIGITS}/train/chunk", -1, ["train.chunk", "-1"]),
    (f"{DIGITS}/train/privacy", {"clip": 1.0, "noize": 1.0}, ["train.privacy.noize", "did you mean 'noise'"]),
    (f"{DIGITS}/train/privacy", 3, ["train.privacy", "3", "mapping"]),
    (f"{DIGITS}/train/robust", {}, ["train.robust.rule", "missing"]),
    (f"{DIGITS}/train/bn_buffers", "mean", ["train.bn_buffers", "'mean'"]),
    (f"{DIGITS}/train/augment", 0, ["train.augment", "0"]),
    (f"{DIGITS}/train/precision", "fp16", ["train.precision", "'fp16'", "bfloat16"]),
    (f"{DIGITS}/attack", {"kind": "sybil", "share": 0.1}, ["attack.kind", "sybil", "sign_flip"]),
    (f"{DIGITS}/attack", {"kind": "sign_flip", "share": 1.5, "scale": 1}, ["attack.share", "1.5"]),
    (f"{DIGITS}/attack", {"kind": "gaussian", "share": 0.1, "scale": 1}, ["attack", "embeddings", "ditto"]),
    (f"{DIGITS}/evaluate/evry", 1, ["evaluate.evry", "did you mean 'every'"]),
    (f"{DIGITS}/evaluate/every", "often", ["evaluate.every", "'often'"]),
]


def line(caught: pytest.ExceptionInfo[BadInput], words: list[str]) -> None:
    """The message is one line with all of `words`."""
    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(("path", "value", "words"), BAD, ids=[f"{p}={shown(v)}"[:60] for p, v, _ in BAD])
def test_bad_configurations(path: str, value: Any, words: list[str]) -> None:
    """Refused when params.yaml is read, whatever stage reads it, at once and in a line that can be read."""
    started = time.process_time()
    with pytest.raises(BadInput) as caught:
        assembly.check(spec.parse(altered(path, value)))
    assert time.process_time() - started < 1
    line(caught, words)
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize(("method", "changes", "words"), [
    ("fedamp", {}, ["train.bn_buffers average", "fedamp takes no mean", "fedavg"]),
    ("fedavg", {"privacy": {"clip": 1.0, "noise": 1.0}},
     ["train.bn_buffers average", "train.privacy", "leave one of them out"]),
    ("local", None, ["train.bn_buffers average", "model mlp has no BatchNorm"]),
])  # fmt: skip
def test_statistics_that_cannot_be_averaged(method: str, changes: dict[str, Any] | None, words: list[str]) -> None:
    content = good()
    content["runs"] = {"a": {"task": "digits", "method": method}}
    content["tasks"]["digits"]["train"] |= {"bn_buffers": "average", **(changes or {})}
    if changes is None:
        content["tasks"]["digits"]["model"] = {"name": "mlp"}
    with pytest.raises(BadInput) as caught:
        assembly.check(spec.parse(content))
    line(caught, words)


def with_newcomers(count: int) -> dict[str, Any]:
    content = good()
    content["tasks"]["digits"]["train"] |= {"newcomers": count, "join_round": 2}
    return content


def test_somebody_must_be_there_from_the_start() -> None:
    """All clients may not be newcomers."""
    with pytest.raises(BadInput) as caught:
        assembly.check(spec.parse(with_newcomers(10)))
    line(caught, ["train.newcomers", "10 of 10"])
    assembly.check(spec.parse(with_newcomers(9)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("study: a\nseeds: [0]\nstudy: b\n", ["line 3", '"study"', "twice"]),
        ("runs: {a: {task: t, method: m}, b: {}, a: {}}\n", ["line 1", '"a"', "twice"]),
        ("seeds: [" + "1" * 5000 + "]\n", ["digits"]),
        ("about: 2001-99-99\n", ["month"]),
        ("[" * 3000, ["line 1", "nested deeper than"]),
        ("- " * 200_000, ["line 1", "nested deeper than"]),  # where a parser that recurses would end the process
        ("a: 2001-01-01\n", ["a: datetime.date(2001, 1, 1) is a date", "quotes"]),
        ("a: &b [*b]\n", ["a.0", "alias"]),
        (
            "a: &a [x, x]\n"
            + "".join(f"{c}: &{c} [{', '.join([f'*{b}'] * 30)}]\n" for b, c in zip("abcde", "bcdef", strict=True)),
            ["more than 1000000 values"],
        ),
        ("about: !!python/object/apply:os.system [true]\n", ["line 1", "python/object"]),
    ],
)
def test_files_that_are_not_what_they_seem(text: str, words: list[str], tmp_path: Path) -> None:
    """Keys that stand twice, numbers and depths that Python refuses, code in place of data."""
    (tmp_path / "params.yaml").write_text(text)
    with pytest.raises(BadInput) as caught:
        spec.read_yaml(tmp_path / "params.yaml")
    line(caught, [str(tmp_path / "params.yaml"), *words])


def test_a_folder_in_place_of_the_file(tmp_path: Path) -> None:
    """And a file that is not text."""
    (tmp_path / "params.yaml").mkdir()
    with pytest.raises(BadInput) as caught:
        spec.load(tmp_path / "params.yaml")
    line(caught, ["params.yaml", "is a folder"])
    (tmp_path / "other.yaml").write_bytes(b"\xff\xfe\x00study")
    with pytest.raises(BadInput) as caught:
        spec.load(tmp_path / "other.yaml")
    line(caught, ["other.yaml", "not YAML"])


def test_unknown_study() -> None:
    """The nearest one is named."""
    with pytest.raises(BadInput) as caught:
        catalogue.expand("fedaghn/tabel1", ROOT / "studies")
    line(caught, ["study", "fedaghn/tabel1", "did you mean 'fedaghn/table1'"])


def test_missing_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no GPU, asking for one is refused before data are read."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run = spec.parse(altered(f"{DIGITS}/train/device", "cuda")).run("digits-ditto")
    with pytest.raises(BadInput) as caught:
        repetition.prepare(run, None, None)
    line(caught, ["train.device", "cuda", "use auto or cpu"])


# task, its model, the data set it is given -> words.
MISFITS: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("digits", {"name": "gcn"}, "digits", ["model.name", "'gcn'", "digits"]),
    ("digits", {"name": "gru"}, "digits", ["model", "gru", "digits"]),
    ("digits", {"name": "resnet18"}, "digits-graph", ["model.name", "resnet18", "digits-graph"]),
    ("digits", {"name": "aghn_cnn"}, "digits", ["model", "aghn_cnn", "digits"]),
    ("graph", {"name": "mlp"}, "digits-graph", ["model.name", "'mlp'", "digits-graph"]),
]


@pytest.mark.parametrize(("task", "model", "name", "words"), MISFITS)
def test_models_that_cannot_take_the_data(task: str, model: dict[str, Any], name: str, words: list[str]) -> None:
    """A model is tried on one input before anything is trained."""
    content = copy.deepcopy(good())
    content["tasks"][task]["model"] = model
    misfit(content, task, name, words)


@pytest.mark.parametrize(("task", "name", "setting", "words"), [
    ("graph", "digits-graph", {"augment": 2}, ["tasks.graph.train.augment", "2 pixels", "digits-graph has no images"]),
    ("digits", "digits", {"augment": 8}, ["tasks.digits.train.augment", "8 pixels", "images of 8 x 8"]),
    ("graph", "digits-graph", {"precision": "bfloat16"}, ["tasks.graph.train.precision", "'bfloat16'", "tf32"]),
])  # fmt: skip
def test_training_that_does_not_fit_the_data(task: str, name: str, setting: dict[str, Any], words: list[str]) -> None:
    content = copy.deepcopy(good())
    content["tasks"][task]["train"] |= setting
    misfit(content, task, name, words)


def misfit(content: dict[str, Any], task: str, name: str, words: list[str]) -> None:
    """Building what `task` trains on the data set `name` is refused in a line with `words`."""
    content["runs"] = {"a": {"task": task, "method": "fedavg"}}
    run = spec.parse(content).run("a")
    dataset = data.load(name, "unused")
    options = (
        {"name": "metis", "clients": 4, "seed": 0}
        if dataset.kind == "graph"
        else {"name": "iid", "clients": 4, "seed": 0}
    )
    with pytest.raises(BadInput) as caught:
        assembly.build_task(run, dataset, data.partition(dataset, **options))
    line(caught, words)


def test_a_run_from_the_command_line_is_refused_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder that cannot be one, and a value that is no YAML."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(repetition, "perform", lambda *_: pytest.fail("it trained"))
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="file"):
        single.run("fedavg", output=tmp_path / "file")
    with pytest.raises(BadInput, match=r"--set mu: '\[' is not a YAML value"):
        single.run("fedprox", settings=["mu=["])
    with pytest.raises(BadInput, match="--dataset: 'fedaghn' is unknown"):
        single.run("fedprox", dataset="fedaghn")
    with pytest.raises(BadInput, match=r"--set train\.rounds: 7 and 5 both; give one"):
        single.run("fedprox", rounds=5, settings=["train.rounds=7"])
    with pytest.raises(BadInput, match="give one of them"):
        single.run("fedprox", rounds=5, settings=["train=1"])
    with pytest.raises(BadInput, match="--set mu: 1 and 2 both"):
        single.run("fedprox", settings=["mu=1", "mu=2"])
    with pytest.raises(BadInput, match=r"^--set mu: -1 is out of range; it must be at least 0"):
        single.run("fedprox", settings=["mu=-1"])
    with pytest.raises(BadInput, match=r"^--set model\.hiden: small_cnn has no options"):
        single.run("fedprox", settings=["model.hiden=3"])


NUMBERS = {
    "1e-2": 0.01,
    "1e5": 1e5,
    "1.5e-3": 0.0015,
    "-2E+3": -2000.0,
    "1.e2": 100.0,
    "0.5e1": 5.0,
    "010": 10,
    "yes": "yes",
    "1:30": "1:30",
    "0o17": 15,
    "'1e-2'": "1e-2",
    "e5": "e5",
    "1e": "1e",
}


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_numbers_with_exponents(text: str, value: float | str, tmp_path: Path) -> None:
    """Are numbers in files and after --set alike; what is quoted stays a text, when params.yaml is written too."""
    assert single._pairs([f"lam={text}"]) == {"lam": value}
    (tmp_path / "params.yaml").write_text(f"lam: {text}\n")
    assert spec.read_yaml(tmp_path / "params.yaml") == {"lam": value}
    content = {"study": "quick", "methods": {"1e3": {"lam": value}}, "tune": {"seeds": [value]}}
    (tmp_path / "params.yaml").write_text(studies.dump(content))
    assert spec.read_yaml(tmp_path / "params.yaml") == content


SCALARS = ["".join(letters) for count in (1, 2, 3, 4) for letters in itertools.product("019+-._:eox", repeat=count)]
WORDS = "yes No ON off y true True ~ null .inf .nan 0b11 0xFF 1_000 1_000.5 1.5e+3 12:30:45.5 0777 1e-2 +1e5 .5e1 -0"
SCALARS += WORDS.split()


def test_dvc_reads_what_fedweave_reads() -> None:
    """The same value and type for everything that looks like a number, a time or a word for true and false."""
    for text in SCALARS:
        try:
            ours = config.load_yaml(f"a: {text}")
        except BadInput:
            continue
        theirs = parse_yaml(f"a: {text}", "params.yaml")
        assert (repr(ours), type(ours)) == (repr(theirs), type(theirs)), text


def test_texts_stay_texts_in_a_written_params_file() -> None:
    """However much they look like something else, here and in DVC."""
    content = {"study": "quick", "about": "no", "methods": {"m": dict(enumerate(SCALARS))}, "tune": {"words": SCALARS}}
    content["methods"]["m"] = {f"k{key}": text for key, text in content["methods"]["m"].items()}
    text = studies.dump(content)
    assert config.load_yaml(text) == content
    assert parse_yaml(text, "params.yaml") == content


def test_a_file_that_waits_for_a_writer_is_refused_at_once(tmp_path: Path) -> None:
    """As is one without an end."""
    os.mkfifo(tmp_path / "params.yaml")
    for path, what in ((tmp_path / "params.yaml", "a named pipe"), (Path("/dev/zero"), "a device")):
        with pytest.raises(BadInput) as caught:
            spec.read_yaml(path)
        line(caught, [str(path), what, "not a file"])


@pytest.mark.parametrize(
    "settings", [{"train": 1, "train.rounds": 5}, {"train.lr": 1, "train": {"lr": 2}}, {"lam.a": 1, "lam": 2}]
)
def test_settings_that_hide_each_other(settings: dict[str, Any]) -> None:
    """Neither is dropped without a word, in a file as on the command line."""
    content = good()
    content["runs"]["digits-ditto"]["set"] = settings
    with pytest.raises(BadInput, match="give one of them"):
        assembly.check(spec.parse(content))


@pytest.mark.parametrize(("typed", "meant"), [
    ("avg", "did you mean 'fedavg' or 'fedavg_ft' or 'perfedavg'?"), ("AVG_ft", "did you mean 'fedavg_ft'?"),
    ("e", "is unknown; choices"),
])  # fmt: skip
def test_names_that_contain_what_was_typed_are_offered(typed: str, meant: str) -> None:
    """Beside the nearest one."""
    with pytest.raises(BadInput) as caught:
        choose(typed, METHODS, "--method")
    line(caught, [meant])


def test_a_flow_of_an_unknown_study_starts_no_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, and exit code 2."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["flows", "--study", "quik"])
    monkeypatch.setattr(flows, "reproduce", lambda **_: pytest.fail("it began"))
    with pytest.raises(SystemExit) as ended:
        flows.main()
    assert ended.value.code == 2
    assert "--study: 'quik' is unknown; did you mean 'quick'" in capsys.readouterr().err


@pytest.mark.parametrize("message", ["[/]: unknown", "seeds: [.nan] must be different", "[x]quick"])
def test_an_error_shows_what_is_in_brackets(message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """And is one line on the error stream."""
    with pytest.raises(SystemExit) as ended:
        main.guarded(lambda: (_ for _ in ()).throw(BadInput(message)))
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {message}\n"
