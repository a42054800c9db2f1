"""Shared code of methods whose server keeps several models of one form: clusters (IFCA), components (FedEM)."""

from collections.abc import Sequence

from fedweave.client.task import Task
from fedweave.federation.protocol import Start
from fedweave.tensors.trees import Params


def initial_models(task: Task, start: Start, count: int) -> list[Params]:
    """The common initial model, and `count` − 1 further models that are drawn independently."""
    further = [task.init(start.seed + i) for i in range(1, count)]
    return [start.model, *({name: value.to(start.model[name]) for name, value in params.items()} for params in further)]


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
