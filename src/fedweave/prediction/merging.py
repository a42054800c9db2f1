"""A client's model without adapters: they are added to the weights, and the frozen weights are beside the trained."""

from dataclasses import replace

from torch import Tensor

from fedweave.client.task import Task
from fedweave.models import ClientModel
from fedweave.models.adapters import merge
from fedweave.runs.serving import DeployedModels
from fedweave.tensors.trees import Params, Tree, omit


def merge_adapters(models: DeployedModels, model: Tree) -> tuple[DeployedModels, Tree]:
    """(models whose layers have no adapters, `model` for these layers: with every weight, those of the body too)."""
    task = models.method.task
    plain = task.build_module()
    merge(plain)
    method = replace(models.method, task=replace(task, build=lambda: plain))
    return replace(models, method=method), _merge_tree(task, model)


def _tensors(module: ClientModel) -> Params:
    """Parameters and buffers of `module`, by name."""
    return {name: value.detach() for name, value in [*module.named_parameters(), *module.named_buffers()]}


def _merge_tree(task: Task, tree: Tree) -> Tree:
    """`tree` with every model in it merged; a method may keep several, also with a word before their names."""
    if isinstance(tree, Tensor):
        return tree
    first = task.params[0]
    words = [key.removesuffix(first) for key in tree if key.endswith(first)]
    words = [word for word in words if all(word + name in tree for name in task.names)]
    if not words:
        return {name: _merge_tree(task, part) for name, part in tree.items()}
    rest = omit(tree, [word + name for word in words for name in task.names])
    models = {word: _merge_model(task, {name: tree[word + name] for name in task.names}) for word in words}
    return {**rest, **{word + name: value for word, model in models.items() for name, value in model.items()}}


def _merge_model(task: Task, model: Params) -> Params:
    module = task.build_module()
    tensors = _tensors(module)
    for name, value in model.items():
        tensors[name].copy_(value)
    merge(module)
    return _tensors(module)
