"""Budgets as users write them: "10min", "1h30min", "200 MB"."""

import math
import re
from collections.abc import Mapping
from typing import Any

from fedweave.errors import BadInput, format_value

TIME = {"s": 1, "sec": 1, "min": 60, "m": 60, "h": 3600, "d": 86400}
SIZE = {"b": 1, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40}
PART = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*")
MIN_SECONDS = 1.0


def seconds(budget: Any) -> float:
    """Seconds of a budget of time: a number, a text such as "10min" or "1h30min", or None for no limit.

    Raises:
        BadInput: it is neither, or shorter than a second.

    >>> seconds("10min"), seconds("1h30min"), seconds(45), seconds(None)
    (600.0, 5400.0, 45.0, inf)
    """
    length = _number(budget, TIME, "budget", 'a number of seconds, or a text such as "90s", "10min" or "2h"')
    if length < MIN_SECONDS:
        raise BadInput(f"budget: {format_value(budget)} is less than a second; give more, such as 10min")
    return length


def size(traffic: Any) -> float:
    """Bytes of a budget of traffic: a number, a text such as "200 MB", or None for no limit.

    Raises:
        BadInput: it is neither.

    >>> size("200 MB"), size("1.5GiB"), size(None)
    (200000000.0, 1610612736.0, inf)
    """
    return _number(traffic, SIZE, "traffic", 'a number of bytes, or a text such as "200MB" or "2GB"')


def _number(value: Any, units: Mapping[str, float], name: str, remedy: str) -> float:
    if value is None:
        return math.inf
    if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0:
        return float(value)
    text = str(value).lower() if isinstance(value, str) else ""
    if re.fullmatch(r"\s*[0-9]+(\.[0-9]+)?\s*", text):
        return float(text)
    parts = PART.findall(text)
    if not parts or PART.sub("", text) or any(unit not in units for _, unit in parts):
        kind = "time" if name == "budget" else "size"
        raise BadInput(f"{name}: {format_value(value)} is not a {kind}; give {remedy}")
    return float(sum(float(number) * units[unit] for number, unit in parts))
