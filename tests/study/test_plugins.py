"""Plug-ins: users' own parts next to fedweave's, and the messages for faulty ones."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import nn

import fedweave as fw
from fedweave import data
from fedweave.data.partitions.registry import TRAITS
from fedweave.data.registry import DATASETS, KINDS
from fedweave.engine.registry import METHODS
from fedweave.errors import BadInput
from fedweave.models import MODELS, build
from fedweave.runs import dependencies
from fedweave.study import catalogue, plugins, spec
from fedweave.study.code import PACKAGE, Root, find_dependencies

FULL = """
about: own
uses: [{uses}]
tasks:
  own:
    dataset: lines
    partition: {{name: halves, clients: 2, seed: 1}}
    model: {{name: flat}}
    train: {{rounds: 1}}
    methods: [local]
"""
BENCH = '''
import numpy as np
from torch import nn
import fedweave as fw
from fedweave.data import Dataset, Partition
from fedweave.models import ClientModel
from {name}.parts import half

@fw.dataset("lines")
def lines(root):
    """Vectors in two classes."""
    y = np.arange(12) % 2
    return Dataset("lines", "images", y.astype(np.float32)[:, None, None, None], y.astype(np.int64), classes=2)

@fw.model("flat")
class Flat(ClientModel):
    """A linear map."""
    head = ("out",)
    def __init__(self, shape, outputs):
        super().__init__()
        self.out = nn.Linear(1, outputs)
    def features(self, x, *, key=None, mask=None):
        return x.flatten(1)

@fw.partition("halves", kinds=("images",))
def halves(dataset, clients, seed):
    rows = half(len(dataset.x))
    return Partition(tuple(r[:3] for r in rows), tuple(r[3:4] for r in rows), tuple(r[4:] for r in rows))
'''


@pytest.fixture(autouse=True)
def tables(tmp_path: Path) -> Iterator[None]:
    """Afterwards the tables are unchanged, and no plug-in is imported."""
    tables = (METHODS, MODELS, DATASETS, KINDS, data.PARTITIONS, TRAITS, plugins._loaded)
    before = [(table, dict(table)) for table in tables]
    path = list(sys.path)
    yield
    for table, entries in before:
        table.clear()
        table.update(entries)
    sys.path[:] = path
    for name, module in tuple(sys.modules.items()):
        if isinstance(module, ModuleType) and str(tmp_path) in repr(module):
            del sys.modules[name]


def bench(folder: Path, name: str) -> Path:
    """A plug-in of two files in its own folder."""
    place = folder / name
    place.mkdir()
    (place / "own.py").write_text(BENCH.format(name=name))
    (place / "parts.py").write_text("import numpy as np\n\ndef half(n):\n    return np.split(np.arange(n), 2)\n")
    return place


def test_a_study_in_any_folder_may_have_its_own_tasks_and_parts(tmp_path: Path) -> None:
    """A data set, a model and a partition of a plug-in, in a task that base.yaml does not have."""
    bench(tmp_path, "bench_whole")
    (tmp_path / "own.yaml").write_text(FULL.format(uses="bench_whole/"))
    content = catalogue.expand(str(tmp_path / "own.yaml"))
    assert content["study"] == "own"
    assert content["uses"] == {"bench_whole": str(tmp_path / "bench_whole")}
    assert content["tasks"]["own"]["dataset"] == "lines"
    assert content["datasets"] == ["lines"]
    partition = data.partition(data.load("lines", tmp_path), "halves", 2, 0)
    assert [len(rows) for rows in partition.test] == [2, 2]
    assert build("flat", (1, 1, 1), 2).head == ("out",)


def test_a_task_is_a_change_or_a_definition(tmp_path: Path) -> None:
    """The message for a task that is neither says how to write one."""
    (tmp_path / "own.yaml").write_text("tasks:\n  mine:\n    methods: [local]\n")
    with pytest.raises(
        BadInput, match=r"own\.yaml: tasks\.mine: is not a task of base\.yaml and names no dataset; define it"
    ):
        catalogue.expand(str(tmp_path / "own.yaml"))


IMPORT = "import fedweave as fw\n\n"
CLASS = "class X:\n    pass\n"
METHOD = "class X(fw.methods.METHODS['fedavg']):\n    label = 'X'\n"
FROZEN = "@dataclass(frozen=True, kw_only=True)\n"
FUNCTION = "def f(root):\n    pass\n"
WRONG = {
    "raises": (
        "x = 1\ny = x / 0\n",
        r"raises\.py, line 2: ZeroDivisionError: division by zero; correct it, or take it out",
    ),
    "broken": ("def f(:\n", r"broken\.py, line 1: SyntaxError: .*; correct it"),
    "leaves": ("import sys\n\nsys.exit(3)\n", r"leaves\.py, line 3: calls sys\.exit\(3\), which ends .*; correct it"),
    "absent": ("import no_such_package_here\n", r"absent\.py, line 1: ModuleNotFoundError: .*no_such_package_here"),
    "nomethod": (
        f"{IMPORT}@fw.method('x')\n{CLASS}",
        r"nomethod\.py, line 3: method 'x': the class X is not a method; derive it",
    ),
    "nofields": (
        f"{IMPORT}@fw.method('x')\n{METHOD}    step: float = 0.5\n",
        r"method 'x': X is not a frozen dataclass; add @dataclass\(frozen=True, kw_only=True\) below @fw.method",
    ),
    "taken": (
        f"from dataclasses import dataclass\n{IMPORT}@fw.method('x')\n{FROZEN}{METHOD}    solver: float = 0.1\n",
        "method 'x': X: solver is set by the run; give the setting another name",
    ),
    "nopoint": (
        f"from dataclasses import dataclass\n{IMPORT}@fw.method('x')\n{FROZEN}{METHOD}    point = 'Pre'\n",
        "method 'x': X: point is 'Pre'; choose 'pre' or 'post'",
    ),
    "nodefault": (
        f"from dataclasses import dataclass\nfrom typing import Annotated\n{IMPORT}import fedweave.settings as s\n"
        f"@fw.method('x')\n{FROZEN}{METHOD}    step: Annotated[s.Share, 'a part'] = 5\n",
        "method 'x': X: the default of step: 5 is out of range; it must be between 0 and 1",
    ),
    "nomodel": (f"{IMPORT}@fw.model('x')\n{CLASS}", "model 'x': the class X is not a client model; derive it from"),
    "noloader": (f"{IMPORT}@fw.dataset('x')\n{CLASS}", "dataset 'x': the class X is not a loader; write a function"),
    "functionmodel": (
        f"{IMPORT}@fw.model('x')\n{FUNCTION}",
        "model 'x': the function f is not a client model; derive it",
    ),
    "norule": (f"{IMPORT}fw.partition('x')(3)\n", "partition 'x': 3 is not a rule; write a function"),
    "noseed": (
        f"{IMPORT}@fw.partition('x')\ndef halves(dataset, clients):\n    pass\n",
        "partition 'x': has no parameter seed; a rule takes dataset, clients, seed",
    ),
    "unnamed": (
        f"{IMPORT}@fw.dataset\n{FUNCTION}",
        r"line 3: dataset: the function f is not a name; write @fw\.dataset",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_faulty_plug_in_is_refused_in_one_line(tmp_path: Path, name: str) -> None:
    """The line has the file, the line number, the error and the way out."""
    text, words = WRONG[name]
    (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(BadInput, match=words) as refused:
        plugins.load([tmp_path / f"{name}.py"])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("default", ["None", "float('inf')"])
def test_a_default_may_say_that_there_is_no_number(tmp_path: Path, default: str) -> None:
    """Authors write None for "none" and infinity for "no limit"."""
    text = (
        f"from dataclasses import dataclass\n{IMPORT}@fw.method('bare')\n{FROZEN}{METHOD}    limit: float = {default}\n"
    )
    (tmp_path / "bare.py").write_text(text)
    plugins.load([tmp_path / "bare.py"])
    assert METHODS["bare"].label == "X"


def test_two_parts_with_one_name_are_refused(tmp_path: Path) -> None:
    """The line names both files."""
    for name in ("first_one", "second_one"):
        (tmp_path / f"{name}.py").write_text(
            "import fedweave as fw\n\n@fw.dataset('same')\ndef same(root):\n    pass\n"
        )
    plugins.load([tmp_path / "first_one.py"])
    with pytest.raises(
        BadInput, match=r"'same' is defined twice, in .*first_one\.py and in .*second_one\.py; rename one"
    ):
        plugins.load([tmp_path / "second_one.py"])


def test_invalid_paths_are_refused(tmp_path: Path) -> None:
    """Missing, not Python, a name of a Python module, and not a list."""
    (tmp_path / "json.py").write_text("")
    (tmp_path / "text.txt").write_text("")
    for path, words in {
        "gone.py": "not found",
        "text.txt": "is neither a Python file",
        "json.py": "rename it, such as my_json",
    }.items():
        with pytest.raises(BadInput, match=f"own.yaml: uses: {path}: .*{words}"):
            plugins.resolve_paths([path], "own.yaml", tmp_path)
    with pytest.raises(BadInput, match=r"is not a list of paths; for example \[mybench"):
        plugins.resolve_paths(3, "own.yaml")
    with pytest.raises(BadInput, match=r"^--uses: gone\.py: not found .*relative to the current folder$"):
        plugins.resolve_paths(["gone.py"], "--uses")


def test_unusable_parts_are_refused(tmp_path: Path) -> None:
    """A loader that returns no data set, and a model without a head."""
    DATASETS["nothing"] = lambda root: [1, 2]
    with pytest.raises(
        BadInput, match=r"dataset nothing: its loader returned an object of type list; return a fedweave\.data\.Dataset"
    ):
        data.load("nothing", tmp_path)
    DATASETS["nothing"] = lambda root: data.Dataset("nothing", "images", [[1.0]], None, 0)
    with pytest.raises(BadInput, match=r"dataset nothing: x is a list; give a NumPy array"):
        data.load("nothing", tmp_path)

    class Empty(fw_model()):  # type: ignore[misc]
        head = ()

        def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
            super().__init__()

        def features(self, x: object, *, key: object = None, mask: object = None) -> object:
            return x

    class Headless(Empty):
        head = "out"

        def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
            super().__init__(shape, outputs)
            self.out = nn.Linear(1, outputs)

    fw.model("headless_one")(Headless)
    with pytest.raises(BadInput, match="model headless_one: head is 'out'; give a tuple of its last modules, of out"):
        build("headless_one", (1,), 2)
    fw.model("empty_one")(Empty)
    with pytest.raises(BadInput, match="model empty_one: has no parameters to train; check that its layers"):
        build("empty_one", (1,), 2)


def test_a_model_is_tried_before_training(tmp_path: Path) -> None:
    """A model whose outputs depend on the other rows of a batch is refused by its name."""

    class Centred(fw_model()):  # type: ignore[misc]
        head = ("out",)

        def __init__(self, shape: tuple[int, ...], outputs: int) -> None:
            super().__init__()
            self.out = nn.Linear(int(np.prod(shape)), outputs)

        def features(self, x: torch.Tensor, *, key: object = None, mask: object = None) -> torch.Tensor:
            return x.flatten(1) - x.flatten(1).mean(0)

    fw.model("centred")(Centred)
    federation = fw.Federation.from_arrays(np.eye(60), np.arange(60) % 2, client=[0, 1, 2] * 20)
    with pytest.raises(BadInput, match="model: centred: gives a row other outputs when other rows stand beside it"):
        fw.fit("fedavg", federation, model="centred", rounds=1, progress=False)


def fw_model() -> type:
    """The base class of client models."""
    from fedweave.models import ClientModel

    return ClientModel


def test_an_installed_package_is_a_plug_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its entry point is enough, without a name in a study. It may be installed after other plug-ins were loaded."""
    place = bench(tmp_path, "bench_installed")
    (place / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert plugins.find_installed() == {}
    about = tmp_path / "bench_installed-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: bench-installed\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[fedweave.plugins]\nbench = bench_installed\n")
    plugins.load()
    assert "lines" in DATASETS
    assert plugins.find_installed() == {"bench_installed": place}
    files = {file.name for file in dependencies.of_dataset("lines") if not file.is_relative_to(PACKAGE)}
    assert files == {"__init__.py", "own.py", "parts.py"}


def test_a_file_in_the_folder_of_a_loader_is_part_of_its_data(tmp_path: Path) -> None:
    """Files of any type in the plug-in's folder count. Data sets of other plug-ins, notes and hidden files do not."""
    place = bench(tmp_path, "bench_files")
    for name in ("rows.csv", "more/shift.txt", "README.md", ".cache/x.npy"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text("1")
    plugins.load([place])
    files = {file.name for file in dependencies.of_dataset("lines") if not file.is_relative_to(PACKAGE)}
    assert files == {"own.py", "parts.py", "rows.csv", "shift.txt"}
    assert all(file.is_relative_to(PACKAGE) for file in dependencies.of_dataset("digits"))


READS = '''
from pathlib import Path

@fw.model("weighted")
class Weighted(Flat):
    """Reads a file beside its code."""
    prior = Path(__file__).with_name("prior.txt")

@fw.partition("listed", kinds=("images",))
def listed(dataset, clients, seed):
    return Path(__file__).with_name("prior.txt")
'''


def test_a_file_beside_a_model_or_a_partition_that_reads_it_is_a_part_of_it(tmp_path: Path) -> None:
    """Where the code finds its own place. Code that cannot, and code of fedweave, depends on no file but code."""
    place = bench(tmp_path, "bench_prior")
    (place / "prior.txt").write_text("1")
    plugins.load([place])
    (tmp_path / "own.yaml").write_text(FULL.replace("rounds: 1", "rounds: 1, lr: 0.1").format(uses="bench_prior/"))
    content = catalogue.expand(str(tmp_path / "own.yaml"))
    run = spec.parse(content).run("own-local")
    assert not _data_names(dependencies.of_run(run))
    assert not _data_names(dependencies.of_partition("halves"))
    (place / "own.py").write_text((place / "own.py").read_text() + READS)
    before = dependencies.run_digest(run)
    assert _data_names(dependencies.of_run(run)) == {"prior.txt"}
    assert _data_names(dependencies.of_partition("halves")) == {"prior.txt"}
    assert not _data_names(dependencies.of_partition("iid"))
    (place / "prior.txt").write_text("10")
    assert dependencies.run_digest(run) != before


def _data_names(files: tuple[Path, ...]) -> set[str]:
    return {file.name for file in files if file.suffix not in {".py", ".cpp"}}


def test_files_with_one_name_in_folders_with_one_name_all_count(tmp_path: Path) -> None:
    """A list of digests has both, so that a change of either is seen."""
    files = [tmp_path / part / "data" / "rows.csv" for part in ("north", "south")]
    for file in files:
        file.parent.mkdir(parents=True)
        file.write_text("1")
    before = dependencies.list_digests(files)
    for file in files:
        file.write_text("10")
        assert dependencies.list_digests(files) != before
        file.write_text("1")


def test_other_installed_packages_are_not_plug_ins(tmp_path: Path) -> None:
    """Packages next to a plug-in in `site-packages` count only if they are plug-ins too. numpy does not."""
    for name in ("numpy", "mine", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("x = 1\n")
    (tmp_path / "mine" / "own.py").write_text("import numpy\nfrom other import x\nimport mine\n")
    (tmp_path / "alone.py").write_text("import numpy\nfrom mine.own import numpy\n")
    roots = [Root(tmp_path, frozenset({"mine"})), Root(tmp_path, frozenset({"alone"}))]
    assert {file.relative_to(tmp_path) for file in find_dependencies([tmp_path / "mine" / "own.py"], roots)} == {
        Path("mine/own.py"),
        Path("mine/__init__.py"),
    }
    assert "numpy" not in {file.parent.name for file in find_dependencies([tmp_path / "alone.py"], roots)}


def test_the_place_of_folders_has_no_influence_on_a_list_of_digests(tmp_path: Path) -> None:
    """On another machine fedweave may come before or after the plug-in; the file of a stage has the same bytes."""
    texts = []
    for order in ("ab", "ba"):
        files = [tmp_path / order[i] / order / name / "code.py" for i, name in enumerate(("fedweave", "kin"))]
        for file in files:
            file.parent.mkdir(parents=True)
            file.write_text(f"NAME = {file.parent.name!r}\n")
        texts.append(json.dumps(dependencies.list_digests(files)))
    assert texts[0] == texts[1]
