"""A task of a study file: what may stand in it, and how it lies over its base and its protocol."""

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any

from fedweave.errors import BadInput, choose
from fedweave.study.schema import TaskSpec

ADDED = ("methods", "base", "protocol")  # words of a task that params.yaml does not have
WORDS = (*(field.name for field in dataclasses.fields(TaskSpec)), *ADDED)
EVERY_RULE = ("name", "clients", "seed", "seeds")  # of a partition


def merge(base: Mapping[str, Any], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `overlay` on top; mappings are merged, everything else is replaced, also a search space of
    another form."""
    merged = copy.deepcopy(dict(base))
    for key, value in overlay.items():
        below = merged.get(key)
        both = (
            isinstance(value, Mapping) and isinstance(below, Mapping) and ("choices" in value) == ("choices" in below)
        )
        merged[key] = merge(merged[key], value) if both else copy.deepcopy(value)
    return merged


def protocol_of(block: Mapping[str, Any], base: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The set-up that a task takes over by name: settings of the task, and of `methods` in their runs.

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
        BadInput: it is neither.
    """
    own_settings = {name: value for name, value in block.items() if name not in ADDED}
    own_settings = merge({name: value for name, value in protocol.items() if name != "methods"}, own_settings)
    if "base" not in block and key not in base and "dataset" in own_settings:
        partition = own_settings.get("partition")
        rule = partition.get("name") if isinstance(partition, Mapping) else None
        return {"dataset": own_settings["dataset"], "setting": rule or key, "normalize": "none", **own_settings}
    if "base" not in block and key not in base:
        near = (
            "; define it with dataset, partition, model and train, "
            f"or say base: <one of {', '.join(sorted(base)) or 'none'}>"
        )
        raise BadInput(f"{file}: tasks.{key}: is no task of base.yaml and names no dataset{near}")
    below = base[choose(block.get("base", key), base, f"{file}: tasks.{key}.base")]
    return merge(_drop_partition_options(below, own_settings), own_settings)


def _drop_partition_options(below: Mapping[str, Any], own: Mapping[str, Any]) -> Mapping[str, Any]:
    """`below`, where `own` names another partition rule than it: without the settings that this rule does not have.

    Its `setting`, which is how tables call the partition, becomes the name of the rule.
    """
    from fedweave.data import PARTITIONS, default_options  # not above, as in `catalogue`

    old, new = (part if isinstance(part := block.get("partition"), Mapping) else {} for block in (below, own))
    rule = str(new.get("name"))
    if "name" not in old or rule == old["name"] or rule not in PARTITIONS:
        return below
    kept = {name: value for name, value in old.items() if name in (*EVERY_RULE, *default_options(rule))}
    return {**below, "partition": kept, "setting": rule}


def check_keys(block: Mapping[str, Any], where: str) -> None:
    """Refuse unknown words of a task.

    Raises:
        BadInput: naming the word, and those that there are.
    """
    for word in block:
        choose(word, WORDS, where)


def check_protocol(task: Mapping[str, Any], block: Mapping[str, Any], protocol: Mapping[str, Any], where: str) -> None:
    """Refuse a protocol whose model cannot read the data set of `task`, if the kind of that is known.

    Raises:
        BadInput: naming the protocol, its model and the data set.
    """
    from fedweave.study.checks import model_misfit  # not above, as in `catalogue`

    theirs, used = (part if isinstance(part := of.get("model"), Mapping) else {} for of in (protocol, task))
    model = str(theirs.get("name"))
    if model == used.get("name") and (misfit := model_misfit(str(task.get("dataset")), model)):
        raise BadInput(f"{where}.protocol: {block['protocol']!r}: its model {misfit}; leave it out, or set model.name")
