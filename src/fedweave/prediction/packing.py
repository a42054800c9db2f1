"""A finished run in one folder that predicts by itself: models, graphs, and how raw rows become inputs."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from fedweave import exported_model
from fedweave.errors import BadInput
from fedweave.own_data import image_files
from fedweave.own_data.column_encoding import Preprocessing
from fedweave.prediction import input_description, predictor
from fedweave.prediction.predictor import Predictor
from fedweave.results import Run
from fedweave.runs import serving
from fedweave.runs.inputs import Inputs

if TYPE_CHECKING:
    import pandas as pd

    ExampleRows: TypeAlias = np.ndarray | pd.DataFrame | dict[str, np.ndarray]

RUN, ABOUT, REFERENCE = "run.json", "data.json", "reference.json"


def pack(run: Run, folder: Path, copy: bool = True) -> "ExampleRows | None":
    """Gather in `folder` what the models of `run` need to predict; returns raw rows of its first client as an example.

    None where that is not possible: no models, a model without a name, or data that do not exist any more.

    Args:
        copy: copy the models; otherwise `folder` gets their place and digests.
    """
    models = sorted(run.folder.glob(serving.MODELS))
    if not models or "code" in run.info["spec"]["task"]["model"]:
        return None
    try:
        about, _, run_data = predictor.read_inputs(run)
    except BadInput:
        return None
    if image_files.are_images(about["columns"]):  # a server shall not open files that a request names
        about["columns"] = None
    for file in (run.folder / RUN, *(models if copy else ())):
        shutil.copy(file, folder)
    if not copy:
        reference = {"folder": str(run.folder.resolve()), "models": _digests(run.folder)}
        (folder / REFERENCE).write_text(json.dumps(reference), encoding="utf-8")
    (folder / ABOUT).write_text(json.dumps(about, default=str), encoding="utf-8")
    if about["kind"] == "graph":
        _pack_graphs(run, run_data, folder / serving.GRAPHS)
    return build_example(about, run_data, run)


def unpack(folder: Path) -> Predictor:
    """What `pack` gathered, ready to predict.

    Raises:
        BadInput: the run's settings do not fit the code any more, or models that were not copied have changed.
    """
    info, about = (json.loads((folder / name).read_text(encoding="utf-8")) for name in (RUN, ABOUT))
    return predictor.build_predictor(info, about, _find_models(folder), serving.read_graphs(folder / serving.GRAPHS))


def _find_models(folder: Path) -> Path:
    """The folder with the models: `folder`, or the one that it refers to."""
    if not (folder / REFERENCE).is_file():
        return folder
    reference = json.loads((folder / REFERENCE).read_text(encoding="utf-8"))
    if _digests(Path(reference["folder"])) != reference["models"]:
        raise BadInput(
            reference["folder"], "does not have the models of this run any more; get its files back, as by dvc checkout"
        )
    return Path(reference["folder"])


def _digests(folder: Path) -> dict[str, str]:
    """Name -> digest of the files with models."""
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(folder.glob(serving.MODELS))}


def _pack_graphs(run: Run, run_data: Inputs | None, target: Path) -> None:
    if run_data is not None:
        serving.write_graphs(target, run_data.partition)
    else:
        shutil.copy(input_description.partition_folder(run.folder.parents[1], run.task) / serving.GRAPHS, target)


def build_example(about: dict[str, Any], run_data: Inputs | None, run: Run) -> "ExampleRows":
    """Rows as users send them: two test rows of the first client with a model, or zeros where the arrays are missing.

    Of a graph, the features of all nodes of that client; of a table, one typical row.
    """
    first = run.evaluated_clients[0]
    if columns := input_description.columns(about):
        return _typical_row(columns.of_client(first))
    if exported_model.has_inputs(about["columns"]):
        return {str(one["input"]): np.zeros((2, *one["shape"]), dtype=np.float32) for one in about["columns"]}
    if about["kind"] == "series":
        return np.zeros((2, sum(about["layout"][name] for name in serving.SPAN), 2), dtype=np.float32)
    if about["kind"] == "graph":
        if run_data is not None and run_data.partition.nodes is not None:
            return np.asarray(run_data.dataset.x[run_data.partition.nodes[first]])
        graphs = serving.read_graphs(
            input_description.partition_folder(run.folder.parents[1], run.task) / serving.GRAPHS
        )
        return np.zeros((int(graphs[first][0][0].max()) + 1, *about["stored"]), dtype=np.float32)
    if run_data is not None:
        return np.asarray(run_data.dataset.x[run_data.partition.test[first][:2]])
    return np.zeros((2, *about["shape"]), dtype=np.float32)


def _typical_row(columns: Preprocessing) -> "pd.DataFrame":
    """One row: the median of each number, the first value of each category, a word for each text."""
    import pandas as pd

    words = {c.name: (*c.levels, *c.words, "text")[0] for c in columns.columns if c.levels or c.is_text}
    return pd.DataFrame({c.name: [words.get(c.name, c.median)] for c in columns.columns})
