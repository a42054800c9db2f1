"""One client's model in a folder of its own, which predicts raw rows without fedweave's code."""

import contextlib
import io
import json
import platform
import shutil
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from fedweave import exported_model
from fedweave.errors import BadInput
from fedweave.files.atomic import check_writable, digest_file, read_json, user_errors, write_atomic, write_json
from fedweave.prediction import merging, packing
from fedweave.prediction.predictor import Predictor
from fedweave.results import Run
from fedweave.runs.serving import DeployedModels
from fedweave.tensors.trees import Tree

MAX_REASON = 200  # characters of an error of PyTorch
CODE, MODULE, RUN = "code", "fedweave_export", "run"
LOADER = '''"""The model of this folder by the code of fedweave, as PyTorch could make no program of it."""

from fedweave.prediction.export import run_weights  # noqa: F401
'''
MLMODEL = """flavors:
  python_function:
    loader_module: {module}
    code: {code}
    env: {{conda: conda.yaml, virtualenv: python_env.yaml}}
    python_version: {python}
"""
README = """# {label} of {client}, trained on {data}

The model was {trained}.

    import sys
    import pandas as pd
    sys.path.insert(0, "{folder}/{code}")
    from {module} import load
    rows = {rows}
    load("{folder}").predict(rows)

`mlflow models serve --env-manager local --model-uri {folder}` serves it. `export.json` says which rows it takes and
how they are scaled; `requirements.txt` has the versions that it was made with.
{needs}"""
NEEDS = """
PyTorch could make no program of this model, so fedweave {fedweave} must be installed. PyTorch's reason: {reason}
"""


class Program(nn.Module):
    """A client's model as a function of its weights by name and of scaled inputs."""

    def __init__(self, models: DeployedModels, spec: Any, names: list[str], client: int) -> None:
        super().__init__()
        self.models, self.spec, self.names, self.client = models, spec, names, client

    def forward(self, weights: dict[str, Tensor], x: Tensor) -> Tensor:
        """Outputs [M, C] of inputs [M, ...]."""
        tree = pytree.tree_unflatten([weights[name] for name in self.names], self.spec)
        return self.models.outputs(tree, x, self.client)


@user_errors()
def export(
    run: Run,
    method: str,
    target: Path,
    predictor: Predictor,
    client: Any,
    seed: int | None,
    trained: str,
    merge: bool = True,
) -> Path:
    """Write the model of `client` of the run `method`; see `MethodResult.export`. `trained` says on which rows it was.

    Raises:
        BadInput: an unknown client or seed, or a folder with other content or cannot be written.
    """
    position = predictor.position(client)
    name, seed = predictor.names[position], predictor.models.select_seed(seed)
    identity = {"method": run.label, "data": run.info["dataset"], "client": name}
    _check_target(target, identity)
    model = predictor.models.select_model(seed, position)
    about = {**predictor.describe(position), "client": name, "position": position, "seed": seed}
    program, weights = None, dict[str, Tensor]()
    block = run.info["spec"]["task"]["model"]
    has_adapter = predictor.models.method.has_models and block.get("adapter") is not None
    if merged := merge and has_adapter:
        weights, program, reason = _export_program(predictor, *merging.merge_adapters(predictor.models, model), about)
    if program is None:  # fedweave itself runs the layers that it trained
        merged = False
        weights, program, reason = _export_program(predictor, predictor.models, model, about)
    if program is None and "code" in block:
        raise BadInput(
            "export",
            f"PyTorch can make no program of {method} ({reason}), and its model has no name, by which "
            "fedweave could run it; enter it with @fedweave.model",
        )
    check_writable(target)
    one_file = f"{CODE}/{MODULE}.py"  # the code of earlier versions
    for file in (exported_model.ABOUT, exported_model.PROGRAM, exported_model.WEIGHTS, exported_model.LOADER, one_file):
        (target / file).unlink(missing_ok=True)
    save_file(weights, target / exported_model.WEIGHTS)
    if program is None:
        (target / RUN).mkdir(exist_ok=True)
        packing.pack(run, target / RUN)
        write_atomic(target / exported_model.LOADER, LOADER)
    else:
        torch.export.save(program, target / exported_model.PROGRAM)
    about |= {"program": program is not None, "no_program": reason, "versions": _versions(about)}
    if has_adapter:
        about["adapter"] = "merged" if merged else "kept"
    about |= {"trained": trained, **identity, "metric": run.info["metric"]}
    _write_files(target, about)
    files = [target / exported_model.WEIGHTS, target / exported_model.PROGRAM]
    files = [files[0], *sorted((target / RUN).iterdir())] if program is None else files
    about["sha256"] = {file.relative_to(target).as_posix(): digest_file(file) for file in files}
    # The last file: its presence marks a complete export.
    write_json(target / exported_model.ABOUT, about, default=str)
    return target


def _check_target(target: Path, identity: Mapping[str, str]) -> None:
    """Refuse a folder with other content than an export of the same method, data and client, which is replaced."""
    if not target.exists() or not any(target.iterdir()):
        return
    about = target / exported_model.ABOUT
    if not about.is_file():
        raise BadInput("export", f"{target} is not an empty folder; choose another one")

    stored = read_json(about, "choose an empty folder", lambda content: {key: content[key] for key in identity})
    if stored != identity:
        label, data, client = stored.values()
        raise BadInput("export", f"{target} holds the model of {client!r} ({label} on {data}); choose an empty folder")


def flatten(model: Tree) -> tuple[dict[str, Tensor], Any]:
    """(tensors of a model by name, the structure of the model's tree)."""
    pairs, spec = pytree.tree_flatten_with_path(model)
    named = {
        ".".join(str(getattr(key, "key", getattr(key, "idx", key))) for key in path): value.detach()
        .clone()
        .contiguous()
        for path, value in pairs
    }
    return named, spec


def _export_program(
    predictor: Predictor, models: DeployedModels, model: Tree, about: dict[str, Any]
) -> tuple[dict[str, Tensor], torch.export.ExportedProgram | None, str]:
    """(weights, the model as a program of PyTorch over them, ""); None, and why, where PyTorch cannot make one.

    The program has the same outputs as the model.
    """
    weights, spec = flatten(model)
    module = Program(models, spec, [*weights], about["position"])
    count = about["nodes"] or 3
    shape = about["shape"] if about["kind"] == "series" else predictor.about["stored"]
    x = torch.zeros(count, *shape)
    rows = None if about["kind"] == "graph" else {0: torch.export.Dim("rows", min=2, max=exported_model.MAX_ROWS)}
    try:
        # PyTorch prints what it has traced before it raises an error.
        with warnings.catch_warnings(), torch.no_grad(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            program = torch.export.export(
                module, (weights, x), dynamic_shapes=(dict.fromkeys(weights), rows), strict=False
            )
            large_batch = x if rows is None else torch.zeros(exported_model.MAX_ROWS, *shape)
            outputs, expected = program.module()(weights, large_batch), module(weights, x)
            if rows:  # all rows are equal, and the model's outputs for one do not depend on the others
                expected = expected[:1].expand_as(outputs)
            agrees = torch.allclose(outputs, expected, atol=1e-6)
    except Exception as error:  # models that PyTorch cannot trace raise errors of any type
        reason = f"{type(error).__name__}: {error}".split("Suggested fixes")[0]
        return weights, None, " ".join(reason.split())[:MAX_REASON]
    return (weights, program, "") if agrees else (weights, None, "its outputs differ from the model's")


def run_weights(folder: Path) -> Any:
    """A function of inputs [M, ...] where there is no program: the model, by the code of fedweave."""
    about = json.loads((folder / exported_model.ABOUT).read_text(encoding="utf-8"))
    models = packing.unpack(folder / RUN).models
    tensors, spec = flatten(models.select_model(about["seed"], about["position"]))
    weights = load_file(folder / exported_model.WEIGHTS)
    tree = pytree.tree_unflatten([weights[name] for name in tensors], spec)

    def run(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return models.outputs(tree, torch.from_numpy(x), about["position"]).numpy()

    return run


def _describe_array(about: dict[str, Any]) -> str:
    """Shape and scale of an array of rows."""
    pixels = about["pixels"]
    scale = f" of numbers from {pixels['low']:g} to {pixels['high']:g}" if pixels else ""
    return f"an array [M, {', '.join(map(str, about['shape']))}]{scale}"


def _versions(about: dict[str, Any]) -> dict[str, str]:
    """Versions of the packages that the folder needs, and of fedweave and Python."""
    texts = any(column.get("buckets") or column.get("words") for column in about["columns"] or ())
    names = ("numpy", "pandas", "safetensors", "torch", *(["scikit-learn"] if texts else []))
    versions = {name: version(name).split("+")[0] for name in names}
    return {**versions, "fedweave": version("fedweave"), "python": platform.python_version()}


def _write_files(target: Path, about: dict[str, Any]) -> None:
    """Code, README, and what MLflow reads."""
    (target / CODE / MODULE).mkdir(parents=True, exist_ok=True)
    for file in Path(exported_model.__file__).parent.glob("*.py"):
        shutil.copyfile(file, target / CODE / MODULE / file.name)
    versions = about["versions"]
    packages = [name for name in versions if name != "python" and (name != "fedweave" or not about["program"])]
    pins = [f"{name}=={versions[name]}" for name in packages]
    rows = 'pd.read_csv("new.csv")' if about["columns"] else f"...  # {_describe_array(about)}"
    if exported_model.has_inputs(about["columns"]):
        rows = f"...  # {exported_model.describe_inputs(about['columns'])}"
    needs = "" if about["program"] else NEEDS.format(fedweave=versions["fedweave"], reason=about["no_program"])
    fields = {key: about[key] for key in ("client", "data", "trained")} | {
        "label": about["method"],
        "rows": rows,
        "needs": needs,
    }
    listed = "".join(f"  - {pin}\n" for pin in pins)
    nested = "".join(f"      - {pin}\n" for pin in pins)
    texts = {
        "MLmodel": MLMODEL.format(module=MODULE, code=CODE, python=versions["python"]),
        "README.md": README.format(**fields, code=CODE, module=MODULE, folder=target.name),
        "requirements.txt": "\n".join(pins) + "\n",
        "python_env.yaml": f"python: {versions['python']}\ndependencies:\n{listed}",
        "conda.yaml": f"dependencies:\n  - python={versions['python']}\n  - pip\n  - pip:\n{nested}name: fedweave\n",
    }
    for name, text in texts.items():
        write_atomic(target / name, text)
