"""A page of HTML from a template, with its drawings."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from fedweave import plots

if TYPE_CHECKING:
    from jinja2 import Environment


def render(package: str, template: str, context: Callable[[], Mapping[str, Any]]) -> str:
    """The page of a template that lies in `package` and extends base.html, which needs `name` and `tiles`.

    Args:
        context: makes the variables of the template; the drawings in them are made at the end, on all cores.
    """
    page, palette = _environment(package).get_template(template), [*zip(plots.LIGHT, plots.DARK, strict=True)]
    return _make_ids_unique(plots.draw_in_parallel(lambda: page.render(context(), palette=palette)))


@cache
def _environment(package: str) -> "Environment":
    """The templates of a package and those of this one, each compiled once."""
    from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined

    loader = ChoiceLoader([PackageLoader(package), PackageLoader("fedweave.report")])
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def _make_ids_unique(page: str) -> str:
    """`page` with unique ids in drawings with identical text, such as the ranks on two tasks."""
    count_of: Counter[str] = Counter()

    def add_suffix(drawing: re.Match[str]) -> str:
        count = count_of[drawing[0]]
        count_of[drawing[0]] += 1
        return re.sub(r'( id="|href="#|url\(#)([^")]+)', rf"\1\2-{count}", drawing[0]) if count else drawing[0]

    return re.sub(r"<svg.*?</svg>", add_suffix, page, flags=re.S)
