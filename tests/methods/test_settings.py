"""Every setting is described once, at its field: the description is true, and everything else is generated from it."""

import copy
import importlib.util
import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
import pytest
import tiny
import yaml

from fedweave.engine import registry
from fedweave.engine.registry import method, register
from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.pipelines.commands import main
from fedweave.settings import (
    REQUIRED,
    Above,
    AtLeast,
    AtMost,
    Below,
    Between,
    Bound,
    Choices,
    IntegerSpace,
    LinearSpace,
    LogSpace,
    NotSearched,
    Setting,
    Words,
    describe,
)
from fedweave.study import catalogue, objects, search_spaces, spec, validate
from fedweave.study.config import construct
from fedweave.testing import check_method
from tools import method_tables
from tools.pages import fill

ROOT = Path(__file__).resolve().parents[2]
EACH = [pytest.param(name, s, id=f"{name}-{s.name}") for name in METHODS for s in METHODS[name].settings()]


def build_checked_method(name: str, values: dict[str, Any]) -> Any:
    """The method `name` with `values`, checked as those of params.yaml."""
    hidden = {"task": tiny.rows_task(), "solver": None, "training": None, "control": None}
    return construct(METHODS[name], values, name, **hidden)


def outside(bound: Bound) -> list[Any]:
    """A value outside of `bound`: the nearest integers, or a word that is not a choice."""
    match bound:
        case Words(plain, _):
            return [f"{plain[0]}:x"]
        case AtLeast(low):
            return [int(np.ceil(low)) - 1]
        case Above(low):
            return [int(np.floor(low))]
        case AtMost(high):
            return [int(np.floor(high)) + 1]
        case Below(high):
            return [int(np.ceil(high))]
        case Between(low, high):
            return [int(np.ceil(low)) - 1, int(np.floor(high)) + 1]
    raise AssertionError(bound)


def search_values(setting: Setting) -> list[Any]:
    """Values of a search: the ends of the space and some between, or all its choices."""
    entry = setting.space.entry()
    if "choices" in entry:
        return entry["choices"]
    ends = [entry["low"], entry["high"]]
    between = np.geomspace(*ends, 9) if entry.get("log") else np.linspace(*ends, 9)
    return ends + [setting.type(value) for value in between[1:-1]]


@pytest.mark.parametrize(("name", "setting"), EACH)
def test_a_setting_agrees_with_its_description(name: str, setting: Setting) -> None:
    """It has a meaning of one line. Its default has its type and is within its bounds and its search space."""
    assert setting.meaning.strip()
    assert "\n" not in setting.meaning
    setting.check(setting.default, setting.name)
    entry = setting.space.entry() if setting.space else {}
    if "choices" in entry:
        # A choice that depends on the data, such as "auto", is not in a search.
        assert setting.default in entry["choices"] or setting.type is str or get_origin(setting.type) is Literal
    elif entry:
        assert entry["low"] <= setting.default <= entry["high"]
        assert entry["low"] > 0 or not entry.get("log")


@pytest.mark.parametrize(("name", "setting"), EACH)
def test_a_value_outside_of_the_bounds_is_refused(name: str, setting: Setting) -> None:
    """One line names the key, the value and the bound or the choices."""
    wrong = [(value, str(bound)) for bound in setting.bounds for value in outside(bound)]
    if get_origin(setting.type) is Literal:
        wrong.append(("nonsense", str(get_args(setting.type)[0])))
    else:
        words = {bool: "true or false", int: "whole number", float: "number", str: "must be", tuple: "a list"}
        wrong.append(("nonsense", words[get_origin(setting.type) or setting.type]))
    for value, limit in wrong:
        with pytest.raises(BadInput) as caught:
            build_checked_method(name, {setting.name: value})
        line = str(caught.value)
        assert all(word in line for word in (f"{name}.{setting.name}", str(value), limit)), line
        assert "\n" not in line


@pytest.mark.parametrize(("name", "setting"), [case for case in EACH if case.values[1].space])
def test_every_value_of_a_search_space_is_accepted(name: str, setting: Setting) -> None:
    """The checks of a run accept it, and the method then has that value. The checks of a study accept the space."""
    for value in search_values(setting):
        assert getattr(build_checked_method(name, {setting.name: value}), setting.name) == value


@pytest.mark.parametrize("name", METHODS)
def test_every_method_searches_the_spaces_of_its_settings_and_the_learning_rate(name: str) -> None:
    derived = search_spaces.derive_space(name)
    assert derived.keys() == {"train.lr"} | {setting.name for setting in METHODS[name].settings() if setting.space}
    assert derived["train.lr"] == {"low": 0.003, "high": 0.3, "log": True}


@pytest.mark.parametrize("name", METHODS)
def test_the_settings_on_a_page_are_up_to_date(name: str) -> None:
    """If it is outdated, run `python -m tools.method_tables`. The list of the sources of defaults names existing
    settings.
    """
    text = (method_tables.PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert method_tables.fill_page(text, name) == text
    listed = re.search(r"The defaults come from:\n\n((?:- .*\n)+)", text)
    lines = listed[1].splitlines() if listed else []
    names = {word for line in lines for word in re.findall(r"`(\w+)`", line.partition(": ")[0])}
    assert names <= {setting.name for setting in METHODS[name].settings()}


@pytest.mark.parametrize("page", method_tables.BLOCK_PAGES, ids=lambda page: page.stem)
def test_the_settings_on_the_pages_of_blocks_are_up_to_date(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert fill(text, settings=method_tables.block_table) == text
    for block in re.findall(r"<!-- settings: (\w+) -->", text):
        owner = method_tables.BLOCKS[block]
        section = text.partition(f"<!-- settings: {block} -->")[2].partition("<!-- end -->")[0]
        assert re.findall(r"^\| `(\w+)`", section, re.MULTILINE) == [setting.name for setting in describe(owner)]


def test_a_page_without_a_marker_for_the_table_is_refused() -> None:
    with pytest.raises(BadInput, match=r"docs/methods/ditto\.md: 0 tables.*<!-- settings: ditto -->"):
        method_tables.fill_page("# Ditto\n", "ditto")


@dataclass(frozen=True, kw_only=True)
class Upper:
    """Settings of a class."""

    rate: Annotated[float, AtLeast(0), LogSpace(0.1, 1), "step size"] = 0.5
    size: Annotated[int, Between(1, 9), IntegerSpace(1, 3), "width"] = 2
    odd: int = 1


@dataclass(frozen=True, kw_only=True)
class Lower(Upper):
    """The same settings in a class below."""

    rate: Annotated[float, LinearSpace(0, 2)] = 0.1
    size: Annotated[int, NotSearched(), "height"] = 3
    needed: Annotated[str, "a name"]


def test_a_class_inherits_what_it_does_not_define() -> None:
    """Bounds, space and meaning are inherited separately. The default is always that of the class."""
    rate, size, odd, needed = describe(Lower)
    assert rate == Setting("rate", float, 0.1, (AtLeast(0),), LinearSpace(0, 2), "step size")
    assert size == Setting("size", int, 3, (Between(1, 9),), None, "height")
    assert odd == Setting("odd", int, 1)
    assert needed == Setting("needed", str, REQUIRED, (), None, "a name")
    assert describe(Upper)[1].space == IntegerSpace(1, 3)


def test_the_options_of_a_function_are_settings() -> None:
    """These are its keyword-only parameters. Each number of a list is within the bounds."""

    def build(shape: int, *, widths: Annotated[list[int], AtLeast(1), "widths"], keep: bool = True) -> None: ...

    widths, keep = describe(build)
    assert widths == Setting("widths", list[int], REQUIRED, (AtLeast(1),), None, "widths")
    assert keep == Setting("keep", bool, True)
    widths.check([1, 5], "model.widths")
    with pytest.raises(BadInput, match=r"model\.widths: \[5, 0\].*at least 1"):
        widths.check([5, 0], "model.widths")


PLUGIN = '''
from dataclasses import dataclass
from typing import Annotated

from fedweave.families import GlobalModel, SplitClient
from fedweave.engine.registry import method
from fedweave.settings import Choices, LogSpace, Weight


@method("mine")
@dataclass(frozen=True, kw_only=True)
class Mine(SplitClient, GlobalModel):
    """A method of somebody's own."""

    pull: Annotated[Weight, LogSpace(0.1, 10), "strength of the pull"] = 1.0
    steps: Annotated[int, Choices((1, 2)), "steps"] = 1
    label = "Mine"
'''


def load(path: Path, monkeypatch: pytest.MonkeyPatch, text: str = PLUGIN) -> ModuleType:
    """Write a file with a method and import it. The table is restored after the test."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, path.stem, module)
    monkeypatch.setitem(METHODS, "mine", METHODS.get("mine"))
    METHODS.pop("mine") if METHODS["mine"] is None else None
    spec.loader.exec_module(module)
    return module


def test_a_method_is_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A study can name it and change a value and a space of it. All other values and spaces are those of the class."""
    load(tmp_path / "plugin.py", monkeypatch)
    (tmp_path / "base.yaml").write_text((ROOT / "studies" / "base.yaml").read_text())
    study = {
        "tasks": {"digits": {"methods": ["mine", "local"]}},
        "methods": {"mine": {"steps": 2}},
        "tune": {"trials": 2, "spaces": {"mine": {"pull": {"high": 5.0}}}},
    }
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(study))
    content = catalogue.expand("own", tmp_path)
    assert content["methods"] == {"fedavg_ft": {}, "local": {}, "mine": {"pull": 1.0, "steps": 2}}  # controls are added
    rate = {"train.lr": {"low": 0.003, "high": 0.3, "log": True}}
    pull = {"low": 0.1, "high": 5.0, "log": True}
    mine = {**rate, "pull": pull, "steps": {"choices": [1, 2]}}
    assert content["tune"]["spaces"] == {"fedavg_ft": rate, "local": rate, "mine": mine}
    run = validate.check(spec.parse(content)).run("digits-mine")
    assert objects.hyperparameters(validate.check_run(run, "params.yaml")) == {"pull": 1.0, "steps": 2}


def test_a_name_has_one_class(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one is refused in a line with both files. A file that is read again replaces its own class."""
    first, second = tmp_path / "one.py", tmp_path / "two.py"
    load(first, monkeypatch)
    again = load(first, monkeypatch)
    assert METHODS["mine"] is again.Mine
    with pytest.raises(BadInput) as caught:
        load(second, monkeypatch)
    assert all(word in str(caught.value) for word in ("method 'mine'", str(first), str(second), "rename"))
    assert METHODS["mine"] is again.Mine
    with pytest.raises(BadInput, match=r"'ditto' is defined twice, in .*methods/ditto\.py and in .*one\.py"):
        register(METHODS, "method", "ditto", again.Mine)


def test_the_name_of_a_built_in_method_is_taken(tmp_path: Path) -> None:
    """Also in a process that has not imported the built-in methods yet: there, their import would fail later."""
    code = """
        from dataclasses import dataclass
        import fedweave as fw

        @fw.method("fedavg")
        @dataclass(frozen=True, kw_only=True)
        class Mine(fw.families.SplitClient, fw.families.GlobalModel):
            label = "Mine"
    """
    file = tmp_path / "mine.py"
    file.write_text(textwrap.dedent(code))
    result = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, check=False)
    last = result.stderr.splitlines()[-1]
    assert "method 'fedavg' is defined twice, in " in last
    assert last.endswith(f"methods/fedavg.py and in {file}; rename yours")


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("ditto", {"lambd": 1}, "Ditto: lambd=1: unknown setting; did you mean 'lam'? its settings: Ditto(lam=..."),
        ("fedavg", {"graph": "uniform"}, "FedAvg: graph='uniform': unknown setting; it has no settings"),
        ("fedfomo", {"grap": "self"}, "FedFomo: grap='self': unknown setting; did you mean 'graph'?"),
    ],
)
def test_an_unknown_setting_is_named(name: str, given: dict[str, Any], words: str) -> None:
    """With the closest one, and all that the method has."""
    with pytest.raises(BadInput) as caught:
        METHODS[name](**given)
    assert str(caught.value).startswith(words)


def test_a_setting_is_given_by_name() -> None:
    """Python's own error counts arguments."""
    with pytest.raises(BadInput, match=r"Ditto: 0\.5 has no name; its settings: Ditto\(lam=\.\.\., personal_epochs="):
        METHODS["ditto"](0.5)
    changed = replace(METHODS["ditto"](lam=0.5), lam=0.25)
    assert copy.deepcopy(changed).lam == 0.25


def test_a_missing_setting_is_named() -> None:
    """Of a class that is not registered and has a setting without a default. Copies need no value."""
    method = dataclass(frozen=True, kw_only=True)(
        type("Mine", (METHODS["fedavg"],), {"label": "Mine", "__annotations__": {"step": float}})
    )
    with pytest.raises(BadInput, match=r"^Mine: step: missing, and it has no default; its settings: Mine\(step="):
        method()
    with pytest.raises(AssertionError, match=r"^Mine on rows: Mine: step: missing, and it has no default"):
        check_method(method)
    assert copy.deepcopy(method(step=0.5)).step == replace(method(step=1.0), step=0.5).step == 0.5


def test_a_setting_has_a_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comparison starts from it."""
    monkeypatch.setattr(registry, "METHODS", {})
    hooks = {"label": "Mine", "__annotations__": {"step": float}}
    cls = dataclass(frozen=True, kw_only=True)(type("Mine", (METHODS["fedavg"],), hooks))
    with pytest.raises(BadInput, match=r"'mine': Mine: the setting step has no default, .*write step: TYPE = "):
        method("mine")(cls)


def test_an_object_that_is_not_a_method_is_refused() -> None:
    with pytest.raises(BadInput, match=r"method 'odd': .*Upper.* is not a method"):
        method("odd")(Upper)
    assert "odd" not in METHODS


def test_a_choice_is_written_as_a_study_writes_it() -> None:
    """Each kind of space has the form of an entry in `tune.spaces`."""
    assert Choices((1, "x")).entry() == {"choices": [1, "x"]}
    assert LogSpace(1, 10).entry() == {"low": 1.0, "high": 10.0, "log": True}
    assert [type(value) for value in IntegerSpace(1, 10).entry().values()] == [int, int]
    assert [type(value) for value in LinearSpace(1, 10).entry().values()] == [float, float]


def test_the_command_line_lists_settings(capsys: pytest.CaptureFixture[str]) -> None:
    """The settings of a method or of a client model. Other names have none."""
    for what, name, words in (
        ("methods", "fedaghn", ("server_sign", "literal", "0.03", "p0")),
        ("models", "gcn", ("hidden", "128", "dropout", "0.99")),
    ):
        main.list_(what, name)
        output = capsys.readouterr().out
        assert [word for word in words if word not in output] == []
    with pytest.raises(BadInput, match=r"fedweave list studies: 'quick'.*methods, models and partitions"):
        main.list_("studies", "quick")
