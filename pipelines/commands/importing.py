"""`fedweave import`: a user's file as a data set and a study of the project in this folder."""

import hashlib
import io
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from pprint import pformat
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

import fedweave as fw
from fedweave.errors import BadInput, format_count
from fedweave.files.atomic import write_atomic
from fedweave.registry import definition
from fedweave.study import plugins
from fedweave.study.catalogue import STUDIES

from . import data_options as opt
from . import own_data, studies

if TYPE_CHECKING:
    import pandas as pd

FOLDER = Path("imports")
NAME = re.compile(r"[a-z][a-z0-9_-]{0,49}")
NAME_RULE = "must begin with a letter a-z, then letters a-z, digits, - and _, at most 50"
CODE = '''"""The data set {name}, written by `fedweave import`: change the options here, or import the file again."""

from pathlib import Path
from typing import Any

import fedweave as fw
from fedweave.own_data.federation import Federation
from fedweave.data import imported

SHA256 = "{sha256}"  # of the file: another sum here makes the stages run again, another file is refused
OPTIONS: dict[str, Any] = {options}


def federation() -> Federation:
    """The rows of the file, given to clients and split."""
    return Federation.from_file(imported.checked(Path(__file__).parent / {file}, SHA256), **OPTIONS)


@fw.dataset("{name}")
def rows(root: Path) -> fw.data.Dataset:
    """{about}"""
    return federation().dataset


@fw.partition("{name}-rows", kinds=["{kind}"])
def clients_and_parts(dataset: fw.data.Dataset, clients: int, seed: int) -> fw.data.Partition:
    """The clients and the split that OPTIONS name."""
    return federation().partition
'''

out = Console(markup=False, highlight=False)


@opt.with_data_options
def import_(
    file: opt.File,
    client: opt.Client,
    data: dict[str, Any],
    methods: own_data.Methods = None,
    rounds: Annotated[int, typer.Option(help="rounds of a training")] = 50,
    seeds: Annotated[int, typer.Option(help="number of repetitions")] = 3,
    tune: own_data.Tune = None,
    metric: Annotated[str, typer.Option(help="metric of the scores; default: accuracy, or mse for numbers")] = "",
    force: studies.Force = False,
) -> None:
    """Add a file, or a folder of files, to this project as a data set with a study, for `dvc repro`.

    Example: fedweave import flights.csv --client dest --label late --name flights
    """
    from fedweave.comparison.plan import default_search, plan
    from fedweave.comparison.results_folder import notes
    from fedweave.own_data.pairs import read_pairs

    if not Path("dvc.yaml").is_file():
        raise BadInput("import: this folder is not a project (it has no dvc.yaml); make one: fedweave init FOLDER")
    name = data.get("name") or _name_of(file)
    if not NAME.fullmatch(name):
        raise BadInput(f"--name: {name!r} {NAME_RULE}")
    _check_not_taken(name)
    options, encoding = {**data, "name": name}, data.get("encoding", "")
    if file.is_dir():  # the copy of a folder is a Parquet file
        options.pop("encoding", None)
    federation, content, ending = _read(file, client, options, encoding)
    if "relation" in data:  # the plug-in has the pairs, not the path
        options["relation"] = read_pairs(data["relation"], "--relation", federation.names)
    chosen = opt.split_words(methods or [own_data.METHODS_DEFAULT])
    budget: dict[str, Any] = {"rounds": rounds, "seeds": seeds, "metric": metric, "methods": chosen}
    plan(federation, budget["methods"], seeds=seeds, metric=metric or None, title="import", train={"rounds": rounds})
    copy = FOLDER / f"{name}{ending}"
    plugin, study_file = _plugin_path(name), STUDIES / f"{name}.yaml"
    texts = {
        plugin: _plugin_code(file, content, copy, federation, {"client": client, **options}),
        study_file: _study(federation, budget, default_search(federation, {}) if tune is None else {"trials": tune}),
    }
    for path, text in texts.items():
        if path.is_file() and path.read_text(encoding="utf-8") != text and not force:
            way = "give another --name, or add --force to replace it"
            raise BadInput(f"{path}: is there and says something else; {way}")
    _add_to_project(name, {copy: content, **{path: text.encode() for path, text in texts.items()}}, force)
    for line in notes(federation):
        out.print(f"warning: {line}", soft_wrap=True)
    out.print(f"{federation!r}; {plugin} and {study_file} say how; next: dvc repro", soft_wrap=True)


def _name_of(file: Path) -> str:
    """The name of a data set that the user has not named; refused if that of the file does not do as one."""
    name = file.resolve().name.split(".")[0].lower()
    if not NAME.fullmatch(name):
        proposal = re.sub("[^a-z0-9_-]+", "-", re.sub("^[^a-z]+", "", name))[:50].strip("-") or "mine"
        raise BadInput(f"{file}: its name, {name!r}, names the data set, and {NAME_RULE}; add --name {proposal}")
    return name


def _check_not_taken(name: str) -> None:
    """Refuse the name of a data set that is not from an earlier import of this name."""
    from fedweave.data import DATASETS, PARTITIONS

    plugins.load_if_missing(name, DATASETS)
    for kind, key, table in (("data set", name, DATASETS), ("partition", f"{name}-rows", PARTITIONS)):
        if key in table and (place := Path(definition(table[key])[0])) != _plugin_path(name).resolve():
            raise BadInput(f"--name: the {kind} {key!r} already exists, in {place}; give another --name")


def _add_to_project(name: str, contents: Mapping[Path, bytes], force: bool) -> None:
    """Write the files of a data set and make its study the current one; if that is refused, leave nothing."""
    before, is_first = {path: path.read_bytes() if path.is_file() else None for path in contents}, not FOLDER.exists()
    FOLDER.mkdir(exist_ok=True)
    try:
        for path, content in contents.items():
            _write_changed(path, content)
        studies.use(name, force=force)
    except BadInput:
        for path, old in before.items():
            if old is None:
                path.unlink(missing_ok=True)
            else:
                _write_changed(path, old)
        if is_first:
            shutil.rmtree(FOLDER)  # it may have compiled code
        raise


def _read(file: Path, client: str, options: Mapping[str, Any], encoding: str) -> "tuple[fw.Federation, bytes, str]":
    """The federation of a file or folder, and the content and the ending of the copy in the project."""
    from fedweave.own_data.argument_checks import as_names
    from fedweave.own_data.column_roles import name_columns
    from fedweave.own_data.user_files import check_encoding, read_folder

    if not file.is_dir():
        federation = fw.Federation.from_file(file, client=client, **options)
        return federation, file.read_bytes(), "".join(file.suffixes[-2:]).lower()
    check_encoding(file, encoding)
    table = read_folder(file, client, name_columns(options), encoding, as_names(options["label"], "label"))
    return fw.Federation.from_pandas(table, client=client, **options), _table_content(table), ".parquet"


def _table_content(table: "pd.DataFrame") -> bytes:
    """The table of a folder as a Parquet file, which keeps the types: a client "01" does not become the number 1.

    A column with values of several types, as of two files, becomes one of texts.
    """
    mixed = [name for name in table if table[name].dtype == object and table[name].dropna().map(type).nunique() > 1]
    texts = {name: table[name].map(str, na_action="ignore") for name in mixed}
    buffer = io.BytesIO()
    table.assign(**texts).to_parquet(buffer, index=False)
    return buffer.getvalue()


def _write_changed(path: Path, content: bytes) -> None:
    """Write a file unless it is there and has this content."""
    if not path.is_file() or path.read_bytes() != content:
        write_atomic(path, content)


def _plugin_code(file: Path, content: bytes, copy: Path, federation: "fw.Federation", options: dict[str, Any]) -> str:
    """The plug-in that reads `copy`, the copy of `file` in the project."""
    summary = f"{file.name}: {options['label']} of {format_count(len(federation), 'client')}."
    return CODE.format(
        name=federation.name,
        sha256=hashlib.sha256(content).hexdigest(),
        options=pformat(options, width=100, sort_dicts=False),
        file=json.dumps(copy.name, ensure_ascii=False),
        # Names of files and columns may have such characters.
        about=summary.replace("\\", "\\\\").replace('"', '\\"'),
        kind=federation.dataset.kind,
    )


def _plugin_path(name: str) -> Path:
    return FOLDER / f"own_{name.replace('-', '_')}.py"


def _study(federation: "fw.Federation", budget: dict[str, Any], search: dict[str, Any]) -> str:
    """The text of the study file of the data set, with the block `tune`."""
    import yaml

    from fedweave.comparison.plan import GRAPH, ROWS

    numeric = federation.dataset.targets is not None
    defaults = GRAPH if federation.dataset.kind == "graph" else ROWS
    task = {
        "dataset": federation.name,
        "setting": "own",
        "normalize": federation.normalize,
        **({"targets": federation.dataset.targets_are} if numeric else {}),
        **({"metric": budget["metric"]} if budget["metric"] else {}),
        "partition": {"name": f"{federation.name}-rows", "clients": len(federation), "seed": 0},
        "model": {"name": "gcn" if federation.dataset.kind == "graph" else "mlp"},
        "train": {"rounds": budget["rounds"], **defaults},
        "methods": budget["methods"],
    }
    content = {
        "about": f"Methods on {federation.name}, imported from a file.",
        "uses": [f"../{_plugin_path(federation.name).as_posix()}"],
        "seeds": [*range(budget["seeds"])],
        "tasks": {federation.name: task},
        "tune": search,
    }
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
