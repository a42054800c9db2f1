"""The variants of an ablation: declared by name, or as a grid of one or several factors."""

from collections.abc import Mapping
from itertools import product
from math import prod
from typing import Any

from fedweave.errors import BadInput, format_value

HINT = "give `run`, and either `variants` (name -> settings) or `grid` (setting -> values, at least two)"
LONGEST_LABEL = 200  # characters of a variant's name, which is printed and names no file
MOST_VARIANTS = 1000


def expand(block: Any, where: str) -> dict[str, Any]:
    """{"run", "variants"} of a block that declares variants, or a grid whose combinations are the variants.

    Settings are those of a run, and `partition.*` and `model.*` of its task. A variant of a grid is named after its
    settings: "depth = 2, k = 3".

    Raises:
        BadInput: neither or both, an empty grid, or a factor with fewer than two values.
    """
    if not isinstance(block, Mapping) or "run" not in block or {*block} not in ({"run", "variants"}, {"run", "grid"}):
        raise BadInput(where, HINT)
    if "variants" in block:
        variants = block["variants"]
        if (
            not isinstance(variants, Mapping)
            or not variants
            or not all(isinstance(v, Mapping) for v in variants.values())
        ):
            raise BadInput(f"{where}.variants: {format_value(variants)}", HINT)
        for name in map(str, variants):
            if not 0 < len(name) <= LONGEST_LABEL or not name.isprintable():
                raise BadInput(
                    f"{where}.variants",
                    f"{format_value(name)} is not a label; use 1 to {LONGEST_LABEL} characters that can be printed",
                )
        return {
            "run": str(block["run"]),
            "variants": {str(name): dict(settings) for name, settings in variants.items()},
        }
    grid = block["grid"]
    if not isinstance(grid, Mapping) or not grid or not all(isinstance(v, list) and len(v) > 1 for v in grid.values()):
        raise BadInput(f"{where}.grid: {format_value(grid)}", HINT)
    if (count := prod(map(len, grid.values()))) > MOST_VARIANTS:
        raise BadInput(
            f"{where}.grid", f"{format_value(count)} combinations; a grid may have {MOST_VARIANTS}, so leave out values"
        )
    for name, values in grid.items():
        for index, value in enumerate(values):
            if any(value == other or str(value) == str(other) for other in values[:index]):
                raise BadInput(f"{where}.grid.{name}", f"{format_value(value)} occurs twice; remove one")
    combinations = (dict(zip(grid, values, strict=True)) for values in product(*grid.values()))
    return {"run": str(block["run"]), "variants": {name_variant(settings): settings for settings in combinations}}


def name_variant(settings: Mapping[str, Any]) -> str:
    """A variant's name: its settings, without the name of their block."""
    return ", ".join(f"{name.rpartition('.')[2]} = {value}" for name, value in settings.items())
