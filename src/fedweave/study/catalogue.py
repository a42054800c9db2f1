"""The catalogue of studies.

A study file, in `studies/` or elsewhere, changes `studies/base.yaml` (one task per data set) and the methods'
settings. A task that names its data set may also be defined in full. The `controls` of the base are added to every
task. A figure that uses the runs of a table names the table's study under `like`. `expand` makes the full params.yaml
of a study.
"""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fedweave.errors import BadInput, choose, format_value
from fedweave.study import outside, plugins, task_blocks
from fedweave.study.config import example, read_yaml
from fedweave.study.task_blocks import merge

STUDIES = Path("studies")
WORDS = (
    "about",
    "like",
    "uses",
    "seeds",
    "tasks",
    "methods",
    "without_controls",
    "tune",
    "ablate",
    "margins",
)  # of a study file
VARIANT_WORDS = ("method", "set")
WAY = "fedavg, or such as {fedavg-slow: {method: fedavg, set: {train.lr: 0.01}}}"  # an entry of a task's methods


def studies(folder: Path = STUDIES) -> dict[str, Path]:
    """Study name -> file; a study in a sub-folder is called folder/name."""
    return {
        str(p.relative_to(folder).with_suffix("")): p for p in sorted(folder.rglob("*.yaml")) if p.name != "base.yaml"
    }


def find_file(name: str, folder: Path = STUDIES, named_by: str = "") -> Path:
    """The file of the study `name`: of the catalogue, or a path that ends in .yaml.

    Args:
        named_by: the study file that names it, to which a path is relative; empty if none does.

    Raises:
        BadInput: there is none.
    """
    if not name.endswith((".yaml", ".yml")):
        if name.lower().endswith((".yaml", ".yml")):
            raise BadInput(name, "a study file ends in .yaml or .yml, in small letters; rename it")
        check_folder(name, folder)
        entries = studies(folder)
        return entries[choose(name, entries, f"{named_by}: like" if named_by else "study", "fedweave list studies")]
    file = Path(named_by).parent / name
    if not file.is_file():
        raise BadInput(file, "not found; name a study file, or a study from: fedweave list studies")
    return file


def list_files(name: str, folder: Path = STUDIES, named_by: str = "") -> set[Path]:
    """The files of a study that `overlay` accepts: its own, and those of the studies that it is `like`."""
    path = find_file(name, folder, named_by)
    like, file = read_yaml(path).get("like") or [], str(path) if name.endswith((".yaml", ".yml")) else f"studies/{name}"
    others = (list_files(other, folder, file) for other in ([like] if isinstance(like, str) else like))
    return {path}.union(*others)


def check_folder(name: str, folder: Path = STUDIES) -> None:
    """Refuse to look for the study `name` outside of a project."""
    if not folder.is_dir():
        raise BadInput(
            "study",
            f"{name!r} is unknown, because this folder is not a project (it has no {folder}/); go to one, or "
            "make one: fedweave init FOLDER",
        )


def title(name: str) -> str:
    """The name of a study in results: its name in the catalogue, or the name of its file without the ending."""
    return Path(name).stem if name.endswith((".yaml", ".yml")) else name


def overlay(name: str, folder: Path = STUDIES, above: Mapping[Path, str] | None = None) -> dict[str, Any]:
    """The study file `name`, merged over the studies that it is `like`. If it names tasks, only these are inherited.

    Args:
        name: of the catalogue, or the path of a file that ends in .yaml.
        above: the files that were read on the way to this one: resolved path -> its name in messages. A file has
            many paths, as each is relative to the folder of the file that names it.

    Raises:
        BadInput: for an unknown study, one that is like itself, or one whose blocks are not mappings.
    """
    names = [*(above or {}).values()]
    path = find_file(name, folder, names[-1] if names else "")
    if path.resolve() in (above or {}):
        way = " -> ".join([*map(_shorten, names), name])
        raise BadInput(f"{names[-1]}: like", f"{name!r} is like this study itself ({way}); name another")
    file = str(path) if name.endswith((".yaml", ".yml")) else f"studies/{name}.yaml"
    own = {key: value for key, value in read_yaml(path).items() if value is not None}
    _check_blocks(own, file)
    if "uses" in own:
        own["uses"] = plugins.resolve_paths(own["uses"], file, path.parent)
    like, inherited = own.pop("like", []), dict[str, Any]()
    for other in [like] if isinstance(like, str) else like:
        inherited = merge(inherited, overlay(other, folder, {**(above or {}), path.resolve(): file}))
    inherited_tasks, own_tasks = inherited.pop("tasks", {}), own.get("tasks")
    tasks = (
        inherited_tasks
        if own_tasks is None
        else {key: merge(inherited_tasks.get(key, {}), block or {}) for key, block in own_tasks.items()}
    )
    if not tasks:
        raise BadInput(f"{file}: tasks", "missing; name them, or say like: <a study>")
    return {**merge({**inherited, "ablate": {}} if inherited else {}, own), "tasks": tasks}


def _shorten(file: str) -> str:
    return file.removeprefix("studies/").removesuffix(".yaml") if file.startswith("studies/") else file


def expand(name: str, folder: Path = STUDIES, uses: Collection[str] = ()) -> dict[str, Any]:
    """The full params.yaml of the study `name`, a name of the catalogue or the path of a file; its plug-ins are loaded.

    Args:
        uses: paths of further plug-ins, relative to the current folder.

    Raises:
        BadInput: for an unknown study, base task or method, or a plug-in that cannot be loaded.
    """
    own = overlay(name, folder)
    used = own.pop("uses", {}) | plugins.resolve_paths(list(uses), plugins.OPTION)
    plugins.load(used.values())
    head = {"study": title(name), "about": own.pop("about", ""), **({"uses": used} if used else {})}
    if "runs" in own:  # the file is a full params.yaml already
        return head | {key: value for key, value in own.items() if key != "study"}
    return head | _build_blocks(name, own, folder)


def _build_blocks(name: str, own: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The rest of params.yaml: tasks on top of the base's, runs, and the settings and spaces of their methods."""
    # Imported here, because these modules load torch, which a list of studies does not need.
    from fedweave.methods import METHODS
    from fedweave.study.checks import check_settings

    file = name if name.endswith((".yaml", ".yml")) else f"studies/{name}.yaml"
    base = read_yaml(folder / "base.yaml") if (folder / "base.yaml").is_file() else {}
    contestants, own_methods = outside.split(own.get("methods", {}))
    outside.enter(contestants, file)
    _check_keys(file, own, METHODS)
    tasks, runs = _build_tasks(own, base, file)
    used_methods = sorted({item["method"] for item in runs.values()})
    defaults = {
        m: {  # a file has lists in place of tuples
            one.name: [*one.default] if isinstance(one.default, tuple) else one.default
            for one in METHODS[choose(m, METHODS, file)].settings()
        }
        for m in used_methods
    }
    for method, block in own_methods.items():  # also of methods that no task names: params.yaml omits these
        check_settings(method, block or {}, f"{file}: methods.{method}")
    return {
        "seeds": own.get("seeds", base.get("seeds", [0, 1, 2])),
        "datasets": sorted({task["dataset"] for task in tasks.values()}),
        "tasks": tasks,
        "runs": runs,
        "methods": {m: merge(defaults[m], own.get("methods", {}).get(m) or {}) for m in used_methods},
        "tune": _build_tuning(own.get("tune", {}), base.get("tune", {}), used_methods, file),
        "ablate": own.get("ablate", {}),
        "margins": own.get("margins", {}),
    }


def _build_tasks(
    own: Mapping[str, Any], base: Mapping[str, Any], file: str
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """The blocks `tasks` and `runs`: a run for each method of each task."""
    tasks, runs = dict[str, dict[str, Any]](), dict[str, dict[str, Any]]()
    for key, block in own["tasks"].items():
        protocol = task_blocks.protocol_of(block, base, f"{file}: tasks.{key}")
        tasks[key] = task_blocks.resolve_task(key, block, base.get("tasks", {}), file, protocol)
        for suffix, item in map(_parse_entry, list_methods(block, own, base)):
            fixed = merge(protocol.get("methods", {}).get(item["method"], {}), item.get("set", {}))
            if f"{key}-{suffix}" in runs:
                raise BadInput(f"{file}: tasks.{key}.methods", f"two entries make the run '{key}-{suffix}'; rename one")
            runs[f"{key}-{suffix}"] = {"task": key, **item, **({"set": fixed} if fixed else {})}
    return tasks, runs


def _build_tuning(own: Mapping[str, Any], base: Mapping[str, Any], methods: list[str], file: str) -> dict[str, Any]:
    """The block `tune`, with the search spaces of `methods` if there are trials."""
    from fedweave.methods import METHODS
    from fedweave.study.search_spaces import RATES, check_space, derive_space

    tune = merge({**base, "spaces": {method: derive_space(method) for method in METHODS}}, own)
    for method in own.get("spaces") or {}:
        check_space(method, tune["spaces"][method], f"{file}: tune.spaces.{method}")
    declared = own.get("spaces") if tune.get("sampler") == RATES else tune["spaces"]
    spaces = {method: (declared or {}).get(method, {}) for method in methods} if tune.get("trials") else {}
    return {**tune, "spaces": spaces}


def list_methods(block: Mapping[str, Any], study: Mapping[str, Any], base: Mapping[str, Any]) -> list[Any]:
    """The methods of a task: the `controls` of `base` that it does not name, then its own.

    A study whose numbers are not compared has no controls: `without_controls: <the reason>`.
    """
    own = block["methods"]
    plain = [suffix for suffix, item in map(_parse_entry, own) if item["method"] == suffix]
    controls = [] if "without_controls" in study else base.get("controls", [])
    return [*(control for control in controls if control not in plain), *own]


def _parse_entry(entry: Any) -> tuple[str, dict[str, Any]]:
    """An entry of a task's methods as (end of the run's name, the entry of the run)."""
    suffix, item = next(iter(entry.items())) if isinstance(entry, Mapping) else (entry, {})
    return suffix, {"method": item.get("method", suffix), **({"set": item["set"]} if "set" in item else {})}


def _check_blocks(own: Mapping[str, Any], file: str) -> None:
    """Refuse blocks that cannot be merged with those of another study."""
    like = own.get("like", [])
    if not isinstance(like, str | list) or not all(isinstance(name, str) for name in like):
        raise BadInput(f"{file}: like", f"{own['like']!r} is not the name of a study, nor a list of names")
    blocks = {key: own[key] for key in ("tasks", "methods", "tune", "ablate", "margins") if key in own}
    for name in ("tasks", "methods"):
        parts = blocks.get(name)
        blocks |= {f"{name}.{key}": block for key, block in parts.items()} if isinstance(parts, Mapping) else {}
    if isinstance(tune := blocks.get("tune"), Mapping):
        blocks["tune.spaces"] = spaces = tune.get("spaces")
        blocks |= {f"tune.spaces.{key}": block for key, block in spaces.items()} if isinstance(spaces, Mapping) else {}
    for key, block in blocks.items():
        if block is not None and not isinstance(block, Mapping):
            raise BadInput(
                f"{file}: {key}", f"{block!r} is not a block of settings; see: fedweave study show {example()}"
            )


def _check_keys(file: str, own: Mapping[str, Any], methods: Collection[str]) -> None:
    """Refuse entries of a study file that would be ignored without a message."""
    for key in own:
        choose(key, WORDS, file)
    if not isinstance(reason := own.get("without_controls", "-"), str) or not reason:
        raise BadInput(f"{file}: without_controls", f"{format_value(reason)} must say in words why nothing is compared")
    blocks = {"methods": own.get("methods", {}), "tune.spaces": own.get("tune", {}).get("spaces") or {}}
    for where, block in blocks.items():
        for method in block:
            choose(method, methods, f"{file}: {where}")
    for key, block in own["tasks"].items():
        for word in block:
            choose(word, task_blocks.WORDS, f"{file}: tasks.{key}")
        _check_entries(block.get("methods"), f"{file}: tasks.{key}.methods")
        for _, item in map(_parse_entry, block["methods"]):
            choose(item["method"], methods, f"{file}: tasks.{key}.methods")
        if not isinstance(dataset := block.get("dataset", ""), str):
            raise BadInput(f"{file}: tasks.{key}.dataset", f"{format_value(dataset)} is not a name; for example digits")


def _check_entries(methods: object, where: str) -> None:
    """Refuse a value that is not a list of methods and variants."""
    if not isinstance(methods, list):
        raise BadInput(where, "missing, or not a list; such as [fedavg, fedaghn]")
    for entry in methods:
        _check_entry(entry, where)


def _check_entry(entry: object, where: str) -> None:
    """Refuse an entry that is neither the name of a method nor one variant: {name: {method: ..., set: {...}}}."""
    if isinstance(entry, Mapping) and len(entry) != 1:
        raise BadInput(where, f"{format_value(entry)} must be one variant; start each with a dash")
    name, item = next(iter(entry.items())) if isinstance(entry, Mapping) else (entry, {})
    if not isinstance(name, str) or not name or not isinstance(item, Mapping):
        raise BadInput(where, f"{format_value(entry)} is neither a name nor a variant; write {WAY}")
    for word in item:
        _check_key(word, item, name, f"{where}: {format_value(entry)}")
    if not isinstance(item.get("method", name), str) or not isinstance(item.get("set", {}), Mapping):
        raise BadInput(f"{where}: {format_value(entry)}", f"method is a name and set a mapping; write {WAY}")


def _check_key(word: Any, item: Mapping[Any, Any], name: str, where: str) -> None:
    """Refuse an unknown key of a variant; a setting of its method belongs below `set`."""
    if word in VARIANT_WORDS:
        return
    from fedweave.methods import METHODS  # imported here, because it loads torch, which a list of studies does not need

    method = METHODS.get(str(item.get("method", name)))
    settings = {"train", "evaluate", *(setting.name for setting in (method.settings() if method else ()))}
    if str(word).partition(".")[0] in settings:
        raise BadInput(where, f"{word!r} is a setting; write it under set: {{{word}: {item[word]}}}")
    choose(str(word), VARIANT_WORDS, where)


def select_runs(content: Mapping[str, Any], tasks: Collection[str], methods: Collection[str]) -> list[str]:
    """The runs of a full params.yaml that belong to one of `tasks` and one of `methods`; empty means all.

    A method is named as in the study: `fedavg`, or the name of a variant such as `fedpub-detached`.

    Raises:
        BadInput: a task or method that the study does not have, or no run that belongs to both.
    """
    pairs = {run: (item["task"], run.removeprefix(f"{item['task']}-")) for run, item in content["runs"].items()}
    for name in tasks:
        choose(name, {task for task, _ in pairs.values()}, "--task")
    for name in methods:
        choose(name, {method for _, method in pairs.values()}, "--method")
    selected = [
        run
        for run, (task, method) in pairs.items()
        if (not tasks or task in tasks) and (not methods or method in methods)
    ]
    if not selected:
        raise BadInput(
            "--method",
            f"{', '.join(methods)} not in {', '.join(tasks)} of {content['study']}; fedweave study show has the runs",
        )
    return selected


def restrict_runs(content: Mapping[str, Any], runs: Collection[str]) -> dict[str, Any]:
    """A full params.yaml with only `runs` and what they need; its tables have no other results."""
    chosen = {run: item for run, item in content["runs"].items() if run in runs}
    tasks = {
        key: block for key, block in content["tasks"].items() if any(item["task"] == key for item in chosen.values())
    }
    used_methods = {item["method"] for item in chosen.values()}
    tune = content.get("tune", {})
    spaces = {method: space for method, space in tune.get("spaces", {}).items() if method in used_methods}
    return {
        **content,
        "datasets": sorted({task["dataset"] for task in tasks.values()}),
        "tasks": tasks,
        "runs": chosen,
        "methods": {method: block for method, block in content["methods"].items() if method in used_methods},
        "tune": {**tune, "spaces": spaces},
        "ablate": {name: block for name, block in (content.get("ablate") or {}).items() if block["run"] in chosen},
    }
