"""Wrong study files: one line has the file, the key and the value. No error counts as an empty or unused entry."""

import shutil
from pathlib import Path

import pytest

from fedweave.errors import BadInput
from fedweave.study import catalogue, spec, validate

ROOT = Path(__file__).resolve().parents[2]
DIGITS = "tasks: {digits: {methods: [local, fedavg, ditto]%s}}\n"
VARIANT = DIGITS % "" + "ablate: {parts: {run: digits-ditto, variants: {one: %s}}}\n"
ROWS = (
    "tasks: {own: {dataset: digits, partition: {name: iid, clients: 3, %s}, model: {name: mlp}, "
    "train: {rounds: 1, lr: 0.1}, methods: [local]}}\n"
)
WRONG = {
    "task of a paper": ("tasks: {fedaghn: {methods: [local]}}", ["tasks.fedaghn.dataset: missing", "digits"]),
    "base without data": ("tasks: {own: {base: pfedla, methods: [local]}}", ["tasks.own.dataset", "'pfedla'"]),
    "path with a zero byte": (DIGITS % "" + 'uses: ["a\\0.py"]', ["uses: ['a\\x00.py'] is not a list of paths"]),
    "unknown method": ("tasks: {digits: {methods: [fedavgg]}}", ["tasks.digits.methods: 'fedavgg'", "'fedavg'"]),
    "nameless variant": ("tasks: {digits: {methods: ['': {method: fedavg}]}}", ["tasks.digits.methods: {''", "write"]),
    "negative share": (DIGITS % ", partition: {split: {train: -1}}", ["tasks.digits.partition.split.train: -1"]),
    "text as a share": (DIGITS % ", partition: {split: {train: '1e-3'}}", ["split.train: '1e-3' must be a number"]),
    "shares": (DIGITS % ", partition: {split: {train: 0.5, test: 0.2}}", ["digits.partition.split:", "0.7, not to 1"]),
    "split": (
        DIGITS % ", partition: {split: 0.8}",
        ["tasks.digits.partition.split: 0.8 is not a mapping or null; it must map train, val, test"],
    ),
    "text as a seed": (ROWS % "seeds: [a, 2, 3]", ["x.yaml: tasks.own.partition.seeds: 'a' must be a whole number"]),
    "no seed": (ROWS % "split: null", ["tasks.own.partition.seed: missing; give a whole number, at least 0"]),
    "no clients": (
        ROWS.replace("clients: 3, ", "") % "seed: 1",
        ["tasks.own.partition.clients: missing; give a whole number"],
    ),
    "model by its name": (DIGITS % ", model: mlp", ["digits.model: 'mlp' is not a mapping; write model: {name: mlp}"]),
    "protocol of graphs": (DIGITS % ", protocol: fedpub", ["digits.model.name: 'gcn' does not fit digits (images)"]),
    "number in quotes": (DIGITS % ", train: {lr: '0.1'}", ["train.lr: '0.1' is not a finite number; leave the quotes"]),
    "normalize": (DIGITS % ", normalize: {}", ["tasks.digits.normalize.name: missing; choices: none"]),
    "methods as a list": (DIGITS % "" + "methods: {ditto: []}", ["methods.ditto: [] is not a block of settings"]),
    "methods as a text": (DIGITS % "" + "methods: {ditto: ''}", ["methods.ditto: '' is not a block of settings"]),
    "spaces as a list": (DIGITS % "" + "tune: {spaces: []}", ["tune.spaces: [] is not a block of settings"]),
    "space as a text": (DIGITS % "" + "tune: {spaces: {ditto: ''}}", ["tune.spaces.ditto: '' is not a block"]),
    "task as a list": ("tasks: {digits: []}", ["tasks.digits: [] is not a block of settings"]),
    "unused method": (DIGITS % "" + "methods: {fedprox: {lam: 3}}", ["methods.fedprox.lam:", "choices: mu"]),
    "value of an unused method": (DIGITS % "" + "methods: {fedprox: {mu: '1e-3'}}", ["methods.fedprox.mu: '1e-3'"]),
    "space without trials": (DIGITS % "" + "tune: {spaces: {ditto: {lamda: {low: 1}}}}", ["spaces.ditto: 'lamda'"]),
    "space of an unused method": (DIGITS % "" + "tune: {spaces: {fedprox: {mu: 3}}}", ["spaces.fedprox.mu: 3 is no"]),
    "set of a run": (
        "tasks: {digits: {methods: [ditto: {set: {lam: -1}}]}}",
        ["runs.digits-ditto.set.lam: -1 is out of range"],
    ),
    "variant's setting": (VARIANT % "{lam: -1}", ["ablate.parts.one.lam: -1 is out of range"]),
    "variant's training": (VARIANT % "{train.rounds: -1}", ["ablate.parts.one.train.rounds: -1 is out of range"]),
    "variant's block": (VARIANT % "{train: 3}", ["ablate.parts.one: train: 3 is not a mapping"]),
    "variant's partition": (VARIANT % "{partition: 3}", ["x.yaml: ablate.parts.one.partition: 3 is not a mapping"]),
}


@pytest.mark.parametrize(("text", "words"), WRONG.values(), ids=WRONG)
def test_a_wrong_study_file_is_refused_in_one_line(
    text: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "studies").mkdir()
    shutil.copyfile(ROOT / "studies" / "base.yaml", tmp_path / "studies" / "base.yaml")
    (tmp_path / "x.yaml").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(BadInput) as caught:
        validate.check(spec.parse(catalogue.expand("x.yaml"), "x.yaml"), "x.yaml")
    message = str(caught.value)
    assert message.startswith("x.yaml: ")
    assert [word for word in words if word not in message] == []


@pytest.mark.parametrize(("block", "expected"), [("seeds: [1, 2]", {"seeds": [1, 2]}), ("seed: 7", {"seed": 7})])
def test_seeds_of_a_partition_take_the_place_of_the_inherited_seed(
    tmp_path: Path, block: str, expected: dict[str, object]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        f"seeds: [0, 1]\ntasks:\n  digits: {{partition: {{{block}}}, methods: [fedavg]}}\n"
        f"  other: {{base: digits, partition: {{{block}, clients: 6}}, methods: [fedavg]}}\n"
    )
    tasks = catalogue.expand(str(file))["tasks"]
    for task in tasks.values():
        assert {name: task["partition"][name] for name in ("seed", "seeds") if name in task["partition"]} == expected
