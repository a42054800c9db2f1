"""The margin of practical equivalence as users give it, and its file in a folder of results."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedweave.errors import BadInput
from fedweave.metrics import Margin, parse_margin, write_margin
from fedweave.own_data.argument_checks import as_python
from fedweave.results import Study
from fedweave.results.runs import read_margins, write_margins
from fedweave.study.spec import StudySpec


def check_margin(value: Any, metric: Any) -> Margin:
    """The margin that `value` means: a number in the unit of the score, or a share of the mean such as "5 %".

    Raises:
        BadInput: it is neither, or too wide for `metric`.
    """
    return parse_margin(as_python(value), "margin", metric)


def set_margin(study: Study, margin: Margin) -> Study:
    """The study with `margin` for its metric.

    Raises:
        BadInput: its tasks have several metrics.
    """
    metrics = sorted({str(run.info["metric"]) for run in study.runs})
    if len(metrics) > 1:
        raise BadInput(f"margin: one margin does not fit the metrics of all data sets here: {', '.join(metrics)}")
    return study._replace(margins={**study.margins, metrics[0]: margin})


def declare_margin(study: StudySpec, margin: Margin | None, folder: Path) -> StudySpec:
    """A study to be trained in `folder`, with `margin` for the metric of its runs, or else with those of the folder."""
    given = {} if margin is None else {"": margin}
    return replace(study, margins=as_plain({**read_margins(folder), **given}))


def store_margin(study: Study, margin: Margin) -> Study:
    """As `set_margin`; the margin is written into the folder of the study, too."""
    study = set_margin(study, margin)
    write_margins(study.folder, as_plain(study.margins))
    return study


def as_plain(margins: Mapping[str, Margin]) -> dict[str, float | str]:
    """Margins as users write them."""
    return {metric: write_margin(margin) for metric, margin in margins.items()}
