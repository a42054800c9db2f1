"""The source of a user's code as a text that does not depend on comments and formatting."""

import ast
import inspect
import textwrap
from typing import Any


def source_of(thing: Any) -> str:
    """The source of a class or function without comments and formatting; its byte code if it has no file."""
    try:
        return ast.dump(ast.parse(textwrap.dedent(inspect.getsource(thing))))
    except (OSError, TypeError, SyntaxError):
        functions = [vars(thing)[n] for n in sorted(vars(thing))] if isinstance(thing, type) else [thing]
        codes = [getattr(function, "__code__", None) for function in functions]
        return repr(
            [(code.co_code, [c for c in code.co_consts if isinstance(c, int | float | str)]) for code in codes if code]
        )
