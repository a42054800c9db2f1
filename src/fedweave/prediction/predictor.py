"""Predictions of clients' own models for new rows, which are scaled like the rows of training."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor, nn

from fedweave import data, exported_model
from fedweave.data.base import default_names
from fedweave.engine.registry import METHODS
from fedweave.errors import BadInput, choose, format_count
from fedweave.models import MODELS
from fedweave.models.inputs import layout_of
from fedweave.models.own_module import MAKER, OwnModule, wrap
from fedweave.own_data import image_files
from fedweave.own_data.array_checks import convert_input_errors
from fedweave.prediction import input_description
from fedweave.results import Run
from fedweave.runs import serving
from fedweave.runs.inputs import Inputs
from fedweave.study import plugins


@dataclass(frozen=True, eq=False)
class Predictor:
    """The models of all clients of a run, and how new rows become their inputs.

    Attributes:
        models: of every client and seed.
        about: of the data, see `input_description.describe_inputs`.
        names: of the clients.
    """

    models: serving.DeployedModels
    about: Mapping[str, Any]
    names: tuple[str, ...]

    def outputs(self, x: Any, client: Any, seed: int | None) -> np.ndarray:
        """Scores [M, C] of classes, or numbers and forecasts [M, K] in the unit of the targets.

        Raises:
            BadInput: an unknown client or seed, rows of another shape, or a table with rows of other clients.
        """
        i, stored = self.position(client), self.about["columns"]
        about = {**self.describe(i), "client": self.names[i]}
        with convert_input_errors():
            exported_model.check_client(x, about["client_column"], about["client"])
            if image_files.are_images(stored) or (not stored and len(self.about["shape"]) == 3):
                x = image_files.load_like(x, stored, self.about["shape"])
            inputs = exported_model.read_rows(x, about)
        answer = self.models.answer(inputs, i, seed)
        if about["kind"] == "series":
            return input_description.scaling(self.about).undo(answer, i)
        if not self.about.get("offset"):
            return answer
        offset, unit = (np.asarray(self.about[name][i]) for name in ("offset", "unit"))
        return np.asarray(answer * unit + offset)

    @property
    def available(self) -> tuple[str, ...]:
        """Names of the clients whose models were stored."""
        return self.names if self.models.clients is None else tuple(self.names[i] for i in self.models.clients)

    def position(self, client: Any) -> int:
        """The number of the client called `client`.

        Raises:
            BadInput: there is none of that name, or it was not evaluated, so that it has no stored model.
        """
        i = self.names.index(choose(str(client), self.names, "client"))
        if self.names[i] not in (stored := self.available):
            raise BadInput(
                "client",
                f"{client!r} is none of the {format_count(len(stored), 'client')} that were "
                f"evaluated (such as {stored[0]!r}); "
                "only these have stored models; train again with a larger evaluate.clients, or without it",
            )
        return i

    def classes(self) -> list[Any]:
        """Labels of the classes, of the type that they had in training.

        Raises:
            BadInput: the models forecast numbers.
        """
        if not self.about["classes"]:
            raise BadInput("predict_proba", "these models predict numbers, not classes; use predict")
        return exported_model.as_labels(self.about["classes"], self.about.get("class_type", ""))

    def describe(self, client: int) -> dict[str, Any]:
        """How raw rows of one client become inputs, and what outputs are: most of export.json."""
        about = self.about
        scaling = input_description.scaling(about)
        subtracted, divisor = scaling.numbers(client)
        units: dict[str, Any] = {"offset": [], "unit": []}
        if about.get("offset"):
            units = {key: about[key][client] for key in units}
        elif about["kind"] == "series":
            units = {"offset": subtracted.ravel().tolist(), "unit": divisor.ravel().tolist()}
        layout = about["layout"]
        series = [sum(layout[key] for key in ("window", "horizon")), 2] if about["kind"] == "series" else None
        nodes = int(self.models.graphs[client][0][0].max()) + 1 if about["kind"] == "graph" else 0  # each has a loop
        return {
            "kind": about["kind"],
            "shape": series or [*about["shape"]],
            "window": layout.get("window", 0),
            "nodes": nodes,
            "node_column": about.get("node_column", ""),
            "node_names": about["node_names"][client] if about.get("node_names") else [],
            "classes": [*about["classes"]],
            "class_type": about.get("class_type", ""),
            "targets": about.get("targets", "forecasts" if about["kind"] == "series" else "classes"),
            "pixels": about.get("pixels"),
            "codes": self.models.method.task.template.codes,
            "columns": self._columns(client),
            "client_column": _client_column(about),
            "scaling": {
                "subtracted": subtracted.tolist(),
                "divisor": divisor.tolist(),
                "rows": scaling.rows,
                "precision": str(subtracted.dtype),
            },
            **units,
        }

    def _columns(self, client: int) -> Any:
        """How a table becomes inputs; None for arrays, and for files of images, of which a folder reads arrays."""
        columns = input_description.columns(self.about)
        if columns is not None:
            return columns.of_client(client).as_data()
        stored = self.about["columns"]
        return None if image_files.are_images(stored) else stored


def load_predictor(run: Run, model: Any = None) -> Predictor:
    """The models of a run.

    Args:
        run: of a folder of results.
        model: the model as it was given to `fit`, or what makes it; only for models without a name.

    Raises:
        BadInput: no models were stored, or what they need is missing.
    """
    if run.info.get("federation"):
        raise BadInput(
            run.folder,
            "is of a federation, whose models stay on the nodes; predict there: python -m fedweave.deployment predict",
        )
    if run.info.get("contestant"):
        raise BadInput(
            run.folder, "is of a contestant, which left predictions and no models; predict with its own code"
        )
    if not any(run.folder.glob(serving.MODELS)):
        raise BadInput(
            run.folder, "no models are stored; train again with evaluate={'models': True}, which is the default"
        )
    if not (first := run.folder / f"models-{run.seeds[0]}.pt").is_file():  # another seed would answer without a word
        raise BadInput(first, f"is missing; remove the folder {run.folder}, and train again")
    plugins.load_if_missing(run.info["method"], METHODS)
    if run.info["method"] not in METHODS:
        raise BadInput("predict", f"the method {run.info['method']!r} is not defined here; import the file that has it")
    about, graphs, _ = read_inputs(run)
    return build_predictor(run.info, about, run.folder, graphs, _build_own(run.info, about, model))


def build_predictor(
    info: Mapping[str, Any],
    about: Mapping[str, Any],
    models: Path,
    graphs: list[tuple[Tensor, Tensor]],
    own: OwnModule | None = None,
) -> Predictor:
    """A predictor from its parts: run.json, the description of the data, the folder of the models, the graphs."""
    facts = {**about, "shape": about["stored"], "classes": len(about["classes"]), **about["layout"]}
    return Predictor(serving.deploy(dict(info), facts, models, graphs, own), about, _client_names(info))


def _build_own(info: Mapping[str, Any], about: Mapping[str, Any], model: Any) -> OwnModule | None:
    """What makes the models of a run; None for models with a name."""
    block = info["spec"]["task"]["model"]
    if "code" not in block:
        plugins.load_if_missing(block["name"], MODELS)
        if block["name"] not in MODELS:
            raise BadInput("predict", f"the model {block['name']!r} is not defined here; import the file that has it")
        return None
    if isinstance(model, OwnModule):
        return model
    if model is None:
        raise BadInput(
            "predict", f"the model {block['name']!r} is your own; pass the function that makes it: model=..."
        )
    shape = tuple(about["shape"])
    outputs = len(about["offset"][0]) if about.get("offset") else len(about["classes"])
    own = wrap(model, shape, outputs, block["head"], len(shape) == 2, layout_of(about["columns"]), block.get("adapter"))
    if own.code != block["code"]:
        way = "; give that one, or train again"
        if isinstance(model, nn.Module):
            way = (
                ": a module is known by the values that it starts with, which another process draws anew; give the "
                f"function or class that made it, or train again with one, such as model={own.name}"
            )
        raise BadInput("predict", f"model {own.name!r} is not the one that was trained{way}")
    known = block.get("reads", {})
    changed = [name for name, value in own.reads.items() if name != MAKER and known.get(name, value) != value]
    if changed:
        raise BadInput(
            "predict",
            f"model {own.name!r} reads {changed[0]}, which was another in training; give it back, or train again",
        )
    return own


def read_inputs(run: Run) -> tuple[dict[str, Any], list[tuple[Tensor, Tensor]], Inputs | None]:
    """(description of the data of a run, graphs of its clients, the arrays where they are available).

    Raises:
        BadInput: neither the folder of results nor the project around it has the description.
    """
    study_folder = run.folder.parents[1]
    about = input_description.read_description(study_folder, run.task)
    if about:
        return (
            about,
            serving.read_graphs(input_description.partition_folder(study_folder, run.task) / serving.GRAPHS),
            None,
        )
    return _read_project_inputs(run)


def _read_project_inputs(run: Run) -> tuple[dict[str, Any], list[tuple[Tensor, Tensor]], Inputs]:
    """The data of a run from the stages of DVC: the arrays in the folder `data` beside `results`."""
    for project in run.folder.resolve().parents:
        features = project / "data" / "features" / run.info["dataset"]
        file = project / "data" / "partitions" / run.task / "partition.npz"
        if features.is_dir() and file.is_file():
            dataset, partition = data.load_dataset(features, raw=False), data.load_partition(file)
            about = input_description.describe_inputs(
                dataset, partition, run.info["spec"]["task"].get("normalize", "none")
            )
            graphs = serving.normalise_graphs(partition.edges or (), map(len, partition.nodes or ()))
            return {**about, "name": dataset.name}, graphs, Inputs(dataset, partition)
    raise BadInput(
        run.folder,
        f"the data of task {run.task!r} are not there, whose scaling predictions need; "
        "run in the project: dvc repro partition",
    )


def _client_column(about: Mapping[str, Any]) -> Any:
    """The column of the client's names in the table of the training, or ""; earlier versions named it as a role."""
    roles = (column["name"] for column in about["columns"] or () if column.get("role") == "client")
    return about.get("client_column", next(roles, ""))


def select_own_rows(run: Run, rows: Any, client: str) -> Any:
    """The rows of `client` in a table with the clients' column of the training; other rows as they are.

    So are those for an unknown client, which `Predictor.outputs` refuses.

    Raises:
        BadInput: the table has no row of this client.
    """
    column = _client_column(read_inputs(run)[0])
    is_known = client in run.client_names
    if column == "" or not is_known or not hasattr(rows, "columns") or column not in rows:
        return rows
    own = rows[~exported_model.other_clients(rows[column], client)]
    if not len(own):
        raise BadInput(
            "table",
            f"column {column!r} has no row of {client!r}, but of such as {str(rows[column].iloc[0])!r}; "
            "leave the column out, and the model predicts all rows",
        )
    return own


def _client_names(info: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the clients of a run, from its run.json; numbers where it has none."""
    names = info.get("client_names")
    return tuple(names) if names else default_names(int(info.get("clients", 0)))
