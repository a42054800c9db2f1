"""What a stage depends on: the compiled code of the modules that it uses, and nothing else."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from fedweave.study.code import PACKAGE, Root, digest, find_dependencies
from tests.servers import ROOT, Project, python
from tests.small_project import params

pytestmark = pytest.mark.xdist_group("code")

METHOD = '''
"""A method whose pull has a shape of its own."""
from dataclasses import dataclass
import fedweave as fw
from fedweave.families import GlobalModel, SplitClient
from mybench.shapes import activation

@fw.method("mine")
@dataclass(frozen=True, kw_only=True)
class Mine(SplitClient, GlobalModel):
    """FedAvg, and a value that it prints."""

    label = "Mine"

    def personalize(self, shared, own, client, data):
        if activation(1.0) < 0:
            raise ValueError("a message")
        return super().personalize(shared, own, client, data)
'''
SHAPES = "import math\n\ndef activation(x):\n    return math.tanh(x)\n"
DATASET = '''
"""Two blobs a client."""
import numpy as np
import fedweave as fw
from fedweave.data import Dataset

@fw.dataset("blobs")
def blobs(root):
    """Blobs [60, 1, 4, 4] in two classes."""
    g = np.random.default_rng(0)
    y = np.arange(60) % 2
    x = (y[:, None, None, None] + g.normal(size=(60, 1, 4, 4))).astype(np.float32)
    return Dataset("blobs", "images", x, y.astype(np.int64), classes=2)
'''


# The stage in a process of the project. It imports the project's code once and forks for every line that it reads.
STAGE = """
import gc, os, sys, traceback
from fedweave.pipelines.stages import sources
from fedweave.study.code import PACKAGE, digest, find_dependencies
digest(find_dependencies(PACKAGE.rglob("*.py")))
gc.freeze()
for _ in sys.stdin:
    child = os.fork()
    if not child:
        try:
            sources.main()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
os._exit(0)
"""


@pytest.fixture(scope="module")
def stage(project: Project) -> Iterator[Callable[[], None]]:
    """Runs the stage `sources` on the files as they are now."""
    with subprocess.Popen(
        [sys.executable, "-c", STAGE],
        cwd=project.folder,
        env={**os.environ, **project.env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:

        def run() -> None:
            assert running.stdin
            assert running.stdout
            running.stdin.write("\n")
            running.stdin.flush()
            assert running.stdout.readline() == "0\n"

        yield run


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The small study, with the method and the data set of a plug-in added."""
    made = Project(tmp_path_factory.mktemp("code"), params())
    bench = made.folder / "mybench"
    bench.mkdir()
    for name, text in {"mine": METHOD, "shapes": SHAPES, "blobs": DATASET}.items():
        (bench / f"{name}.py").write_text(text)
    content = yaml.safe_load(params()) | {"uses": {"mybench": "mybench"}}
    digits = content["tasks"]["digits"]
    content["tasks"]["blobs"] = {**digits, "dataset": "blobs", "partition": {**digits["partition"], "clients": 3}}
    content["datasets"] += ["blobs"]
    content["runs"]["digits-mine"] = {"task": "digits", "method": "mine"}
    content["runs"]["blobs-fedavg"] = {"task": "blobs", "method": "fedavg"}
    (made.folder / "params.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    return made


@pytest.fixture(scope="module")
def original(project: Project, stage: Callable[[], None]) -> dict[str, str]:
    """Digests of the unchanged project."""
    stage()
    return digests(project.folder)


def digests(folder: Path) -> dict[str, str]:
    """The files that the stage `sources` has written."""
    places = (folder / "results" / "small" / "code", folder / "data" / "code")
    return {str(file.relative_to(place)): file.read_text() for place in places for file in place.rglob("*.json")}


Edits = dict[str, tuple[str, str]]


@pytest.fixture
def changed_digests(
    project: Project, original: dict[str, str], stage: Callable[[], None]
) -> Callable[[Edits], set[str]]:
    """Function from edits, one text replaced by another in each file, to the names of the digests that they change."""
    return partial(names_of_changed, project, original, stage)


def names_of_changed(project: Project, before: dict[str, str], stage: Callable[[], None], edits: Edits) -> set[str]:
    """See `changed_digests`."""
    texts = {project.folder / name: (project.folder / name).read_text() for name in edits}
    for (path, text), (old, new) in zip(texts.items(), edits.values(), strict=True):
        assert old in text
        path.write_text(text.replace(old, new))
    try:
        stage()
        after = digests(project.folder)
    finally:
        for path, text in texts.items():
            path.write_text(text)
    assert before.keys() == after.keys()
    return {name for name in before if before[name] != after[name]}


def test_an_activation_in_a_plug_in_retrains_its_runs_only(changed_digests: Callable[[Edits], set[str]]) -> None:
    """The method imports the activation from another file of its folder."""
    assert changed_digests({"mybench/shapes.py": ("tanh", "atan")}) == {"runs/digits-mine.json", "tasks/digits.json"}


def test_messages_docstrings_and_comments_retrain_nothing(changed_digests: Callable[[Edits], set[str]]) -> None:
    """Neither do blank lines."""
    edits = {
        "mybench/mine.py": ("a message", "reworded"),
        "mybench/shapes.py": ("import math\n", "import math  # a comment\n\n\n"),
        "mybench/blobs.py": ("Blobs [60", "Clouds [60"),
        "src/fedweave/errors.py": ("The exceptions that users", "Exceptions that users"),
        "src/fedweave/engine/clients.py": ("use fewer clients, another seed", "use fewer of them, another seed"),
    }
    assert changed_digests(edits) == set()


def test_data_sets_partitions_and_methods_have_separate_digests(changed_digests: Callable[[Edits], set[str]]) -> None:
    """Loaders and partition rules belong to no run, but their arrays do. The code of Ditto belongs to the runs of
    Ditto.
    """
    edits = {
        "mybench/blobs.py": ("default_rng(0)", "default_rng(1)"),
        "src/fedweave/data/partitions/metis.py": ("SHARES = {", "OTHER = 1\nSHARES = {"),
        "src/fedweave/methods/ditto.py": ("self.lam", "2 * self.lam"),
    }
    partitions, ditto = (
        {"datasets/blobs.json", "partitions/digits-graph.json"},
        {"runs/digits-ditto.json", "ablations/pull.json"},
    )
    assert changed_digests(edits) == {*partitions, *ditto, "tasks/digits.json"}


def test_a_search_depends_on_the_settings_of_its_own_runs(changed_digests: Callable[[Edits], set[str]]) -> None:
    """The number of processes changes no trial."""
    assert changed_digests({"params.yaml": ("trials: 2", "trials: 3")}) == {
        "tasks/blobs.json",
        "tasks/digits.json",
        "tasks/digits-graph.json",
    }
    for setting in (("high: 2.0", "high: 3.0"), ("personal_epochs: 1", "personal_epochs: 2")):
        assert changed_digests({"params.yaml": setting}) == {"tasks/digits.json"}
    assert changed_digests({"params.yaml": ("workers: 2", "workers: 1")}) == set()


def test_the_code_of_a_model_belongs_to_its_runs_only(changed_digests: Callable[[Edits], set[str]]) -> None:
    """The network of digits belongs to the runs on digits, and not to those on their graph."""
    changes = changed_digests({"src/fedweave/models/cnn.py": ("relu", "tanh")})
    assert {name for name in changes if name.startswith("runs/")} == {
        "runs/digits-ditto.json",
        "runs/digits-fedavg.json",
        "runs/digits-mine.json",
        "runs/blobs-fedavg.json",
    }


def test_everything_that_trains_is_a_dependency(project: Project, original: dict[str, str]) -> None:
    """The modules that a process has imported after training, without unused entries of tables."""
    code = (
        "import os, sys, json; sys.argv = ['x', 'digits-ditto']; from fedweave.pipelines.stages import train;"
        "print(json.dumps([m.__file__ for n, m in sys.modules.items() if n.startswith('fedweave.') and m.__file__]),"
        "flush=True); os._exit(0)"
    )
    done = python("-c", code, **project.env)
    package = project.folder / "src"
    imported = {
        str(Path(file).relative_to(package)) for file in json.loads(done.stdout) if Path(file).is_relative_to(package)
    }
    listed = {*json.loads((project.folder / "results" / "small" / "code" / "runs" / "digits-ditto.json").read_text())}
    entries = ("methods/", "models/", "families/", "data/", "files/", "tensors/torchvision")
    rest = {file for file in imported - listed if not file.endswith("__init__.py") and "/pipelines/" not in file}
    unused = {
        *("study/plugins.py", "study/code.py", "runs/dependencies.py"),  # they list the code, and run none
        *("study/validate.py", "study/search_spaces.py", "study/task_blocks.py"),  # checks
        "_renamed.py",  # old names of modules
        # Scaling uses another part of their package.
        *("exported_model/columns.py", "exported_model/model.py", "exported_model/serving.py"),
    }
    assert {file for file in rest if not file.removeprefix("fedweave/").startswith(entries)} <= {
        f"fedweave/{f}" for f in unused
    }
    assert {
        f"fedweave/{file}" for file in ("methods/ditto.py", "families/base.py", "models/cnn.py", "data/base.py")
    } <= listed
    assert not {
        file for file in listed if file.startswith(("fedweave/report", "fedweave/results", "fedweave/data/sources"))
    }


def test_every_form_of_import_is_followed(tmp_path: Path) -> None:
    """Aliases, relative imports, imports in functions, dotted look-ups, and names that a package re-exports."""
    lab = tmp_path / "lab"
    lab.mkdir()
    files = {
        "__init__": "from .names import shown\n",
        "names": "def shown(): pass\n",
        "late": "",
        "dotted": "x = 1\n",
        "typed": "",
        "alone": "",
        "sibling": "",
        "main": "from typing import TYPE_CHECKING\nimport lab\nfrom lab import shown\nif TYPE_CHECKING:\n"
        "    from lab import typed\n"
        "def f():\n    from . import late\n    return lab.dotted.x\n",
    }
    for name, text in files.items():
        (lab / f"{name}.py").write_text(text)
    changes = {file.stem for file in find_dependencies([lab / "main.py"], [Root(tmp_path)])}
    assert changes == {"main", "__init__", "names", "late", "dotted"}


def test_a_digest_depends_on_the_code_only(tmp_path: Path) -> None:
    """The folder and the formatting do not matter. One changed number gives another digest."""
    first, second = tmp_path / "a" / "x" / "m.py", tmp_path / "b" / "x" / "m.py"
    for file, text in {
        first: "def f(a, b=1):\n    return a + b\n",
        second: "def f(a,b = 1):\n  '''Doc.'''\n  return (a+b)\n",
    }.items():
        file.parent.mkdir(parents=True)
        file.write_text(text)
    assert digest([first]) == digest([second])
    second.write_text("def f(a, b=2):\n    return a + b\n")
    assert digest([first]) != digest([second])


def test_only_texts_of_raise_statements_are_messages(tmp_path: Path) -> None:
    """An argument of a function that only raises may select what is computed: subclasses may replace the function."""
    files = [tmp_path / name / "x" / "m.py" for name in ("first", "message", "argument")]
    for file, words in zip(files, (("mean", "is odd"), ("mean", "is not even"), ("median", "is odd")), strict=True):
        rule, message = words
        file.parent.mkdir(parents=True)
        file.write_text(
            f"class A:\n    def rule(self, word): raise ValueError(f'{{word}} {message}')\n"
            f"    def f(self):\n        return self.rule('{rule}')\n"
            f"    def g(self): raise TypeError('{message}')\n"
        )
    first, message, argument = (digest([file]) for file in files)
    assert first == message != argument


def test_a_changed_file_has_other_imports_in_the_same_process(tmp_path: Path) -> None:
    for name, text in {"a": "import b\n", "b": "", "c": ""}.items():
        (tmp_path / f"{name}.py").write_text(text)
    ask = partial(find_dependencies, [tmp_path / "a.py", PACKAGE / "methods" / "ditto.py"], [Root(tmp_path)])
    before = ask()
    assert ask() == before
    (tmp_path / "a.py").write_text("import c\n")
    assert {*ask()} - {*before} == {tmp_path / "c.py"}


def test_a_new_source_and_another_origin_of_a_name_show_in_the_same_process(tmp_path: Path) -> None:
    """Neither changes the file that was asked for."""
    (tmp_path / "lab").mkdir()
    exported, source = tmp_path / "lab" / "__init__.py", tmp_path / "a.cpp"
    for file, text in {"a": "from lab import f\n", "lab/x": "def f(): ...\n", "lab/y": "def f(): ...\n"}.items():
        (tmp_path / f"{file}.py").write_text(text)
    exported.write_text("from .x import f\n")
    ask = partial(find_dependencies, [tmp_path / "a.py"], [Root(tmp_path)])
    before = ask()
    source.write_text("int a;\n")
    assert {*ask()} - {*before} == {source}
    source.unlink()
    assert ask() == before
    exported.write_text("from .y import f  # as before\n")
    assert {*ask()} ^ {*before} == {tmp_path / "lab" / "x.py", tmp_path / "lab" / "y.py"}


def test_the_pipeline_names_the_digests() -> None:
    """Training, searches and ablations each depend on a file of digests, and on no folder of code."""
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    for name, part in {"train": "runs", "tune": "tasks", "ablate": "ablations"}.items():
        dependencies = stages[name]["do"]["deps"]
        assert f"results/${{study}}/code/{part}/${{key}}.json" in dependencies
        assert not [path for path in dependencies if path.startswith("src")]
    assert PACKAGE.is_dir()
