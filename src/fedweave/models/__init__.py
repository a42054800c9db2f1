"""Client models by name: each is a `ClientModel` in a file of this folder, decorated with `@model("name")`."""

from importlib import import_module
from pkgutil import iter_modules

from fedweave.models.base import ClientModel, Inputs, layers, parameter_count
from fedweave.models.gcn import SparseMatrix, gcn_norm
from fedweave.models.pretrained import load_weights
from fedweave.models.registry import MODELS, build, model, options, settings
from fedweave.models.word_vectors import encode_texts

for file in iter_modules(__path__):
    import_module(f"{__name__}.{file.name}")
