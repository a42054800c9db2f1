"""A small valid configuration and its fingerprint; bad files are refused in one line before any work."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fedweave.errors import BadInput
from fedweave.study import catalogue, spec, validate

ROOT = Path(__file__).resolve().parents[2]


def good(method: str = "", task: str = "digits") -> dict[str, Any]:
    """A small valid params.yaml; with a `method`, "a" is its one run, of this method on `task`."""
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
        **({"runs": {"a": {"task": task, "method": method}}} if method else {}),
    }


def one_run(task: dict[str, Any], method: str, **content: Any) -> dict[str, Any]:
    """A params.yaml with the task "own" and the run "own-METHOD" alone."""
    runs = {f"own-{method}": {"task": "own", "method": method}}
    blocks = {"tasks": {"own": task}, "methods": {method: {}}, "runs": runs}
    return {"study": "small", "seeds": [0, 1], **blocks, **content}


def altered(path: str, value: Any) -> dict[str, Any]:
    """The valid file with one entry replaced (`path` separated by '/')."""
    content = good()
    *parents, key = path.split("/")
    node = content
    for parent in parents:
        node = node[parent]
    node[key] = value
    return content


def test_a_run_knows_the_margins_before_it_has_scores() -> None:
    """No score depends on them, and no fingerprint."""
    (plain, with_margin) = (
        spec.parse(good() | margins, "params.yaml").run("digits-ditto")
        for margins in ({}, {"margins": {"accuracy": 2}})
    )
    assert (plain.margins, with_margin.margins) == ({}, {"accuracy": 2})
    assert plain.fingerprint() == with_margin.fingerprint()


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """The block is refused in one line that contains all `words`."""
    with pytest.raises(BadInput) as caught:
        yield
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 1500
    assert [word for word in words if word not in message] == []


def test_the_valid_configuration_is_accepted() -> None:
    """Without this, the table of bad values would prove nothing."""
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
    with refused(str(file)):
        validate.load(file)


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
