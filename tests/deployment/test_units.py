"""Units of clients on separate hosts: in spec.json, and in the server's record of its members."""

import json
from dataclasses import replace
from pathlib import Path

from fedweave import data
from fedweave.deployment import export
from fedweave.deployment.wire import spec
from fedweave.runs import repetition
from fedweave.study.spec import parse
from tests.servers import DIGITS


def build_spec(units: tuple[str, ...]) -> spec.AppSpec:
    raw = {
        "study": "small",
        "seeds": [0],
        "methods": {"fedavg": {}},
        "tasks": {"digits": {**DIGITS, "model": {"name": "mlp", "hidden": [4]}}},
        "runs": {"digits-fedavg": {"task": "digits", "method": "fedavg"}},
    }
    run = parse(raw).run("digits-fedavg")
    dataset = data.load("digits", "unused")
    partition = replace(data.partition(dataset, **run.task.partition), units=units)
    return export.specify(repetition.prepare(run, dataset, partition), dataset, partition)


def test_the_specification_has_the_units(tmp_path: Path) -> None:
    plain = build_spec(())
    count = len(plain.clients)
    units = tuple(f"home {i // 2}" for i in range(count))
    named = build_spec(units)
    spec.write(named, tmp_path)
    read = spec.read(tmp_path / spec.FILE)
    assert (read.units, read.hash) == (units, named.hash)
    assert read.member_units([1, 0, count]) == ("home 0", "home 0", f"client {count}")
    assert named.hash != plain.hash


def test_a_specification_without_units_is_unchanged(tmp_path: Path) -> None:
    plain = build_spec(())
    spec.write(plain, tmp_path)
    assert "units" not in json.loads((tmp_path / spec.FILE).read_text())
    read = spec.read(tmp_path / spec.FILE)
    assert (read.units, read.hash) == ((), plain.hash)
    assert read.member_units([0, 1]) == ()
