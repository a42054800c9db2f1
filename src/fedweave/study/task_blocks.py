"""A task of a study file: how it is merged with its base and its protocol."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from fedweave.errors import BadInput, choose
from fedweave.study.schema import EVERY_RULE, TaskSpec

ADDED = ("methods", "base", "protocol")  # words of a task that params.yaml does not have
WORDS = (*(field.name for field in dataclasses.fields(TaskSpec)), *ADDED)


def merge(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with the changes of `overlay`: mappings are merged, everything else is replaced.

    A search space of another form is replaced too.
    """
    merged = copy.deepcopy(dict(base))
    for key, value in overlay.items():
        old = merged.get(key)
        mergeable = (
            isinstance(value, Mapping) and isinstance(old, Mapping) and ("choices" in value) == ("choices" in old)
        )
        merged[key] = merge(merged[key], value) if mergeable else copy.deepcopy(value)
    return merged


def protocol_of(block: Mapping[str, Any], base: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The protocol that a task names: settings of the task, and of `methods` in their runs; empty if it names none.

    Raises:
        BadInput: an unknown name.
    """
    protocols = base.get("protocols", {})
    return protocols[choose(str(block["protocol"]), protocols, f"{where}.protocol")] if "protocol" in block else {}


def resolve_task(
    key: str, block: Mapping[str, Any], base: Mapping[str, Any], file: str, protocol: Mapping[str, Any]
) -> dict[str, Any]:
    """A task: changes of one of `base.yaml`, or a full definition, which names its data set and has a new name.

    The settings of its `protocol` come between the base's and its own.

    Raises:
        BadInput: the task is neither.
    """
    own_settings = {name: value for name, value in block.items() if name not in ADDED}
    own_settings = _merge_settings({name: value for name, value in protocol.items() if name != "methods"}, own_settings)
    if "base" not in block and key not in base and "dataset" in own_settings:
        rule = _partition(own_settings).get("name")
        return {"dataset": own_settings["dataset"], "setting": rule or key, "normalize": "none", **own_settings}
    if "base" not in block and key not in base:
        remedy = (
            "; define it with dataset, partition, model and train, "
            f"or say base: <one of {', '.join(sorted(base)) or 'none'}>"
        )
        raise BadInput(f"{file}: tasks.{key}", f"is not a task of base.yaml and names no dataset{remedy}")
    base_task = base[choose(block.get("base", key), base, f"{file}: tasks.{key}.base")]
    task = _merge_settings(_drop_partition_options(base_task, own_settings), own_settings)
    if "dataset" not in task:
        name = block.get("base", key)
        raise BadInput(
            f"{file}: tasks.{key}.dataset", f"missing, and {name!r} of base.yaml has none; for example digits"
        )
    return task


def _merge_settings(base: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """`merge`, where `seeds` of a partition takes the place of the base's `seed`, and the other way round."""
    old, new = (_partition(block) for block in (base, settings))
    return merge({**base, "partition": drop_replaced_seed(old, new)} if old else base, settings)


def drop_replaced_seed(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """The options `old` of a partition without `seed` if `new` has `seeds` in its place, and the other way round."""
    replaced = {"seed": "seeds", "seeds": "seed"}
    return {name: value for name, value in old.items() if name in new or replaced.get(name) not in new}


def _drop_partition_options(base_task: Mapping[str, Any], settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """`base_task`; if `settings` names another partition rule, without the options that this rule does not have.

    Then its `setting`, which is the name of the partition in tables, becomes the name of the rule.
    """
    from fedweave.data import PARTITIONS, default_options  # imported here, as in `catalogue`

    old, new = (_partition(block) for block in (base_task, settings))
    rule = str(new.get("name"))
    if "name" not in old or rule == old["name"] or rule not in PARTITIONS:
        return base_task
    options = {name: value for name, value in old.items() if name in (*EVERY_RULE, *default_options(rule))}
    return {**base_task, "partition": options, "setting": rule}


def _partition(block: Mapping[str, Any]) -> Mapping[str, Any]:
    """The partition of a task; an empty mapping if there is none or it is another type, which is refused later."""
    value = block.get("partition")
    return value if isinstance(value, Mapping) else {}
