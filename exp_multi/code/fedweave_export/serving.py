"""An exported model as MLflow loads and serves it."""

import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from .columns import step_names
from .errors import InputError
from .model import Model, probabilities

if TYPE_CHECKING:
    import pandas as pd


class PyfuncModel:
    """A model as MLflow serves it."""

    def __init__(self, model: Model) -> None:
        self.model = model

    def predict(self, model_input: Any, params: Any = None) -> "pd.DataFrame":
        """One row each: the prediction, and the probability of each class or the steps of the forecast.

        Raises:
            InputError: as `Model.outputs`; under MLflow also one of its own errors, which its server answers with.
        """
        import pandas as pd

        del params
        try:
            outputs, classes = self.model.outputs(model_input), self.model.classes
        except InputError as error:
            raise _request_error(str(error)) from None
        if classes:
            table = pd.DataFrame(probabilities(outputs), columns=classes)
            table.insert(0, "prediction", np.array(classes)[outputs.argmax(1)], allow_duplicates=True)
            return table
        if self.model.about["targets"] == "numbers":
            return pd.DataFrame({"prediction": outputs[:, 0]})
        return pd.DataFrame(outputs, columns=step_names(self.model.about["columns"], outputs.shape[1]))


def _request_error(line: str) -> Exception:
    """An error of a request. MLflow's server answers any other error than its own with a whole trace."""
    mlflow = sys.modules.get("mlflow.exceptions")
    if mlflow is None:
        return InputError(line)

    class RequestError(mlflow.MlflowException, InputError):  # type: ignore[name-defined]
        """One line, without the rows of the request, which the server writes before it."""

        @property
        def message(self) -> str:
            return line

        @message.setter
        def message(self, text: str) -> None:
            pass

        def __str__(self) -> str:
            return line

    error: Exception = RequestError.invalid_parameter_value(line)
    return error


def _load_pyfunc(path: str) -> PyfuncModel:
    """The entry point of `mlflow models serve`."""
    return PyfuncModel(Model(path))
