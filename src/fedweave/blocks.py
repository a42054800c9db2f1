"""The blocks of params.yaml, as typed records."""

from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from fedweave.settings import LogSpace

from fedweave.config import LARGEST_REAL, LARGEST_WHOLE


@dataclass(frozen=True, kw_only=True)
class TrainSpec:
    """Budget and local optimiser of a task.

    Attributes:
        rounds: T.
        epochs, steps, batch_size: local work per round; `steps` replaces epochs, batch_size 0 is the whole training set.
        participation: fraction (≤ 1) or number (> 1) of clients per round.
        optimizer, lr, momentum, weight_decay, clip: the clients' solver.
        augment: pixels by which training images are shifted at random, and then mirrored half of the time, or null.
        bn_buffers: "average" lets methods that average do so with BatchNorm statistics; null leaves them with the clients.
        precision: in which the clients' models multiply: "bfloat16", "tf32" (on a GPU), or null for full float32.
        executor, chunk: how clients are mapped; never changes a result beyond rounding.
        device: "auto" takes a GPU where there is one.
        newcomers, join_round: how many clients join late, and before which round.
        freeze: the server learns nothing more once they have joined.
        checkpoint: rounds between checkpoints, 0 for none.
        privacy: {clip, noise, delta} of what clients send, see `fedweave.privacy.Privacy`, or null.
        robust: {rule, trim, bound} of the server's aggregation, see `fedweave.robust.Robust`, or null.

    The bounds leave room for every published protocol, and none for a slip of the pen that would only fail after hours: a rate
    or decay above 1000 overflows within a few steps, and more than 10,000 passes a round are no federated learning.
    """

    rounds: int
    lr: Annotated[float, LogSpace(0.003, 0.3)]
    epochs: int = 1
    steps: int = 0
    batch_size: int = 32
    participation: float = 1.0
    optimizer: Literal["sgd", "adam"] = "sgd"
    momentum: float = 0.0
    weight_decay: float = 0.0
    clip: float | None = None
    augment: int | None = None
    bn_buffers: Literal["average"] | None = None
    precision: Literal["tf32", "bfloat16"] | None = None
    executor: Literal["auto", "loop", "batched", "compiled"] = "auto"
    chunk: int = 0
    device: Literal["auto", "cpu", "cuda"] = "auto"
    newcomers: int = 0
    join_round: int = 0
    freeze: bool = False
    checkpoint: int = 25
    privacy: dict[str, Any] | None = None
    robust: dict[str, Any] | None = None

    bounds: ClassVar = {
        "rounds": (1, 1_000_000),
        "lr": (0, 1000),
        "epochs": (1, 10_000),
        "steps": (0, 1_000_000),
        "batch_size": (0, LARGEST_WHOLE),  # beyond a client's rows it means all of them
        "participation": (1e-6, LARGEST_WHOLE),
        "augment": (1, 4096),
        "momentum": (0, 1),
        "weight_decay": (0, 1000),
        "clip": (1e-12, LARGEST_REAL),
        "chunk": (0, LARGEST_WHOLE),
        "newcomers": (0, LARGEST_WHOLE),
        "join_round": (0, LARGEST_WHOLE),
        "checkpoint": (0, LARGEST_WHOLE),
    }


@dataclass(frozen=True, kw_only=True)
class EvaluateSpec:
    """When and how models are judged.

    Attributes:
        every: rounds between evaluations.
        select: how the reported round is chosen; always from validation data.
        point: "pre", "post", or "method" for the point the method's paper reports.
        models: keep every client's selected model; without, a run leaves numbers and graphs, and nothing to be served.
    """

    every: int = 1
    select: Literal["best_val_round", "per_client_best_val", "last"] = "best_val_round"
    point: Literal["method", "pre", "post"] = "method"
    models: bool = True

    bounds: ClassVar = {"every": (1, LARGEST_WHOLE)}


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A data set, how it is dealt to clients, what they train and how long.

    Attributes:
        dataset, normalize, partition, model: names and options of the data layer and the client model.
        setting: how the partition is called in tables.
        published: the printed column this task may stand beside, or null.
        attack: how some clients lie about their data, or null.
    """

    dataset: str
    setting: str
    partition: dict[str, Any]
    model: dict[str, Any]
    train: dict[str, Any]
    normalize: Any = "none"
    evaluate: dict[str, Any] = field(default_factory=dict)
    published: dict[str, Any] | None = None
    attack: dict[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class TuneSpec:
    """The tuning budget, the same for every method.

    Attributes:
        trials: per run; 0 turns tuning off.
        share: of the task's rounds that a trial trains, rounded up.
        seeds: of a trial, at least one; disjoint from the study's seeds.
        workers: parallel processes.
        spaces: method -> {parameter: {low, high, log, step} or {choices}}; "train.lr" reaches the solver.
    """

    trials: int = 0
    share: float = 1.0
    seeds: list[int] = field(default_factory=lambda: [1000])
    sampler: Literal["tpe", "random", "grid"] = "tpe"
    workers: int = 2
    spaces: dict[str, Any] = field(default_factory=dict)

    bounds: ClassVar = {"trials": (0, 100_000), "share": (1e-6, 1), "workers": (1, 1024)}


@dataclass(frozen=True, kw_only=True)
class Item:
    """An entry of `runs`: one train stage. `set` holds settings of this run alone."""

    task: str
    method: str
    set: dict[str, Any] = field(default_factory=dict)
