"""Bad configuration: one line that names the key, the value and the way out, before any work."""

import copy
from pathlib import Path
from typing import Any

import pytest

from fedweave.errors import BadInput
from fedweave.study import catalogue, spec, validate

ROOT = Path(__file__).resolve().parents[2]


def good() -> dict[str, Any]:
    """A small valid params.yaml."""
    base = spec.read_yaml(ROOT / "studies" / "base.yaml")
    return {
        "study": "small",
        "seeds": [0, 1],
        "tasks": {
            "digits": copy.deepcopy(base["tasks"]["digits"]),
            "graph": copy.deepcopy(base["tasks"]["digits-graph"]),
        },
        "runs": {
            "digits-ditto": {"task": "digits", "method": "ditto"},
            "graph-fedavg": {"task": "graph", "method": "fedavg"},
        },
        "methods": {"ditto": {"lam": 1.0}, "fedavg": {}},
        "tune": {"trials": 0},
        "ablate": {},
    }


def altered(path: str, value: Any) -> dict[str, Any]:
    """The valid file with one entry replaced (`path` separated by '/')."""
    content = good()
    *parents, key = path.split("/")
    node = content
    for parent in parents:
        node = node[parent]
    node[key] = value
    return content


def line(caught: pytest.ExceptionInfo[BadInput], words: list[str]) -> None:
    """The message is one line that contains all `words`."""
    message = str(caught.value)
    assert "\n" not in message
    assert [word for word in words if word not in message] == []


# path in the file, bad value -> words that the message must contain.
BAD = [
    ("study", "", ["study"]),
    ("study", 3, ["study: 3 is not a text"]),
    ("seeds", [], ["seeds: [] is not a list with entries"]),
    ("seeds", 3, ["seeds: 3 is not a list with entries"]),
    ("tasks", "x", ["tasks: 'x' is not a mapping with entries"]),
    ("seeds", [0, 0], ["seeds", "different"]),
    ("seeds", [-1], ["seeds", "-1"]),
    ("seeds", [0.5], ["seeds", "0.5"]),
    ("typo", 1, ["typo", "choices"]),
    ("tasks/digits/dataset", "digit", ["tasks.digits.dataset", "did you mean 'digits'"]),
    ("tasks/digits/dataste", "digits", ["dataste", "did you mean 'dataset'"]),
    ("tasks/digits/partition/name", "dirichle", ["partition.name", "did you mean 'dirichlet'"]),
    ("tasks/digits/partition/betta", 0.3, ["partition", "betta", "did you mean 'beta'"]),
    ("tasks/digits/partition", {"clients": 10}, ["partition.name", "missing"]),
    ("tasks/digits/model/name", "small_cn", ["model.name", "did you mean 'small_cnn'"]),
    ("tasks/digits/model/width", 3, ["model", "width"]),
    ("tasks/digits/train/lr", "fast", ["train.lr", "'fast'", "number"]),
    ("tasks/digits/train/lr", -0.1, ["train.lr", "-0.1", "at least 0"]),
    ("tasks/digits/train/lr", float("nan"), ["train.lr", "nan", "finite"]),
    ("tasks/digits/train/lr", float("inf"), ["train.lr", "inf", "finite"]),
    ("tasks/digits/train/lr", True, ["train.lr", "True"]),
    ("tasks/digits/train/rounds", 0, ["train.rounds", "0", "at least 1"]),
    ("tasks/digits/train/rounds", 2.5, ["train.rounds", "2.5", "whole number"]),
    ("tasks/digits/train/rounds", "10", ["train.rounds", "'10'", "whole number"]),
    ("tasks/digits/train/round", 10, ["train.round", "did you mean 'rounds'"]),
    ("tasks/digits/train/participation", 0, ["train.participation", "0", "at least"]),
    ("tasks/digits/train/optimizer", "adamw", ["train.optimizer", "'adamw'", "adam"]),
    ("tasks/digits/train/momentum", 1.5, ["train.momentum", "1.5", "between 0 and 1"]),
    ("tasks/digits/train/batch_size", -1, ["train.batch_size", "-1"]),
    ("tasks/digits/train/steps", 5, ["train.steps", "train.epochs"]),
    ("tasks/digits/train/executor", "parallel", ["train.executor", "'parallel'", "batched"]),
    ("tasks/digits/train/executor", "compiled", ["train.executor", "'compiled' is gone", "use auto or kernel"]),
    ("tasks/digits/train/device", "gpu", ["train.device", "'gpu'", "cuda"]),
    ("tasks/digits/train/newcomers", 2, ["newcomers", "join_round"]),
    ("tasks/digits/train", [1, 2], ["tasks.digits.train", "mapping"]),
    ("tasks/digits/evaluate/every", 0, ["evaluate.every", "0"]),
    ("tasks/digits/evaluate/select", "best_test_round", ["evaluate.select", "best_test_round", "best_val_round"]),
    ("tasks/digits/evaluate/point", "before", ["evaluate.point", "'before'", "pre"]),
    ("tasks/digits", {"dataset": "digits"}, ["tasks.digits", "missing"]),
    ("runs/digits-ditto/task", "digitz", ["runs.digits-ditto.task", "did you mean 'digits'"]),
    ("runs/digits-ditto/method", "dito", ["runs.digits-ditto.method", "did you mean 'ditto'"]),
    ("runs/digits-ditto/method", "", ["method", "choices"]),
    ("runs/digits-ditto/sett", {}, ["sett", "did you mean 'set'"]),
    ("runs/digits-ditto/set", {"lamda": 1}, ["runs.digits-ditto.set.lamda", "did you mean 'lam'"]),
    ("runs", {}, ["runs: {} is not a mapping with entries"]),
    ("methods/ditto/lam", "big", ["methods.ditto.lam", "'big'", "number"]),
    ("methods/ditto/personal_epochs", 1.5, ["methods.ditto.personal_epochs", "1.5", "whole number"]),
    ("methods/ditto/lambda", 1.0, ["methods.ditto.lambda", "choices: lam"]),
    ("methods/ditto/task", "x", ["methods.ditto.task", "not a setting"]),
    ("methods/local", {"x": 1}, ["methods.local.x: not a setting of local: 'x' is unknown; there are no choices"]),
    ("runs/graph-fedavg/method", "fedbn", ["FedBN", "batch_norm", "gcn"]),
    ("tune/trials", -1, ["tune.trials", "-1"]),
    ("tune/seeds", [0], ["tune.seeds", "overlap"]),
    ("tune/sampler", "grad", ["tune.sampler", "'grad'", "tpe"]),
    ("ablate", {"x": {"run": "digits-ditto"}}, ["ablate.x", "variants"]),
    ("ablate", {"x": {"run": "nope", "variants": {"a": {}}}}, ["ablate.x.run", "'nope'"]),
    ("ablate", {"x": {"run": "digits-ditto", "variants": {"a": {"lamm": 1}}}}, ["lamm", "did you mean 'lam'"]),
    ("ablate", {"x": {"run": "digits-ditto", "grid": {"lam": [1.0]}}}, ["ablate.x.grid", "at least two"]),
    ("ablate", {"x": {"run": "digits-ditto", "grid": {"lam": [1.0, 2.0]}, "variants": {}}}, ["ablate.x", "either"]),
    (
        "ablate",
        {"x": {"run": "digits-ditto", "grid": {"partition.bata": [1.0, 2.0]}}},
        ["partition", "did you mean 'beta'"],
    ),
]


@pytest.mark.parametrize(("path", "value", "words"), BAD, ids=[f"{p}={v!r}"[:60] for p, v, _ in BAD])
def test_bad_configuration_is_refused_in_one_line(path: str, value: Any, words: list[str]) -> None:
    """The line has the key, the value and the way out."""
    with pytest.raises(BadInput) as caught:
        validate.check(spec.parse(altered(path, value)))
    line(caught, words)


def test_the_valid_configuration_is_accepted() -> None:
    """Without this, the table above would prove nothing."""
    study = validate.check(spec.parse(good()))
    assert study.run("digits-ditto").options == {"lam": 1.0}


def test_later_layers_of_settings_override_earlier_ones() -> None:
    """The order is: task, method block, tuned values, the run's own settings, extra settings."""
    content = good()
    content["methods"]["ditto"]["train"] = {"lr": 0.2}
    content["runs"]["digits-ditto"]["set"] = {"lam": 3.0}
    study = spec.parse(content)
    plain = study.run("digits-ditto")
    assert (plain.train.lr, plain.options["lam"]) == (0.2, 3.0)
    tuned = study.run("digits-ditto", {"train.lr": 0.7, "lam": 2.0, "personal_epochs": 1})
    assert (tuned.train.lr, tuned.options) == (0.7, {"lam": 3.0, "personal_epochs": 1})
    assert study.run("digits-ditto", {"train.lr": 0.7}, {"train.lr": 0.9}).train.lr == 0.9


def test_fingerprint_depends_on_the_computation_only() -> None:
    """It changes with everything that changes results, and with nothing else."""
    base = spec.parse(good()).run("digits-ditto").fingerprint()
    assert spec.parse(altered("tasks/digits/train/executor", "loop")).run("digits-ditto").fingerprint() == base
    assert spec.parse(altered("study", "other")).run("digits-ditto").fingerprint() == base
    for path, value in {
        "tasks/digits/train/lr": 0.06,
        "tasks/digits/partition/beta": 0.4,
        "methods/ditto/lam": 0.5,
    }.items():
        assert spec.parse(altered(path, value)).run("digits-ditto").fingerprint() != base


@pytest.mark.parametrize("text", ["", "a: [1", "- 1", "\x00", "study: {", "just text"])
def test_a_broken_file_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    file = tmp_path / "params.yaml"
    file.write_text(text)
    with pytest.raises(BadInput) as caught:
        validate.load(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_names_the_command_that_writes_it(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="fedweave study use"):
        validate.load(tmp_path / "params.yaml")


@pytest.mark.parametrize("name", catalogue.studies(ROOT / "studies"))
def test_every_study_of_the_catalogue_is_valid(name: str) -> None:
    """Every study expands to a params.yaml that passes all checks."""
    validate.check(spec.parse(catalogue.expand(name, ROOT / "studies"), name), name)


def test_params_yaml_is_a_study() -> None:
    """The committed params.yaml is the file that `fedweave study use` writes for the study in it."""
    now = spec.read_yaml(ROOT / "params.yaml")
    assert now == catalogue.expand(now["study"], ROOT / "studies")
