"""What the settings of a run say, as objects: its method with solver and training, and the engine's settings.

No data are needed: the method gets the task that its caller has built, on data or on placeholders.
"""

from collections.abc import Mapping
from typing import Any

from fedweave.client.solvers import SOLVERS
from fedweave.client.task import Task
from fedweave.engine.protocol import Method
from fedweave.engine.records import Settings
from fedweave.engine.schedule import Training
from fedweave.engine.uploads import UploadPath
from fedweave.families.server_solvers import server_optimizer
from fedweave.methods import METHODS
from fedweave.study.config import construct
from fedweave.study.spec import PARAMS, RunSpec
from fedweave.threats.privacy import Privacy
from fedweave.threats.robust import Robust


def build_method(run: RunSpec, task: Task, where: str = str(PARAMS)) -> Method:
    """The run's method; `where` is what messages call the file with its settings, or the call that gave them.

    Raises:
        BadInput: for a misspelt or ill-typed hyper-parameter, or a setting that the server's optimiser does not read.
    """
    train = run.train
    options = {"lr": train.lr, "weight_decay": train.weight_decay, "clip": train.clip}
    momentum = {"momentum": train.momentum} if train.optimizer == "sgd" else {}
    server_settings = {
        name: getattr(train, name) for name in ("server_lr", "server_momentum", "server_beta2", "server_tau")
    }
    training = Training(
        train.batch_size,
        train.epochs,
        train.steps,
        drop_last=bool(task.norms) if train.drop_last is None else train.drop_last,
        average_buffers=train.bn_buffers == "average",
        keep_optimizer=train.client_optimizer == "kept",
        uniform_mean=train.averaging == "uniform",
        server=server_optimizer(train.server_optimizer, server_settings, f"{where}: runs.{run.key}.train"),
    )
    return construct(
        METHODS[run.method],
        run.options,
        f"{where}: methods.{run.method}",
        task=task,
        solver=SOLVERS[train.optimizer](**options, **momentum),
        training=training,
        control=None,
    )


def build_settings(run: RunSpec, seed: int = 0) -> Settings:
    """The engine's settings of one repetition."""
    train = run.train
    return Settings(
        train.rounds,
        seed,
        train.participation,
        run.evaluate.every,
        train.newcomers,
        train.join_round,
        train.freeze,
        build_upload_path(run, f"{PARAMS}: runs.{run.key}"),
        run.evaluate.edges,
    )


def build_upload_path(run: RunSpec, place: str) -> UploadPath:
    """What happens to the uploads of a run on their way; `place` is that of the run.

    Raises:
        BadInput: for a wrong setting of `train.privacy` or `train.robust`.
    """
    privacy, robust = run.train.privacy, run.train.robust
    return UploadPath(
        None if privacy is None else construct(Privacy, privacy, f"{place}.train.privacy"),
        None if robust is None else construct(Robust, robust, f"{place}.train.robust"),
    )


def hyperparameters(method: Method) -> Mapping[str, Any]:
    """The method's own settings, defaults included."""
    return {setting.name: getattr(method, setting.name) for setting in method.settings()}


def evaluation_point(run: RunSpec) -> str:
    """The evaluation point that is reported."""
    method = METHODS[run.method]
    return method.point if run.evaluate.point == "method" or method.fixed_point else run.evaluate.point
