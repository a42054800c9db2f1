"""Shared code of methods whose server keeps several models of one form: clusters (IFCA), components (FedEM)."""

from collections.abc import Sequence

import torch
from torch import nn

from fedweave.client.task import Task
from fedweave.engine.protocol import Start
from fedweave.errors import BadInput
from fedweave.models.adapters import low_ranks
from fedweave.tensors import trees
from fedweave.tensors.seeding import use_seed
from fedweave.tensors.trees import Params

REMEDY = "give a function that makes the module: model=lambda shape, outputs: Net(...)"


def initial_models(task: Task, start: Start, count: int) -> list[Params]:
    """The common initial model, and `count` − 1 further models that are drawn independently.

    A model that is given as a module has the same values in every draw; equal models would learn the same thing. Then
    the layers of the further ones draw their parameters anew.

    Raises:
        BadInput: the models would be equal.
    """
    further = (_further_model(task, start, start.seed + i) for i in range(1, count))
    return [start.model, *({name: value.to(start.model[name]) for name, value in params.items()} for params in further)]


def _further_model(task: Task, start: Start, seed: int) -> Params:
    drawn = task.init(seed)
    if _differs(task, drawn, start.model):
        return drawn
    with use_seed(seed):
        module = task.build().to(task.dtype)
        for name in task.layers:
            if not {*task.layers[name]} <= {*task.norms}:  # normalisation draws nothing
                _reset_parameters(module.get_submodule(name), name)
    redrawn = {**start.model, **{name: value.detach().clone() for name, value in module.named_parameters()}}
    if not _differs(task, redrawn, start.model):
        raise BadInput(f"model: its layers draw the same values again, and equal models learn the same thing; {REMEDY}")
    return redrawn


def _differs(task: Task, one: Params, other: Params) -> bool:
    """Whether two initial models differ in what they compute; A of an adapter has no effect before B is trained."""
    names = trees.omit(one, [f"{adapter}.A" for adapter in low_ranks(task.template)]).keys() & {*task.params}
    return any(not torch.equal(one[name].to(other[name]), other[name]) for name in names)


def _reset_parameters(layer: nn.Module, name: str) -> None:
    reset = getattr(layer, "reset_parameters", getattr(layer, "_reset_parameters", None))
    if reset is None:
        raise BadInput(
            f"model: every draw of it has the same values, and {name} ({type(layer).__name__}) has no reset_parameters "
            f"that would draw others; {REMEDY}"
        )
    reset()


def join_models(models: Sequence[Params]) -> Params:
    """Models as one dictionary: the first one under its own names, the i-th one with "i/" before each name."""
    return {(f"{i}/{name}" if i else name): value for i, model in enumerate(models) for name, value in model.items()}


def split_models(params: Params, count: int) -> list[Params]:
    """The inverse of `join_models`: `count` models; entries without a number belong to the first one."""
    models: list[Params] = [{} for _ in range(count)]
    for key, value in params.items():
        number, slash, name = key.partition("/")
        if slash and number.isdecimal():
            models[int(number)][name] = value
        else:
            models[0][key] = value
    return models
