"""What a model computes, as a hash: its structure, the source of its classes, the values of an instance."""

import ast
import hashlib
import inspect
import textwrap
from typing import Any

from torch import nn


def model_digest(module: nn.Module, values: nn.Module | None) -> str:
    """A hash of what the model computes: its structure, the source of its classes, and the values of an instance."""
    content = hashlib.sha256(repr(module).encode())
    for kind in dict.fromkeys(type(layer) for layer in module.modules()):
        if not kind.__module__.startswith("torch."):
            content.update(source_of(kind).encode())
    for name, value in values.state_dict().items() if values is not None else ():
        content.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return content.hexdigest()[:16]


def source_of(thing: Any) -> str:
    """The source of a class or function without comments and formatting; of one without a file, its byte code."""
    try:
        return ast.dump(ast.parse(textwrap.dedent(inspect.getsource(thing))))
    except (OSError, TypeError, SyntaxError):
        functions = [vars(thing)[n] for n in sorted(vars(thing))] if isinstance(thing, type) else [thing]
        codes = [getattr(function, "__code__", None) for function in functions]
        return repr(
            [(code.co_code, [c for c in code.co_consts if isinstance(c, int | float | str)]) for code in codes if code]
        )
