"""Checks of the names in a method's class: a misspelt hook would not run, and the default would run in its place."""

import ast
import difflib
import inspect
import textwrap
from functools import cache

from fedweave.federation.protocol import Method


def check_names(cls: type[Method]) -> None:
    """Refuse an unused function whose name is similar to that of a hook: the default hook would run in its place."""
    bases = [base for base in cls.__mro__ if issubclass(base, Method)]
    try:
        used = frozenset().union(*map(_used_attributes, bases))
    except OSError:  # a class without a file cannot be read
        return
    for base in (base for base in bases if base is cls or not base.__module__.startswith("fedweave.")):
        hooks = {name for parent in base.__mro__[1:] for name in vars(parent) if not name.startswith("_")}
        functions = {name for name, value in vars(base).items() if callable(value) or isinstance(value, property)}
        for name in sorted(functions - hooks - used):
            near = difflib.get_close_matches(name, hooks, 1, 0.8)
            assert not near, f"{base.__name__}: nothing calls {name}; name it {near[0]}, or _{name} if it is no hook"


@cache
def _used_attributes(cls: type) -> frozenset[str]:
    """Names of the attributes in the source of a class."""
    nodes = ast.walk(ast.parse(textwrap.dedent(inspect.getsource(cls))))
    return frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute))
