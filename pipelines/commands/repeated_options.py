"""Options that take one value and are given twice: the last value would count alone, without a word."""

from typing import Any

import typer
from typer.core import TyperCommand, TyperOption

from fedweave.errors import BadInput


class _Command(TyperCommand):
    """A command whose options of one value are given at most once; flags may be repeated."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args([*args])
        for option in given:
            takes_one = isinstance(option, TyperOption) and not (option.multiple or option.is_flag)
            if takes_one and (times := given.count(option)) > 1:
                raise BadInput(f"{option.opts[0]}: is given {times} times, but takes one value; give it once")
        return super().parse_args(ctx, args)


def refuse_repeated_options(app: typer.Typer) -> None:
    """Let every command of `app` refuse a repeated option that takes one value."""
    for command in app.registered_commands:
        command.cls = _Command
    for group in app.registered_groups:
        if group.typer_instance is not None:
            refuse_repeated_options(group.typer_instance)
