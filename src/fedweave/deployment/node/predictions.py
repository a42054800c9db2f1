"""Predictions of a node for new rows, with the model that the federation chose for its client."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from fedweave import exported_model
from fedweave.deployment.node import client_data, own_rows
from fedweave.deployment.node.client_data import ClientFile
from fedweave.deployment.stored_states import MODEL
from fedweave.deployment.wire.spec import AppSpec
from fedweave.engine.schedule import evaluation_cohort
from fedweave.errors import BadInput
from fedweave.files.atomic import load_tensors, read
from fedweave.metrics import probabilities
from fedweave.tensors.trees import Tree

if TYPE_CHECKING:
    import pandas as pd


def of_table(spec: AppSpec, table: "pd.DataFrame", data: Path, state: Path) -> "pd.DataFrame":
    """What the model of a client says of the rows of a table: its class and the probability of each, or a number.

    Args:
        table: the columns of the run's table; the label is not needed, and other columns are ignored.
        data: the client's file, which the node trained on; some methods compare new rows with it.
        state: folder of the client's state.

    Raises:
        BadInput: the federation has not ended, so that there is no model yet; a column is missing; or the run was not
            made from such a table.
    """
    import pandas as pd

    file = client_data.read(data)
    model = _read_model(state / spec.short_hash / str(file.client) / MODEL)
    new_rows = own_rows.features_of_table(spec, table, file.client)
    outputs = _outputs(spec, file, model, new_rows)
    if spec.data["targets"] is not None:
        return pd.DataFrame({"prediction": outputs.reshape(len(table))})
    names = spec.data["class_names"] or map(str, range(spec.data["classes"]))
    names = exported_model.as_labels(names, spec.data.get("class_type", ""))
    answer = pd.DataFrame(probabilities(outputs), columns=names)
    answer.insert(0, "prediction", [names[i] for i in outputs.argmax(1)], allow_duplicates=True)
    return answer


def _read_model(path: Path) -> Tree:
    if not path.is_file():
        raise BadInput(path, "no model yet; the node keeps it when the federation has ended")
    return read(path, lambda file: load_tensors(file)["model"], "run the federation again")


def _outputs(spec: AppSpec, file: ClientFile, model: Tree, new_rows: np.ndarray) -> np.ndarray:
    """Scores of classes [M, C], or numbers in their unit; the new rows stand behind those of the file."""
    count = len(file.arrays["x"])
    own = {**file.arrays, "x": torch.cat([file.arrays["x"], torch.from_numpy(new_rows)])}
    federation = client_data.build_federation(ClientFile(file.client, own, file.parts), spec)
    data = evaluation_cohort(federation, 0, 0).client_data(0)
    method = spec.timeline.stages[-1].method
    with torch.no_grad():
        answer = method.predict(model, data, torch.arange(count, count + len(new_rows)))
    return np.asarray(method.task.in_unit(answer, data))
