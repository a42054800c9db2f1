"""The options of `fedweave flow`."""

import argparse
import os
from contextlib import suppress
from typing import Any, get_args

from fedweave.pipelines.scheduling.pool import Place


def parse() -> dict[str, Any]:
    """The arguments of the flow `reproduce`, from the command line."""
    parser = argparse.ArgumentParser(prog="fedweave flow", description="Reproduce a study, scheduled by Prefect.")
    parser.add_argument("--study", default="", help="a name or a .yaml file; default: the one that params.yaml holds")
    parser.add_argument("--targets", nargs="*", help="only these stages and what they depend on, such as tune")
    parser.add_argument("--where", choices=get_args(Place), default="here", help="where training runs")
    parser.add_argument("--parallel", type=_count, default=os.cpu_count() or 1, help="stages at once")
    parser.add_argument("--retries", type=_count, default=1, help="how often a failed stage is tried again")
    parser.add_argument("--gpus", nargs="*", help="CUDA devices, one per training stage; default: all")
    parser.add_argument("--share", type=_gpu_share, default=1.0, help="with ray, the part of a GPU that a stage takes")
    return vars(parser.parse_args())


def _count(text: str) -> int:
    """A whole number from 0 on."""
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0 on")
    return int(text)


def _gpu_share(text: str) -> float:
    """A part of a GPU."""
    with suppress(ValueError):
        if 0 < float(text) <= 1:
            return float(text)
    raise argparse.ArgumentTypeError(f"{text} is not a share of a GPU; give one above 0 and at most 1, such as 0.25")
