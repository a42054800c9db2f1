"""The personalized models of a run as one MLflow model, which takes rows as they are before any scaling.

MLflow stores this file and runs it when the model is loaded, so nothing is pickled. A parameter names the client:
{"inputs": ..., "params": {"client": "subject 1, left", "seed": 0}}. The number of the client does as well.
"""

import json
import sys
from collections.abc import Callable
from functools import partial, wraps
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
from mlflow.exceptions import MlflowException
from mlflow.models import set_model
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from mlflow.pyfunc import PythonModel, PythonModelContext

from fedweave.errors import BadInput, format_value
from fedweave.prediction import packing

PARAMETERS = {"client", "seed"}
FIRST = -1  # as a seed: that of the first repetition


class RequestError(MlflowException):
    """A request that cannot be answered: one line, without the whole input that MLflow would put before it."""

    def __init__(self, line: str) -> None:
        super().__init__(line, error_code=INVALID_PARAMETER_VALUE)

    @property
    def message(self) -> str:
        """The reason."""
        return self._line

    @message.setter
    def message(self, text: str) -> None:
        self._line = text.rpartition("\nError: ")[2]

    def __str__(self) -> str:
        return self._line


class PersonalizedModel(PythonModel):
    """Predicts as the personalized models of a method's clients do."""

    def load_context(self, context: PythonModelContext) -> None:
        """Load the models that `packing.pack` has written."""
        folder = Path(context.artifacts["run"])
        plugins = folder / "plugins.json"
        for name in json.loads(plugins.read_text(encoding="utf-8")) if plugins.is_file() else ():
            import_module(name)  # a plug-in with methods and models, stored with the code of fedweave
        self._predictor = packing.unpack(folder)
        _refuse_in_one_line()

    # MLflow derives no schema from this annotation. Tables come as data frames.
    def predict(
        self, context: PythonModelContext, model_input: np.ndarray, params: dict[str, Any] | None = None
    ) -> np.ndarray:
        """Scores [M, C] of classes, or forecasts [M, horizon] in the unit of the series.

        Raises:
            RequestError: no client or an unknown one, an unknown seed, or rows of another shape.
        """
        parameters = params or {}
        client, seed = str(parameters.get("client", "")), int(parameters.get("seed", FIRST))
        names, first = self._predictor.names, self._predictor.available[0]
        if not client:
            raise RequestError(f"client: missing; give its name or number as a parameter; the first is {first!r}")
        if client not in names and client.isdecimal() and int(client) < len(names):
            client = names[int(client)]
        try:
            return self._predictor.outputs(model_input, client, None if seed == FIRST else seed)
        except BadInput as error:
            raise RequestError(str(error)) from error


def _refuse_in_one_line() -> None:
    """Let MLflow refuse wrong parameters and inputs of these models in one line.

    MLflow itself ignores unknown parameters with a warning in its log, refuses a number where the type is text, and
    puts the whole input before the reason.
    """
    _wrap("_enforce_params_schema", _enforce_parameters)
    _wrap("_validate_prediction_input", _validate_input)


def _wrap(name: str, outer: Callable[..., Any]) -> None:
    """Let `outer`, which gets the function `name` of MLflow as its first argument, take the place of it, once."""
    module = vars(sys.modules["mlflow.pyfunc"])
    inner = module.get(name)
    if inner is None or hasattr(inner, "fedweave"):
        return
    module[name] = wraps(inner)(partial(outer, inner))
    module[name].fedweave = True


def _is_of_fedweave(schema: Any) -> bool:
    return schema is not None and {spec.name for spec in schema.params} == PARAMETERS


def _enforce_parameters(inner: Callable[..., Any], params: Any, schema: Any) -> Any:
    if params is None or not _is_of_fedweave(schema):
        return inner(params, schema)
    if not isinstance(params, dict):
        raise RequestError(f'params: {format_value(params)} is no object; give {{"client": ...}}')
    for name in params:
        if name not in PARAMETERS:
            raise RequestError(f"{name}: not a parameter; choices: {', '.join(sorted(PARAMETERS))}")
    given = {name: value for name, value in params.items() if value is not None}
    if not isinstance(given.get("seed", FIRST), int | np.integer):
        raise RequestError(f"seed: {format_value(given['seed'])} is not a whole number")
    return inner({name: str(value) if name == "client" else value for name, value in given.items()}, schema)


def _validate_input(inner: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    try:
        return inner(*arguments, **named)
    except MlflowException as error:
        schema = signature(inner).bind(*arguments, **named).arguments.get("params_schema")
        if isinstance(error, RequestError) or not _is_of_fedweave(schema):
            raise
        reason = " ".join(str(error).rpartition(" Error: ")[2].split())
        raise RequestError(f"inputs: {reason}") from error


set_model(PersonalizedModel())
