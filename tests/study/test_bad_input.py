"""Bad input other than a value in params.yaml: one line names the key, the value and the way out, before any work."""

import itertools
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from dvc.utils.serialize import parse_yaml

from fedweave import data
from fedweave.errors import BadInput, Busy, Diverged, choose, relocate
from fedweave.methods import METHODS
from fedweave.pipelines.commands import main, single_run, studies
from fedweave.runs import repetition, tasks
from fedweave.study import config, spec, validate
from tests.study.test_spec import altered, good, refused

ROOT = Path(__file__).resolve().parents[2]


DIGITS, GRAPH = "tasks/digits", "tasks/graph"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("study: a\nseeds: [0]\nstudy: b\n", ["line 3", '"study"', "twice"]),
        ("runs: {a: {task: t, method: m}, b: {}, a: {}}\n", ["line 1", '"a"', "twice"]),
        ("seeds: [" + "1" * 5000 + "]\n", ["digits"]),
        ("about: 2001-99-99\n", ["month"]),
        ("[" * 3000, ["line 2"]),
        ("a: &b [*b]\n", ["recursion"]),
        ("a: 2001-01-01\n", ["a: 2001-01-01 is a date", "quotes"]),
        ("- a\n- b\n", ["is not a mapping of keys to values", "fedweave study show"]),
        ("about: !!python/object/apply:os.system [true]\n", ["line 1", "python/object"]),
    ],
)
def test_ambiguous_and_unsafe_files_are_refused(text: str, words: list[str], tmp_path: Path) -> None:
    """Repeated keys, numbers and depths that Python refuses, and code in place of data."""
    (tmp_path / "params.yaml").write_text(text)
    with refused(str(tmp_path / "params.yaml"), *words):
        spec.read_yaml(tmp_path / "params.yaml")


def test_a_folder_or_a_binary_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "params.yaml").mkdir()
    with refused("params.yaml", "not found"):
        spec.load(tmp_path / "params.yaml")
    (tmp_path / "other.yaml").write_bytes(b"\xff\xfe\x00study")
    with refused("other.yaml", "not YAML"):
        spec.load(tmp_path / "other.yaml")


def test_a_missing_gpu_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The refusal comes before data are read."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    run = spec.parse(altered(f"{DIGITS}/train/device", "cuda")).run("digits-ditto")
    with refused("train.device", "cuda", "use auto or cpu"):
        repetition.prepare(run, None, None)


# task, its model, the data set that it gets -> words.
MISMATCHES: list[tuple[str, dict[str, Any], str, list[str]]] = [
    ("digits", {"name": "gcn"}, "digits", ["model.name", "'gcn'", "digits"]),
    ("digits", {"name": "gru"}, "digits", ["model", "gru", "digits"]),
    ("digits", {"name": "resnet18"}, "digits-graph", ["model.name", "resnet18", "digits-graph"]),
    ("digits", {"name": "aghn_cnn"}, "digits", ["model", "aghn_cnn", "digits"]),
    ("graph", {"name": "mlp"}, "digits-graph", ["model.name", "'mlp'", "digits-graph"]),
]


@pytest.mark.parametrize(("task", "model", "name", "words"), MISMATCHES)
def test_models_that_do_not_fit_the_data_are_refused(
    task: str, model: dict[str, Any], name: str, words: list[str]
) -> None:
    """A model is applied to one input before any training."""
    content = good("fedavg", task)
    content["tasks"][task]["model"] = model
    assert_mismatch_refused(content, name, words)


@pytest.mark.parametrize(
    ("task", "name", "setting", "words"),
    [
        (
            "graph",
            "digits-graph",
            {"augment": 2},
            ["tasks.graph.train.augment", "2 pixels", "digits-graph has no images"],
        ),
        ("digits", "digits", {"augment": 8}, ["tasks.digits.train.augment", "8 pixels", "images of 8 x 8"]),
        ("graph", "digits-graph", {"precision": "bfloat16"}, ["tasks.graph.train.precision", "'bfloat16'", "tf32"]),
    ],
)
def test_training_that_does_not_fit_the_data_is_refused(
    task: str, name: str, setting: dict[str, Any], words: list[str]
) -> None:
    content = good("fedavg", task)
    content["tasks"][task]["train"] |= setting
    assert_mismatch_refused(content, name, words)


def assert_mismatch_refused(content: dict[str, Any], name: str, words: list[str]) -> None:
    """Preparing the run on the data set `name` is refused in a line with `words`."""
    run = spec.parse(content).run("a")
    dataset = data.load(name, "unused")
    options = (
        {"name": "metis", "clients": 4, "seed": 0}
        if dataset.kind == "graph"
        else {"name": "iid", "clients": 4, "seed": 0}
    )
    with refused(*words):
        tasks.build_task(run, dataset, data.partition(dataset, **options))


def test_a_run_from_the_command_line_is_refused_before_it_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An impossible folder, and a value that is not YAML."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(repetition, "run_repetition", lambda *_: pytest.fail("it trained"))
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="file"):
        single_run.run("fedavg", output=tmp_path / "file")
    with pytest.raises(BadInput, match=r"--set mu: '\[' is not a YAML value"):
        single_run.run("fedprox", settings=["mu=["])
    with pytest.raises(BadInput, match="--dataset: 'fedaghn' is unknown"):
        single_run.run("fedprox", dataset="fedaghn")
    with pytest.raises(BadInput, match=r"--set train\.rounds: 7 and 5 both; give one"):
        single_run.run("fedprox", rounds=5, settings=["train.rounds=7"])
    with pytest.raises(BadInput, match="give one of them"):
        single_run.run("fedprox", rounds=5, settings=["train=1"])
    with pytest.raises(BadInput, match="--set mu: 1 and 2 both"):
        single_run.run("fedprox", settings=["mu=1", "mu=2"])
    with pytest.raises(BadInput, match=r"^--set mu: -1 is out of range; it must be at least 0"):
        single_run.run("fedprox", settings=["mu=-1"])
    with pytest.raises(BadInput, match=r"^--set model\.hiden: small_cnn has no options"):
        single_run.run("fedprox", settings=["model.hiden=3"])
    with pytest.raises(BadInput, match=r"partition: 3 is not a mapping of settings; for example partition\.name=iid"):
        single_run.run("fedavg", settings=["partition=3"])
    with pytest.raises(BadInput, match=r"model: 'mlp' is not a mapping of settings; for example model\.name=mlp"):
        single_run.run("fedavg", settings=["model=mlp"])


NUMBERS = {
    "1e-2": 0.01,
    "1e5": 1e5,
    "1.5e-3": 0.0015,
    "-2E+3": -2000.0,
    "1.e2": 100.0,
    "0.5e1": 5.0,
    "010": 10,
    "yes": "yes",
    "1:30": "1:30",
    "0o17": 15,
    "'1e-2'": "1e-2",
    "e5": "e5",
    "1e": "1e",
}


@pytest.mark.parametrize(("text", "value"), NUMBERS.items())
def test_numbers_with_exponents_are_numbers(text: str, value: float | str, tmp_path: Path) -> None:
    """Files and --set agree. Quoted numbers stay texts, also in a written params.yaml."""
    assert single_run.parse_pairs([f"lam={text}"]) == {"lam": value}
    (tmp_path / "params.yaml").write_text(f"lam: {text}\n")
    assert spec.read_yaml(tmp_path / "params.yaml") == {"lam": value}
    content = {"study": "quick", "methods": {"1e3": {"lam": value}}, "tune": {"seeds": [value]}}
    (tmp_path / "params.yaml").write_text(studies.dump(content))
    assert spec.read_yaml(tmp_path / "params.yaml") == content


def all_texts(letters: str, count: int) -> list[str]:
    """All texts of length `count` from these letters."""
    return ["".join(drawn) for drawn in itertools.product(letters, repeat=count)]


WORDS = "yes No ON off y true True ~ null .inf .nan 0b11 0xFF 1_000 1_000.5 1.5e+3 12:30:45.5 0777 1e-2 +1e5 .5e1 -0"


SCALARS = [*(text for count in (1, 2, 3) for text in all_texts("019+-._:eox", count)), *all_texts("01.+e:", 4)]
SCALARS += WORDS.split()


LONG = pytest.param(all_texts("019+-._:eox", 4), marks=pytest.mark.acceptance)
each_list = pytest.mark.parametrize("scalars", [SCALARS, LONG], ids=["quick", "whole"])


@each_list
def test_dvc_and_fedweave_read_the_same_values(scalars: list[str]) -> None:
    """Values and types agree for everything that looks like a number, a time, or a word for true or false."""
    for start in range(0, len(scalars), 50):
        for text, ours in accepted_texts([f"k{i}: {scalars[i]}" for i in range(start, min(start + 50, len(scalars)))]):
            theirs = parse_yaml(text, "params.yaml")
            assert repr(ours) == repr(theirs)
            assert [type(value) for value in ours.values()] == [type(value) for value in theirs.values()]


def accepted_texts(lines: list[str]) -> list[tuple[str, dict[str, Any]]]:
    """Texts of as many lines as possible, with their values. Together they have every line that is not bad input."""
    text = "\n".join(lines)
    try:
        return [(text, config.load_yaml(text))]
    except BadInput:
        half = len(lines) // 2
        return accepted_texts(lines[:half]) + accepted_texts(lines[half:]) if half else []


@each_list
def test_texts_stay_texts_in_a_written_params_file(scalars: list[str]) -> None:
    """They stay texts for fedweave and DVC, even if they look like other values."""
    content = {"study": "quick", "about": "no", "methods": {"m": dict(enumerate(scalars))}, "tune": {"words": scalars}}
    content["methods"]["m"] = {f"k{key}": text for key, text in content["methods"]["m"].items()}
    text = studies.dump(content)
    assert config.load_yaml(text) == content
    assert parse_yaml(text, "params.yaml") == content


@pytest.mark.parametrize(
    "settings", [{"train": 1, "train.rounds": 5}, {"train.lr": 1, "train": {"lr": 2}}, {"lam.a": 1, "lam": 2}]
)
def test_settings_that_override_each_other_are_refused(settings: dict[str, Any]) -> None:
    """Neither is ignored without a message, in a file or on the command line."""
    content = good()
    content["runs"]["digits-ditto"]["set"] = settings
    with pytest.raises(BadInput, match="give one of them"):
        validate.check(spec.parse(content))


@pytest.mark.parametrize(
    ("typed", "suggestion"),
    [
        ("avg", "did you mean 'fedavg' or 'fedavg_ft' or 'fedavgm' or 'lg_fedavg'?"),
        ("AVG_ft", "did you mean 'fedavg_ft'?"),
        ("e", "is unknown; choices"),
    ],
)
def test_names_that_contain_the_typed_word_are_suggested(typed: str, suggestion: str) -> None:
    """The most similar name is suggested too."""
    with refused(suggestion):
        choose(typed, METHODS, "--method")


@pytest.mark.parametrize("message", ["[/]: unknown", "seeds: [.nan] must be different", "[x]quick"])
def test_an_error_shows_text_in_brackets(message: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The error is one line on the error stream."""
    with pytest.raises(SystemExit) as ended:
        main.run_command(lambda: (_ for _ in ()).throw(BadInput(message)))
    assert ended.value.code == 2
    assert capsys.readouterr().err == f"error: {message}\n"


def test_long_words_are_shortened() -> None:
    """After a path of thousands of characters, the rest of the line is still visible."""
    message = str(BadInput(f"{'x' * 5000}.csv: there is no such file; check the path"))
    assert len(message) < 300
    assert message.endswith(".csv: there is no such file; check the path")


def test_an_unknown_study_names_the_most_similar_one_and_the_command(tmp_path: Path) -> None:
    """The names of all studies would fill the screen. A study that another one is like is named, too."""
    (tmp_path / "mine.yaml").write_text("like: quik\n")
    for name, place in (("quik", "study"), (str(tmp_path / "mine.yaml"), f"{tmp_path}/mine.yaml: like")):
        with pytest.raises(BadInput) as caught:
            studies.select_study(name, None, None)
        message = str(caught.value)
        assert message.startswith(f"{place}: 'quik' is unknown; did you mean 'quick'")
        assert message.endswith("are listed by: fedweave list studies")
        assert len(message) < 300


def test_a_few_names_are_all_in_the_message() -> None:
    with pytest.raises(BadInput, match=r"^study: 'quick' is unknown; choices: first$"):
        choose("quick", ["first"], "study", "fedweave list studies")


# place, places of a surface -> what it shows of a problem there.
MOVES = {
    "a key is an option": ("params.yaml: runs.a.train.lr", {"params.yaml: runs.a": "--set "}, "--set train.lr: is bad"),
    "a run is an option": ("params.yaml: runs.a", {"params.yaml: runs.a": "--set "}, "--set is bad"),
    "names that begin alike": ("runs.ab.lr", {"runs.a": "other"}, "runs.ab.lr: is bad"),
    "the longest one counts": (
        "f(): runs.a.train.lr",
        {"f(): runs.a": "a", "f(): runs.a.train": "f()"},
        "f().lr: is bad",
    ),
    "nothing before it": ("compare(): lr", {"compare()": ""}, "lr: is bad"),
    "a file before it": ("time", {"time": "a.csv: time"}, "a.csv: time: is bad"),
    "every place": ("partition.seed", {"": "ablate.b."}, "ablate.b.partition.seed: is bad"),
    "every other place": ("params.yaml: seeds", {"": "ablate.b.", "params.yaml": "params.yaml"}, None),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_surface_shows_an_error_at_its_own_place(name: str) -> None:
    """The problem is not rewritten, also if it has the words of the place. A text without a place moves as well."""
    place, places, shown = MOVES[name]
    for error in (BadInput(place, "is bad"), Busy(f"{place}: is bad")):
        with pytest.raises(type(error)) as caught, relocate(places):
            raise error
        assert type(caught.value) is type(error)
        assert str(caught.value) == (shown or str(error))
    problem = "needs runs.a and compare(): time"
    assert BadInput("time", problem).move(MOVES["a file before it"][1]).problem == problem


def test_the_data_of_an_error_survive_another_process() -> None:
    """Searches and repetitions raise errors in processes of their own."""
    for error in (BadInput("runs.a", "is bad"), Diverged("runs.a", "diverged", "lower train.lr")):
        copied = pickle.loads(pickle.dumps(error))
        assert (str(copied), copied.place, copied.problem) == (str(error), error.place, error.problem)
