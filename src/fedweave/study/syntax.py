"""A syntax tree as words: what it says to the interpreter, without comments, docstrings, formatting and messages."""

import ast
from collections.abc import Iterable

SILENT = ("ctx", "type_comment", "type_ignores", "kind")  # fields of a syntax tree that change nothing


def tree_tokens(tree: ast.AST, nodes: Iterable[ast.AST]) -> list[str]:
    """The words of a module's tree, the same under every version of Python; `nodes` are all of its nodes."""
    said: list[str] = []
    _add_tokens(tree, _raising_functions(nodes), said)
    return said


def dotted_names(node: ast.AST) -> tuple[str, ...]:
    """`a.b.c` as its names; empty for anything else."""
    if isinstance(node, ast.Name):
        return (node.id,)
    above = dotted_names(node.value) if isinstance(node, ast.Attribute) else ()
    return (*above, node.attr) if above and isinstance(node, ast.Attribute) else ()


def _raising_functions(nodes: Iterable[ast.AST]) -> frozenset[str]:
    """Functions that only raise an exception with the text of their last argument, and no NotImplementedError."""
    names = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef):
            body = [part for part in node.body if not _is_text(part)]
            last = body[0] if len(body) == 1 else None
            inner = last.body[0] if isinstance(last, ast.If) and len(last.body) == 1 and not last.orelse else last
            parts = ast.walk(inner) if isinstance(inner, ast.Raise) else ()
            said = {part.id for part in parts if isinstance(part, ast.Name)}
            if {arg.arg for arg in node.args.args[-1:]} & said and "NotImplementedError" not in said:
                names.add(node.name)
    return frozenset(names)


def _is_text(node: object) -> bool:
    """Whether a statement is a text that nobody reads but people: a docstring, or one below an attribute."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _add_tokens(node: object, refusals: frozenset[str], said: list[str], message: bool = False) -> None:
    """Add a syntax tree to `said`, in the same form under every version of Python; `message` leaves texts out."""
    if isinstance(node, ast.Constant):
        left_out = message and isinstance(node.value, str)
        said.append("message" if left_out else f"{type(node.value).__name__} {node.value!r}")
    elif message and isinstance(node, ast.JoinedStr):
        said.append("message")
        _add_tokens([part for part in node.values if isinstance(part, ast.FormattedValue)], refusals, said, message)
    elif isinstance(node, list):
        statements = [item for item in node if not _is_text(item)]
        said.append(f"[{len(statements)}")
        for item in statements:
            _add_tokens(item, refusals, said, message)
    elif isinstance(node, ast.AST):
        said.append(type(node).__name__)
        message = message or isinstance(node, ast.Raise)
        refuses = (
            isinstance(node, ast.Call) and dotted_names(node.func)[-1:] and dotted_names(node.func)[-1] in refusals
        )
        for name in node._fields:
            value = getattr(node, name, None)
            if value is None or value == [] or name in SILENT:
                continue
            said.append(name)
            if refuses and name == "args":
                _add_tokens(value[:-1], refusals, said, message)
                value, message = value[-1], True
            _add_tokens(value, refusals, said, message)
    else:
        said.append(f"{type(node).__name__} {node!r}")
