"""A syntax tree as tokens: the code that is executed, without comments, docstrings, formatting and messages."""

import ast
from collections.abc import Iterable

IGNORED = ("ctx", "type_comment", "type_ignores", "kind")  # fields of a syntax tree that have no effect


def tree_tokens(tree: ast.AST, nodes: Iterable[ast.AST]) -> list[str]:
    """The tokens of a module's tree, the same under every version of Python; `nodes` are all of its nodes."""
    tokens: list[str] = []
    _add_tokens(tree, _raising_functions(nodes), tokens)
    return tokens


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
            statement = body[0] if len(body) == 1 else None
            raising = (
                statement.body[0]
                if isinstance(statement, ast.If) and len(statement.body) == 1 and not statement.orelse
                else statement
            )
            parts = ast.walk(raising) if isinstance(raising, ast.Raise) else ()
            used_names = {part.id for part in parts if isinstance(part, ast.Name)}
            if {arg.arg for arg in node.args.args[-1:]} & used_names and "NotImplementedError" not in used_names:
                names.add(node.name)
    return frozenset(names)


def _is_text(node: object) -> bool:
    """Whether a statement is a text for readers only: a docstring, or a text below an attribute."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _add_tokens(node: object, refusals: frozenset[str], tokens: list[str], message: bool = False) -> None:
    """Add a syntax tree to `tokens`, in the same form under every version of Python; `message` leaves texts out."""
    if isinstance(node, ast.Constant):
        left_out = message and isinstance(node.value, str)
        tokens.append("message" if left_out else f"{type(node.value).__name__} {node.value!r}")
    elif message and isinstance(node, ast.JoinedStr):
        tokens.append("message")
        _add_tokens([part for part in node.values if isinstance(part, ast.FormattedValue)], refusals, tokens, message)
    elif isinstance(node, list):
        statements = [item for item in node if not _is_text(item)]
        tokens.append(f"[{len(statements)}")
        for item in statements:
            _add_tokens(item, refusals, tokens, message)
    elif isinstance(node, ast.AST):
        tokens.append(type(node).__name__)
        message = message or isinstance(node, ast.Raise)
        refuses = (
            isinstance(node, ast.Call) and dotted_names(node.func)[-1:] and dotted_names(node.func)[-1] in refusals
        )
        for name in node._fields:
            value = getattr(node, name, None)
            if value is None or value == [] or name in IGNORED:
                continue
            tokens.append(name)
            if refuses and name == "args":
                _add_tokens(value[:-1], refusals, tokens, message)
                value, message = value[-1], True
            _add_tokens(value, refusals, tokens, message)
    else:
        tokens.append(f"{type(node).__name__} {node!r}")
