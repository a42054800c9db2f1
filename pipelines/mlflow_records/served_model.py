"""The personalized models of a run as one MLflow model.

MLflow stores this file and runs it when the model is loaded, so nothing is pickled. A parameter chooses the client's
model:
{"inputs": ..., "params": {"client": 3, "seed": 0}}.
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from mlflow.models import set_model
from mlflow.pyfunc import PythonModel, PythonModelContext

from fedweave.runs import serving


class Personalized(PythonModel):
    """Answers as the method's clients do; by default as the first one in the first repetition."""

    def load_context(self, context: PythonModelContext) -> None:
        """Read what `serving.pack` gathered."""
        folder = Path(context.artifacts["run"])
        plugins = folder / "plugins.json"
        for name in json.loads(plugins.read_text(encoding="utf-8")) if plugins.is_file() else ():
            import_module(name)  # defines methods and models, and was stored with the code of fedweave
        self._deployed = serving.load(folder)

    def predict(
        self, context: PythonModelContext, model_input: np.ndarray, params: dict[str, Any] | None = None
    ) -> np.ndarray:
        """Outputs for `model_input`, as `Deployed.answer`."""
        return self._deployed.answer(model_input, **(params or {}))


set_model(Personalized())
