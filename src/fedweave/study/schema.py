"""The blocks of params.yaml, as typed records."""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from fedweave.settings import LARGEST_WHOLE, AtLeast, AtMost, Between, Count, LogSpace, Rounds, Share

Participation = Annotated[float, AtLeast(1e-6), AtMost(LARGEST_WHOLE)]
Rate = Annotated[float, AtLeast(0), AtMost(1000)]
Executor = Literal["auto", "loop", "processes", "batched", "kernel"]
Precision = Literal["tf32", "bfloat16"]
Store = Literal["auto", "memory", "mapped"]
Selection = Literal["best_val_round", "per_client_best_val", "last"]

EVERY_RULE = ("name", "clients", "seed", "seeds")  # of a partition


@dataclass(frozen=True, kw_only=True)
class TrainSpec:
    """Budget and local optimiser of a task.

    The bounds allow every published protocol, and refuse typing errors that would only fail after hours. A rate or
    decay above 1000 overflows within a few steps, and nobody trains 10,000 epochs a round.
    """

    rounds: Annotated[int, AtLeast(1), AtMost(1_000_000), "T, rounds of communication"]
    lr: Annotated[Rate, LogSpace(0.003, 0.3), "learning rate of the clients' optimiser"]
    epochs: Annotated[int, AtLeast(1), AtMost(10_000), "local epochs per round"] = 1
    steps: Annotated[Rounds, "local steps per round, which replace the epochs; 0 for epochs"] = 0
    batch_size: Annotated[Count, "rows of a minibatch; 0 is the whole training set, and so is more than it has"] = 32
    drop_last: Annotated[
        bool | None, "a last batch with fewer rows is left out, of clients with a full one; null: only with BatchNorm"
    ] = None
    averaging: Annotated[
        Literal["size", "uniform"], "weights of the uploads in the server's mean: numbers of training rows, or equal"
    ] = "size"
    server_optimizer: Annotated[
        Literal["sgd", "adam", "yogi", "adagrad"] | None, "optimiser of a server that averages; null: it takes the mean"
    ] = None
    server_lr: Annotated[
        float | None,
        AtLeast(0),
        AtMost(1000),
        "its learning rate; null: 1 of sgd, 0.01 of adam and yogi, 0.1 of adagrad",
    ] = None
    server_momentum: Annotated[float | None, Between(0, 0.9999), "momentum of sgd, β1 of adam and yogi; null: 0.9"] = (
        None
    )
    server_beta2: Annotated[float | None, Between(0, 0.9999), "β2 of adam and yogi; null: 0.99"] = None
    server_tau: Annotated[
        float | None, AtLeast(1e-12), "τ of adam, yogi and adagrad, added to their denominator; null: 0.001"
    ] = None
    participation: Annotated[Participation, "share (≤ 1) or number (> 1) of clients per round"] = 1.0
    optimizer: Annotated[Literal["sgd", "adam"], "the clients' optimiser"] = "sgd"
    client_optimizer: Annotated[
        Literal["fresh", "kept"], "a new optimiser every round, or one for the whole run, with its moments and steps"
    ] = "fresh"
    momentum: Annotated[Share, "momentum of sgd"] = 0.0
    weight_decay: Annotated[Rate, "coefficient of the L2 penalty, added to the gradient"] = 0.0
    clip: Annotated[float | None, AtLeast(1e-12), "largest norm of a gradient, or null"] = None
    augment: Annotated[
        int | None, Between(1, 4096), "training images are mirrored and shifted by up to so many pixels, at random"
    ] = None
    class_weights: Annotated[
        Literal["balanced"] | None, "class weights in a client's loss, from its training rows; null: none"
    ] = None
    bn_buffers: Annotated[
        Literal["average"] | None, "the server averages BatchNorm statistics; null: clients keep their own"
    ] = None
    precision: Annotated[Precision | None, "precision of matrix products, tf32 on a GPU only; null: float32"] = None
    executor: Annotated[Executor, "how clients are computed; results agree up to rounding"] = "auto"
    chunk: Annotated[Count, "clients that are trained at once; 0 for all of them"] = 0
    store: Annotated[Store, "storage of tables of all clients: memory, or memory-mapped files; auto: by size"] = "auto"
    device: Annotated[Literal["auto", "cpu", "cuda"], "auto uses a GPU if there is one"] = "auto"
    newcomers: Annotated[Count, "clients that join late"] = 0
    join_round: Annotated[Count, "round before which they join"] = 0
    freeze: Annotated[bool, "the server stops learning once they have joined"] = False
    checkpoint: Annotated[Count, "rounds between checkpoints, 0 for none"] = 25
    privacy: Annotated[dict[str, Any] | None, "settings of `fedweave.threats.privacy.Privacy`, or null"] = None
    robust: Annotated[dict[str, Any] | None, "settings of `fedweave.threats.robust.Robust`, or null"] = None


@dataclass(frozen=True, kw_only=True)
class EvaluateSpec:
    """When and how models are evaluated."""

    every: Annotated[int, AtLeast(1), "rounds between evaluations"] = 1
    select: Annotated[Selection, "how the reported round is chosen; always from validation data"] = "best_val_round"
    point: Annotated[Literal["method", "pre", "post"], "evaluation point; method: the one its paper reports"] = "method"
    models: Annotated[bool, "store every client's selected model; without it, no model can be served"] = True
    clients: Annotated[Count, "clients that are evaluated, a sample that is the same for all methods; 0: all"] = 0
    edges: Annotated[int, Between(0, 1000), "edges of a client whose value is measured after the last round"] = 0
    predictions: Annotated[bool, "store the models' predictions for validation and test rows, for other metrics"] = True


@dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A data set, its partition over clients, their model and the length of training.

    Attributes:
        dataset, normalize, partition, model: names and options of the data layer and the client model.
        setting: how the partition is called in tables.
        published: the printed column that this task may be compared with, or null.
        attack: which clients attack and how, or null.
        metric: of the scores; null: accuracy for classes, mse for numbers and forecasts.
        targets: what the data set has; null: forecasts where the model reads a series, else classes.
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
    metric: str | None = None
    targets: Literal["classes", "numbers", "forecasts"] | None = None


@dataclass(frozen=True, kw_only=True)
class TuneSpec:
    """The tuning budget, the same for every method."""

    trials: Annotated[int, Between(0, 100_000), "trials per run; 0 turns tuning off"] = 0
    share: Annotated[float, Between(1e-6, 1), "share of the task's rounds that a trial trains, rounded up"] = 1.0
    seeds: Annotated[list[int], "seeds of a trial, none of them the study's"] = field(default_factory=lambda: [1000])
    sampler: Annotated[
        Literal["tpe", "random", "grid", "rates"],
        "search algorithm; tpe begins with random trials: a third of them, from 2 to 10; grid tries every combination; "
        "rates tries so many learning rates around the declared one, all for half of a trial's rounds, the better half "
        "to the end",
    ] = "tpe"
    objectives: Annotated[
        list[Literal["score", "bytes"]], "[score], or [score, bytes] for the fewest bytes with a score near the best"
    ] = field(default_factory=lambda: ["score"])
    workers: Annotated[int, Between(1, 1024), "parallel processes"] = 2
    spaces: Annotated[dict[str, Any], "changes of the search spaces of each method"] = field(default_factory=dict)

    @property
    def trained_share(self) -> float:
        """Rounds of all trials of a search together, as a multiple of the rounds of a repetition, without pruning."""
        full_trials = (self.trials + (self.trials + 1) // 2) / 2 if self.sampler == "rates" else self.trials
        return full_trials * self.share * len(self.seeds)

    @property
    def budget(self) -> dict[str, Any]:
        """The settings of a search apart from its space, as in JSON."""
        return {name: getattr(self, name) for name in ("trials", "share", "seeds", "sampler", "objectives")}


@dataclass(frozen=True, kw_only=True)
class RunEntry:
    """An entry of `runs`: one train stage. `set` holds settings of this run alone."""

    task: str
    method: str
    set: dict[str, Any] = field(default_factory=dict)
