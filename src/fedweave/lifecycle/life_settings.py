"""life.json: what a life was begun with. It may be edited between two calls, but for the terms of its rows."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from fedweave.comparison.plan import resolve_methods
from fedweave.engine.registry import METHODS
from fedweave.errors import BadInput, choose, relocate
from fedweave.files.atomic import read_json, write_json
from fedweave.lifecycle.deliveries import Deliveries, Terms
from fedweave.lifecycle.drift import DriftSettings
from fedweave.lifecycle.sites import SiteSettings
from fedweave.lifecycle.sources import Source
from fedweave.metrics import METRICS, parse_margin
from fedweave.own_data.argument_checks import as_names
from fedweave.results.sequential import ChallengePlan
from fedweave.settings import AtLeast, AtMost
from fedweave.study.config import construct

FILE = "life.json"
LISTS = ("features", "exclude")  # options that are names of columns


@dataclass(frozen=True)
class LifeTraining:
    """How models are trained on a version.

    Attributes:
        methods: of which the best one by validation becomes the challenger.
        model, rounds, metric: as of `fedweave.compare`; an empty metric is its default.
        warm_rounds: of a challenger that goes on from the champion, beside the one from scratch; None: as many as
            `rounds`; 0: there is none.
        margin: as of `fedweave.compare`.
        train: other settings of the training, such as {"lr": 0.1}.
        columns: features, exclude, embed, preprocess and text of `Federation.from_pandas`.
    """

    methods: tuple[str, ...]
    model: dict[str, Any] = field(default_factory=lambda: {"name": "mlp"})
    rounds: Annotated[int, AtLeast(1), AtMost(1_000_000)] = 50
    warm_rounds: Annotated[int | None, AtLeast(0), AtMost(1_000_000)] = None
    metric: str = ""
    margin: float | str | None = None
    train: dict[str, Any] = field(default_factory=dict)
    columns: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.margin is not None:
            parse_margin(self.margin, "margin", self.metric)
        if self.columns.get("features") and self.columns.get("exclude"):
            raise BadInput("columns", "has both features and exclude; give one of them")
        lists = {name: as_names(value, name, 0) for name, value in self.columns.items() if name in LISTS and value}
        object.__setattr__(self, "columns", {**self.columns, **lists})  # one name is a list of it

    @property
    def named_columns(self) -> list[tuple[str, str]]:
        """(option, name) of each column that the options of tables name."""
        options = ("features", "exclude", "text")
        return [(option, name) for option in options for name in as_names(self.columns.get(option) or (), option, 0)]


@dataclass(frozen=True)
class LifeSettings:
    """All settings: the source, what its rows mean, how models are trained and challenged, drift, and sites."""

    source: Source
    terms: Terms
    training: LifeTraining
    challenge: ChallengePlan
    drift: DriftSettings
    sites: SiteSettings

    @classmethod
    def parse(cls, blocks: Mapping[str, Any]) -> "LifeSettings":
        """Settings from plain values.

        Raises:
            BadInput: an unknown block or setting, or a value of another type.
        """
        if unknown := {*blocks} - {*KINDS}:
            raise BadInput(min(unknown), f"is unknown; blocks: {', '.join(KINDS)}")
        return cls(**{name: construct(kind, blocks.get(name, {}), name) for name, kind in KINDS.items()})


KINDS: dict[str, Any] = {one.name: one.type for one in fields(LifeSettings)}
OWN_NAMES = {("source", "address"): "source", ("drift", "level"): "drift_level", ("sites", "rounds"): "join_rounds"}
# Argument of `Lifecycle.begin` -> its block and name in life.json.
PLACES = {
    OWN_NAMES.get((block, one.name), one.name): (block, one.name)
    for block, kind in KINDS.items()
    for one in fields(kind)
}


def parse_arguments(settings: Mapping[str, Any]) -> LifeSettings:
    """The settings that `Lifecycle.begin` got.

    Raises:
        BadInput: naming the argument.
    """
    blocks: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        if name not in PLACES:
            raise BadInput(name, f"is not a setting; they are {', '.join(PLACES)}")
        block, own = PLACES[name]
        blocks.setdefault(block, {})[own] = [value] if name in ("key", "methods") and isinstance(value, str) else value
    with relocate({f"{block}.{own}": name for name, (block, own) in PLACES.items()}):
        parsed = LifeSettings.parse(blocks)
    if metric := parsed.training.metric:
        choose(metric, METRICS, "metric")  # one of another name could not be found by another process
    names = [method for method, _ in resolve_methods(parsed.training.methods).values()]
    if all(METHODS[name].pools for name in names):
        raise BadInput("methods", f"{names[0]!r} is a control on pooled rows and can be no champion; add a method")
    return parsed


def read_settings(folder: Path) -> LifeSettings:
    """The settings of a life.

    Raises:
        BadInput: there is none in the folder, or its file is damaged.
    """
    file = folder / FILE
    if not file.is_file():
        raise BadInput(
            folder, "is no life yet; begin one: fedweave refresh FOLDER --source ... --client ... --label ..."
        )
    content = read_json(file, "correct it")
    with relocate({"": f"{file}: "}):
        return LifeSettings.parse(content)


def begin(folder: Path, settings: LifeSettings) -> None:
    """Write the settings of a new life; the same ones again change nothing.

    A life that has taken no rows yet gets other settings, as when a first call had a wrong name.

    Raises:
        BadInput: the folder has a life with other settings.
    """
    if not (folder / FILE).is_file() or not Deliveries(folder, settings.terms).ledger.arrivals:
        write_json(folder / FILE, asdict(settings), ensure_ascii=False)
    elif (other := read_settings(folder)) != settings:
        for block, old in vars(other).items():
            for name, value in vars(old).items():
                if value != (new := getattr(getattr(settings, block), name)):
                    problem = f"{block}.{name} is {value!r}, not {new!r}; leave the options out, or edit the file"
                    raise BadInput(folder / FILE, problem)
