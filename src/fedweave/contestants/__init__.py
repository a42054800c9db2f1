"""Contestants: code that fedweave has not written, judged beside its methods.

    fw.compare(federation, ["local", "fedavg", fw.contestants.program("python mine.py")])

A contestant gets the rows of a federation without the targets of test rows, and gives predictions. They are scored,
tested and shown as those of any method, with a note of what is not equal. docs/contestants.md has the protocol.
"""

import math
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from fedweave.contestants.entry import Contestant, build_entry
from fedweave.contestants.environments import PYTHON
from fedweave.contestants.functions import EstimatorRunner, FunctionRunner
from fedweave.contestants.programs import ProgramRunner
from fedweave.contestants.rows import ContestAnswers, ContestClient, ContestTask
from fedweave.contestants.sandbox import find_problem
from fedweave.errors import BadInput, choose, format_value
from fedweave.own_data.argument_checks import check_flag
from fedweave.study.spec import NAME


def function(
    fit_predict: Callable[[ContestTask], Any],
    name: str | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    space: Mapping[str, Any] | None = None,
) -> type[Contestant]:
    """A function of Python as a contestant; it runs in this process.

    Args:
        fit_predict: (task) -> {name of a client: (predictions for its validation rows, for its test rows)}, or these
            pairs in the order of the clients, or `ContestAnswers`. See `ContestTask` and `ContestAnswers`.
        name: in tables; default: that of the function.
        settings, space: as of `program`.

    Raises:
        BadInput: it is not a function, or has no name that can be used.

    >>> import numpy as np
    >>> from fedweave import Federation, compare
    >>> def most_frequent(task):
    ...     answers = {}
    ...     for client in task.clients:
    ...         shares = np.bincount(client.train_y, minlength=task.outputs) / len(client.train_y)
    ...         answers[client.name] = [np.tile(shares, (len(x), 1)) for x in (client.val_x, client.test_x)]
    ...     return answers
    >>> federation = Federation.from_dataset("digits", "dirichlet", clients=4, beta=0.5)
    >>> compare(federation, ["local", function(most_frequent)], rounds=1, seeds=1, progress=False).methods
    ('local', 'most_frequent')
    """
    if not callable(fit_predict):
        raise BadInput("contestants.function", f"{format_value(fit_predict)} is not a function; write one of (task)")
    given = name or getattr(fit_predict, "__name__", "").strip("<>")
    return build_entry(_check_name(given, "function"), FunctionRunner(fit_predict), settings, space)


def estimator(
    sklearn_estimator: Any,
    scope: Literal["client", "pooled"] = "client",
    name: str | None = None,
    *,
    raw: bool | str = False,
) -> type[Contestant]:
    """An estimator of scikit-learn as a contestant, such as a pipeline.

    Args:
        sklearn_estimator: with `fit` and `predict`; of classes `predict_proba` is used where there is one.
        scope: "client" fits one to the rows of each client, "pooled" fits one to the rows of all clients.
        raw: what it reads: False, the inputs that every method gets, flattened; True, a table of the raw rows, as for a
            `ColumnTransformer`; or the name of one column of it, such as "text", as for a `TfidfVectorizer`. With raw
            rows, numbers to predict are in their own unit; else they are scaled, as for every method.
        name: in tables; default: its class, with "-pooled" behind.

    Raises:
        BadInput: it is not an estimator, or the scope is unknown.
    """
    choose(scope, ("client", "pooled"), "contestants.estimator: scope")
    lacking = [word for word in ("fit", "predict", "get_params") if not hasattr(sklearn_estimator, word)]
    if lacking or isinstance(sklearn_estimator, type):
        problem = f"{format_value(sklearn_estimator)} is not an estimator of scikit-learn; give one, as Ridge()"
        raise BadInput("contestants.estimator", problem)
    if not isinstance(raw, bool | str) or raw == "":
        raise BadInput("contestants.estimator: raw", f"{format_value(raw)} is neither a bool nor the name of a column")
    given = name or type(sklearn_estimator).__name__ + ("-pooled" if scope == "pooled" else "")
    return build_entry(_check_name(given, "estimator"), EstimatorRunner(sklearn_estimator, scope, raw))


def program(
    command: str | Sequence[str],
    *,
    name: str | None = None,
    folder: Path | str = ".",
    uses: Sequence[Path | str] | Path | str = (),
    env: Mapping[str, str] | None = None,
    timeout: float = 3600.0,
    memory: float | None = None,
    requirements: Path | str | None = None,
    settings: Mapping[str, Any] | None = None,
    space: Mapping[str, Any] | None = None,
    sandbox: bool = False,
    network: bool = False,
) -> type[Contestant]:
    """A program of any language as a contestant; it runs once a seed, in a process group of its own.

    It gets the folder of its task and the folder for its output as two more words of its command.

    Args:
        command: as in a shell, without its special characters, or a list of words. `python` is the interpreter that
            runs fedweave; the path of another one is an environment of its own.
        name: in tables; default: that of the first file in the command.
        folder: where it starts.
        uses: a file or folder, or several, that it depends on, besides the files in the command: if one of them
            changes, it runs again. Paths are relative to `folder`.
        env: more variables of its environment; by default it gets a few, such as PATH and HOME.
        timeout: seconds of one repetition, after which it is ended with all its children.
        memory: MiB of address space of each of its processes.
        requirements: a file of packages; `python` is then an environment with these alone, which uv (or venv and pip)
            builds once and keeps under the digest of the file.
        settings: values that task.json names.
        space: setting -> {"low": ..., "high": ..., "log": ...} or {"choices": [...]}: what `tune=` searches.
        sandbox: close to it all files but its task, those of `folder` (to read), `uses`, the system and its
            interpreter. It needs Linux.
        network: open the network to it. Otherwise it has localhost alone, on a machine that can close the network.

    Raises:
        BadInput: the command, a file or a limit is wrong, or this machine has no sandbox.
    """
    place, start = "contestants.program", Path(folder).resolve()
    try:
        words = _as_words(command)
    except ValueError as error:  # of quotes that are not closed
        raise BadInput(place, f"the command {format_value(command)} cannot be read ({error}); correct it") from error
    if not words:
        raise BadInput(place, "the command is empty; give one, such as 'python mine.py'")
    path = (env or {}).get("PATH", os.environ.get("PATH", os.defpath))
    is_program = words[0] in PYTHON or shutil.which(words[0], path=path)
    if not is_program and not (start / words[0]).is_file():
        raise BadInput(place, f"there is no program {words[0]!r} in {start} or on PATH; give its path")
    check_flag(sandbox, f"{place}: sandbox")
    check_flag(network, f"{place}: network")
    for limit, value in (("timeout", timeout), ("memory", memory)):
        if value is not None and not (isinstance(value, int | float) and math.isfinite(value) and value > 0):
            raise BadInput(f"{place}: {limit}", f"{format_value(value)} is not a number above 0")
    named = [start / word for word in words[1:] if (start / word).is_file()]
    used = [start / path for path in _as_paths(uses)]
    if missing := [path for path in used if not path.exists()]:
        raise BadInput(f"{place}: uses", f"{missing[0]} is not there; give files and folders below {start}")
    script = next((word for word in words[1:] if word.endswith((".py", ".R", ".r", ".jl", ".sh"))), None)
    if script and not (start / script).is_file():
        raise BadInput(place, f"there is no file {script} in {start}; give folder= or its path")
    given = name or (named[0] if named else Path(words[0])).stem
    packages = None if requirements is None else start / requirements
    if packages and not packages.is_file():
        raise BadInput(f"{place}: requirements", f"{packages} is not there; give a file of packages below {start}")
    if sandbox and (problem := find_problem()):
        raise BadInput(f"{place}: sandbox", problem)
    variables = {key: str(value) for key, value in (env or {}).items()}
    limits = (float(timeout), memory, packages, sandbox, network)
    runner = ProgramRunner(tuple(words), start, (*named, *used), variables, *limits)
    return build_entry(_check_name(given, "program"), runner, settings, space)


def flower(
    app: Path | str, *, predict: str, python: Path | str | None = None, name: str | None = None, **options: Any
) -> type[Contestant]:
    """A Flower app as a contestant, with its ServerApp and ClientApp as they are, in an environment with Flower.

    They run in one process, one client after the other. Its loader finds the folder of the task in the run config
    ("fedweave-task"), and the client in the node config ("partition-id").

    Args:
        app: folder with the pyproject.toml of the app.
        predict: "module:function" of the app: (message, context) -> (predictions for the validation rows, for the test
            rows), of the last message that the client got to evaluate, or else to train.
        python: interpreter of an environment with Flower; default: .flower/bin/python, which `make flower` builds.
        name: in tables; default: that of the folder.
        options: those of `program`; `settings` are entries of the run config, with _ for a hyphen.

    Raises:
        BadInput: the folder is not an app, there is no interpreter, and as `program`.
    """
    root, interpreter = Path(app).resolve(), Path(python or ".flower/bin/python").absolute()
    if not (root / "pyproject.toml").is_file():
        raise BadInput("contestants.flower", f"there is no pyproject.toml in {root}; give the folder of a Flower app")
    if not interpreter.is_file():
        raise BadInput("contestants.flower: python", f"{interpreter} is not there; make flower, or name another one")
    return _drive("flower", interpreter, root, [predict], [""], name=name or root.name, **options)


def pfllib(
    checkout: Path | str,
    arguments: str | Sequence[str],
    *,
    python: Path | str = "python",
    name: str | None = None,
    **options: Any,
) -> type[Contestant]:
    """PFLlib's command line as a contestant, from a checkout of your own, which is only read.

    Its predictions are those of its last evaluation. Its rounds are those of the methods unless `arguments` have -gr.

    Args:
        checkout: folder of github.com/TsingZ0/PFLlib.
        arguments: of its main.py, such as "-algo FedALA -m CNN -data MNIST -lr 0.05"; by the name after -data PFLlib
            chooses the sizes of its models. Numbers of clients and classes are added.
        python: interpreter with PFLlib's packages; default: that of `requirements`, or the one that runs fedweave.
        name: in tables; default: the algorithm.
        options: those of `program`; `settings={"lr": 0.05}` is -lr 0.05, which a `space` may vary.

    Raises:
        BadInput: the folder has no system/main.py, and as `program`.
    """
    words, root = _as_words(arguments), Path(checkout)
    if not (root / "system" / "main.py").is_file():
        raise BadInput("contestants.pfllib", f"there is no system/main.py in {root}; give a checkout of PFLlib")
    algorithm = words[words.index("-algo") + 1] if "-algo" in words[:-1] else "FedAvg"
    return _drive("pfllib", python, root, words, ("system",), name=name or f"{algorithm}-PFLlib", **options)


def flbench(
    checkout: Path | str,
    arguments: str | Sequence[str],
    *,
    python: Path | str = "python",
    name: str | None = None,
    **options: Any,
) -> type[Contestant]:
    """FL-bench's command line as a contestant, from a checkout of your own, which is only read.

    Its predictions are those of its last evaluation. Its rounds are those of the methods unless `arguments` have
    common.global_epoch.

    Args:
        checkout: folder of github.com/KarhouTam/FL-bench.
        arguments: of its main.py, such as "method=fedala optimizer.lr=0.05 common.join_ratio=1"; by dataset.name it
            chooses the sizes of its models. Default: "synthetic", vectors of any length, with model.name=2nn.
        python: interpreter with FL-bench's packages; default: that of `requirements`, or the one that runs fedweave.
        name: in tables; default: the method.
        options: those of `program`; `settings={"optimizer__lr": 0.05}` is optimizer.lr=0.05, which a `space` may vary.

    Raises:
        BadInput: the folder has no src/server, and as `program`.
    """
    words, root = _as_words(arguments), Path(checkout)
    if not (root / "src" / "server").is_dir() or not (root / "main.py").is_file():
        raise BadInput("contestants.flbench", f"there is no main.py with src/server in {root}; give a checkout of it")
    methods = [word.partition("=")[2] for word in words if word.startswith("method=")]
    used, title = ("main.py", "src", "config", "data/utils"), "-".join([*methods[:1], "FL-bench"])
    return _drive("flbench", python, root, words, used, name=name or title, **options)


def _drive(
    driver: str, python: Path | str, checkout: Path, words: Sequence[str], used: Sequence[str], **options: Any
) -> type[Contestant]:
    """The program of a driver beside this file; `used` are parts of the checkout (or folder) that it depends on."""
    root = checkout.resolve()
    command = [str(python), str(Path(__file__).with_name(f"drive_{driver}.py")), str(root), *words]
    return program(command, uses=[*(root / part for part in used), *_as_paths(options.pop("uses", ()))], **options)


def _as_words(command: str | Sequence[Any]) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else [*map(str, command)]


def _as_paths(given: Sequence[Path | str] | Path | str) -> Sequence[Path | str]:
    return [given] if isinstance(given, Path | str) else given


def _check_name(name: str, kind: str) -> str:
    if not NAME.fullmatch(name):
        raise BadInput(f"contestants.{kind}: name", f"{name!r} is not a name; give name= of letters, digits, - and _")
    return name
