"""A syntax tree as tokens: the code that is executed, without comments, docstrings, formatting and messages."""

import ast

IGNORED = ("ctx", "type_comment", "type_ignores", "kind")  # fields of a syntax tree that have no effect


def tree_tokens(tree: ast.AST) -> list[str]:
    """The tokens of a module's tree, the same under every version of Python."""
    tokens: list[str] = []
    _add_tokens(tree, tokens)
    return tokens


def dotted_names(node: ast.AST) -> tuple[str, ...]:
    """`a.b.c` as its names; empty for anything else."""
    if isinstance(node, ast.Name):
        return (node.id,)
    above = dotted_names(node.value) if isinstance(node, ast.Attribute) else ()
    return (*above, node.attr) if above and isinstance(node, ast.Attribute) else ()


def _is_text(node: object) -> bool:
    """Whether a statement is a text for readers only: a docstring, or a text below an attribute."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _add_tokens(node: object, tokens: list[str], message: bool = False) -> None:
    """Add a syntax tree to `tokens`, in the same form under every version of Python; `message` leaves texts out."""
    if isinstance(node, ast.Constant):
        left_out = message and isinstance(node.value, str)
        tokens.append("message" if left_out else f"{type(node.value).__name__} {node.value!r}")
    elif message and isinstance(node, ast.JoinedStr):
        tokens.append("message")
        _add_tokens([part for part in node.values if isinstance(part, ast.FormattedValue)], tokens, message)
    elif isinstance(node, list):
        statements = [item for item in node if not _is_text(item)]
        tokens.append(f"[{len(statements)}")
        for item in statements:
            _add_tokens(item, tokens, message)
    elif isinstance(node, ast.AST):
        tokens.append(type(node).__name__)
        for name in node._fields:
            value = getattr(node, name, None)
            if value is not None and value != [] and name not in IGNORED:
                tokens.append(name)
                _add_tokens(value, tokens, message or isinstance(node, ast.Raise))
    else:
        tokens.append(f"{type(node).__name__} {node!r}")
