"""The catalogue covers the papers' printed results, and a study may build on others."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from fedweave.errors import BadInput
from fedweave.methods import METHODS
from fedweave.results import published
from fedweave.study import catalogue, objects, spec, validate
from tests.study.test_spec import refused

ROOT = Path(__file__).resolve().parents[2]
FIGURES = {
    "fedaghn": ["fig4", "fig5", "app_fig1", "app_fig2"],
    "pfedgat": ["fig2", "fig3", "fig4"],
    "pfedla": ["fig1", "fig5", "fig6", "fig7"],
    "shn": [
        "fig2",
        "fig2c",
        "fig2d",
        "fig3a",
        "fig3b",
        "fig4",
        "fig6",
        "fig7",
        "fig8",
        "fig9",
        "fig10",
        "fig11",
        "fig12",
    ],
    "fedsheafhn": ["fig2", "fig3", "fig4", "fig5"],
}
NAMES = [*catalogue.studies(ROOT / "studies")]


@cache
def expanded(name: str) -> dict[str, Any]:
    """A study as in params.yaml. Callers must not change it."""
    return catalogue.expand(name, ROOT / "studies")


def columns(name: str) -> list[published.Reference]:
    """The printed columns that the tasks of a study name."""
    tasks = expanded(name)["tasks"].values()
    return [
        published.reference(task["published"], task["dataset"], task["setting"])
        for task in tasks
        if task.get("published")
    ]


def test_every_figure_is_a_study() -> None:
    """There is one file per figure with numbers."""
    assert [
        f"{paper}/{name}" for paper, names in FIGURES.items() for name in names if f"{paper}/{name}" not in NAMES
    ] == []


@pytest.mark.parametrize("paper", published.PAPERS)
def test_every_printed_column_has_a_study(paper: str) -> None:
    """Every printed column has a study to compare it with. Averages over columns, and stages of one run, need no study
    of their own.
    """
    references = (column for name in NAMES for column in columns(name) if column.paper == paper)
    covered, printed = (
        {(r.table, r.dataset, r.setting.rpartition("/")[0] if "grouped" in r.setting else r.setting) for r in rows}
        for rows in (references, published.rows(paper))
    )
    assert {column for column in printed - covered if column[2] != "avg"} == set()


def test_the_default_study_has_enough_clients_trials_and_controls() -> None:
    """At least twenty clients with own rows in every task, searches of at least four trials, and both controls."""
    study = expanded("quick")
    assert all(task["partition"]["clients"] >= 20 for task in study["tasks"].values())
    assert not any("overlap" in task["partition"]["name"] for task in study["tasks"].values())
    assert study["tune"]["trials"] >= 4
    for task in study["tasks"]:
        assert {"local", "fedavg_ft"} <= {run["method"] for run in study["runs"].values() if run["task"] == task}


def test_studies_of_tables_have_the_names_of_the_papers() -> None:
    """A study with the name of a table is compared with that table, unless it is reduced."""
    for name in NAMES:
        paper, _, table = name.rpartition("/")
        if table.startswith(("table", "app_table")) and not table.endswith("-reduced"):
            printed_names = {
                "app_table1": "appendix_table1",
                "app_table2": "appendix_table2",
                "table3b": "table3b_gnn_on_collab_graph",
            }
            assert {(r.paper, r.table) for r in columns(name)} == {(paper, printed_names.get(table, table))}, name


def test_reduced_studies_claim_no_full_budget() -> None:
    """Their results are never printed next to a paper's number."""
    assert [name for name in NAMES if name.endswith("-reduced") and any(r.full for r in columns(name))] == []


def test_local_training_and_fine_tuning_are_in_every_study() -> None:
    """Every task has them, with their own settings. Without them, no result can be compared with these two."""
    without = {name for name in NAMES if "without_controls" in catalogue.overlay(name, ROOT / "studies")}
    for name in NAMES:
        study = expanded(name)
        runs = {key: item["method"] for key, item in study["runs"].items()}
        tasks = study["tasks"].items()
        if name in without:  # counts, a first round, or an attack on uploads that controls do not send
            assert all(task["train"]["rounds"] == 1 or "attack" in task for _, task in tasks), name
        else:
            lacking = [key for key, _ in tasks for m in ("local", "fedavg_ft") if runs.get(f"{key}-{m}") != m]
            assert lacking == [], name
            parsed = spec.parse(study, name)
            tuned = [key for key, method in runs.items() if method in ("fedavg_ft", "fedprox_ft")]
            assert {objects.evaluation_point(parsed.run(key)) for key in tuned} == {"post"}, (
                name
            )  # at "pre" it is FedAvg
    assert len(without) == 11


# Clients of all tasks, and the methods of every task, for studies without a printed column; None: any clients.
CONTENT = {
    "fedaghn/app_fig2": ({"cifar100 grouped"}, {"cfl", "heurfedamp", "fedaghn"}),
    "fedsheafhn/table1": (None, {"fedpub", "fedpub-detached"}),
    "fedsheafhn/table2": (None, {"fedpub", "fedpub-detached"}),
    "pfedgat/fig2": ({"cifar10 iid", "cifar10 clusters", "cifar10 dirichlet 0.1", "cifar10 dirichlet 0.5"}, {"local"}),
    "pfedgat/table1": (None, {"cfl", "heurfedamp", "pfedgat-gatv2"}),
    "pfedgat/table1-reduced": (None, {"cfl", "heurfedamp", "pfedgat-gatv2"}),
    "pfedla/fig6": ({f"{name} listed" for name in ("cifar10", "emnist", "fashion-mnist")}, {"pfedla-rate1"}),
    "pfedla/fig7": ({"cifar10 classes", "emnist classes"}, {"pfedla", "heurpfedla"}),
    "shn/fig4": ({"cifar100 lda 0.1"}, {"ghn", "shn"}),
    "shn/fig11": ({"cifar100 superclass"}, {"ghn", "shn"}),
}


@pytest.mark.parametrize("name", CONTENT)
def test_studies_of_figures_and_variants_are_complete(name: str) -> None:
    study, (clients, methods) = expanded(name), CONTENT[name]
    named = set()
    for key, task in study["tasks"].items():
        parts = (
            task["dataset"],
            task["partition"]["name"],
            task["partition"].get("beta", task["partition"].get("alpha")),
        )
        named.add(" ".join(str(part) for part in parts if part is not None))
        assert {f"{key}-{method}" for method in methods} <= study["runs"].keys()
    assert clients in (None, named)


def test_controls_are_added_once_and_only_to_tasks_of_base(tmp_path: Path) -> None:
    one = "tasks:\n  a: {methods: [fedprox]}\n  b: {methods: [{local: {set: {train.lr: 1}}}]}\n"
    bad, two = "like: one\nwithout_controls: true\n", "like: one\nwithout_controls: counts only\n"
    write(tmp_path, one=one, two=two, bad=bad)
    assert [*catalogue.expand("one", tmp_path)["runs"]] == ["a-fedprox", "b-local"]
    base = tmp_path / "base.yaml"
    base.write_text("controls: [local, fedavg_ft]\n" + base.read_text())
    study = catalogue.expand("one", tmp_path)
    assert [*study["runs"]] == ["a-local", "a-fedavg_ft", "a-fedprox", "b-fedavg_ft", "b-local"]
    assert study["runs"]["b-local"]["set"] == {"train.lr": 1}
    assert [*catalogue.expand("two", tmp_path)["runs"]] == ["a-fedprox", "b-local"]
    with pytest.raises(BadInput, match=r"bad\.yaml: without_controls: True"):
        catalogue.expand("bad", tmp_path)


def write(folder: Path, **files: str) -> None:
    """A folder of studies with a base of two tasks."""
    base = "seeds: [0]\ntasks: {a: {dataset: d, train: {rounds: 9}}, b: {dataset: e}}\n"
    for name, text in {"base": base, **files}.items():
        (folder / f"{name}.yaml").write_text(text)


def test_like_copies_tasks_methods_and_seeds(tmp_path: Path) -> None:
    """It copies the named tasks, or all of them. The study's own changes are applied last."""
    tasks = "tasks:\n  a: {methods: [fedprox, local]}\n  b: {methods: [fedprox]}\n"
    files = {
        "one": f"about: one\nseeds: [5]\n{tasks}methods: {{fedprox: {{mu: 2.0}}}}\n"
        "ablate: {part: {run: a-fedprox, variants: {}}}\n",
        "two": "about: two\nlike: one\ntasks: {a: {methods: [local], train: {epochs: 3}}}\n",
        "more": "tasks: {c: {base: a, methods: [local]}}\n",
    }
    write(tmp_path, **files, all="like: one\n", other="like: [one, more]\n")
    two = catalogue.expand("two", tmp_path)
    assert (two["about"], two["seeds"], two["ablate"]) == ("two", [5], {})
    assert two["runs"] == {"a-local": {"task": "a", "method": "local"}}
    assert two["tasks"] == {"a": {"dataset": "d", "train": {"rounds": 9, "epochs": 3}}}
    assert catalogue.expand("all", tmp_path)["methods"] == {"fedprox": {"mu": 2.0}, "local": {}}
    assert [*catalogue.expand("all", tmp_path)["runs"]] == ["a-fedprox", "a-local", "b-fedprox"]
    assert [*catalogue.expand("other", tmp_path)["tasks"]] == ["a", "b", "c"]


def test_a_part_of_a_study_has_the_results_of_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has only the requested runs, with their fingerprints in the whole. `fedweave study use`
    also leaves a part.
    """
    from fedweave.pipelines.commands import studies

    whole = expanded("fedsheafhn/table1")
    part = studies.select_study("fedsheafhn/table1", ["cora-disjoint10"], ["local", "fedpub-detached"])
    assert [*part["runs"]] == ["cora-disjoint10-local", "cora-disjoint10-fedpub-detached"]
    assert ([*part["tasks"]], part["datasets"], [*part["methods"]]) == (
        ["cora-disjoint10"],
        ["cora"],
        ["fedpub", "local"],
    )
    for run in part["runs"]:
        assert spec.parse(part, "part").run(run).fingerprint() == spec.parse(whole, "whole").run(run).fingerprint()
    assert studies.select_study("quick", ["shoulder"], None)["ablate"].keys() == {"fedaghn-parts"}
    assert studies.select_study("quick", ["us-income"], None)["ablate"] == {}
    monkeypatch.setattr(spec, "PARAMS", tmp_path / "params.yaml")
    for words in (["cora-disjoint10"], ["local"]), (None, None), (None, ["local"]):
        studies.use("fedsheafhn/table1", *words)
    lines = capsys.readouterr().out.splitlines()
    assert [line.endswith("reproduce it with: dvc repro") for line in lines] == [True] * 3
    spec.PARAMS.write_text(spec.PARAMS.read_text().replace("rounds: 100", "rounds: 101", 1))
    with pytest.raises(BadInput, match="save it as"):
        studies.use("quick")


@pytest.mark.parametrize(
    ("tasks", "methods", "named"),
    [
        (["cora"], [], "--task.*cora-disjoint10"),
        ([], ["fedavgg"], "--method.*fedavg"),
        (["digits-graph"], ["sfl"], "--method: sfl not in digits-graph"),
    ],
)
def test_a_missing_part_is_refused(tasks: list[str], methods: list[str], named: str) -> None:
    from fedweave.pipelines.commands import studies

    with pytest.raises(BadInput, match=named):
        studies.select_study("fedsheafhn/table1" if tasks == ["cora"] else "zoo", tasks, methods)


FULL = """
study: mine
seeds: [0]
tasks: {t: {dataset: digits, setting: iid, partition: {name: iid, clients: 3, seed: 0}, model: {name: mlp},
            train: {rounds: 1, lr: 0.1}}}
runs: {t-local: {task: t, method: local}, t-ditto: {task: t, method: ditto}}
methods: {local: {}, ditto: {}}
"""


def test_a_part_of_a_full_params_yaml_needs_no_optional_block(tmp_path: Path) -> None:
    """Blocks for tuning, data sets and ablations may be missing. Errors are named before a part is selected."""
    from fedweave.pipelines.commands import studies

    file = tmp_path / "mine.yaml"
    file.write_text(FULL)
    part = studies.select_study(str(file), None, ["local"])
    assert ([*part["runs"]], [*part["methods"]], part["datasets"]) == (["t-local"], ["local"], ["digits"])
    spec.parse(part, "part")
    for wrong, message in {
        FULL + "ablate: {parts: 3}": "ablate.parts: give `run`",
        FULL.replace("task: t, method: local", "method: local"): "runs.t-local.task: missing",
        FULL.replace("methods: {local: {}, ditto: {}}", ""): "methods: missing; it must be a mapping with entries",
    }.items():
        file.write_text(wrong)
        with pytest.raises(BadInput, match=message):
            studies.select_study(str(file), None, ["local"])


def test_a_study_that_is_shown_into_a_file_is_complete(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """No line is cut, for any width of the terminal."""
    from fedweave.pipelines.commands import studies

    studies.show("pfedgat/recipe")
    (tmp_path / "params.yaml").write_text(capsys.readouterr().out)
    assert spec.read_yaml(tmp_path / "params.yaml") == expanded("pfedgat/recipe")


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"one": "like: two\n", "two": "about: nothing\n"}, ["studies/two.yaml: tasks", "missing"]),
        ({"one": "like: nothing\n"}, ["studies/one.yaml: like: 'nothing' is unknown"]),
        ({"one": "like: one\n"}, ["studies/one.yaml: like", "one -> one"]),
        ({"one": "like: two\n", "two": "like: [one]\n"}, ["studies/two.yaml: like", "one -> two -> one"]),
        ({"one": "like: 3\n"}, ["studies/one.yaml: like: 3", "list of names"]),
        (
            {"one": "like: two\ntasks: [a]\n", "two": "tasks: {a: {methods: [local]}}\n"},
            ["studies/one.yaml: tasks: ['a']", "not a block"],
        ),
        (
            {"one": "like: two\ntasks: {a: b}\n", "two": "tasks: {a: {methods: [local]}}\n"},
            ["studies/one.yaml: tasks.a: 'b'"],
        ),
    ],
)
def test_an_invalid_like_is_refused(files: dict[str, str], words: list[str], tmp_path: Path) -> None:
    """The line names the file and the chain of studies."""
    write(tmp_path, **files)
    with refused(*words):
        catalogue.expand("one", tmp_path)


def test_a_study_may_replace_a_range_by_choices(tmp_path: Path) -> None:
    """Choices replace the range completely. A study that changes one end of a range keeps the rest."""
    spaces = "tune: {trials: 1, spaces: {fedprox: {mu: {choices: [0.1]}, train.lr: {high: 0.1}}}}\n"
    folder = written(tmp_path, f"{spaces}tasks: {{digits: {{methods: [fedprox]}}}}\n")
    spaces = catalogue.expand("mine", folder)["tune"]["spaces"]["fedprox"]
    assert spaces == {"mu": {"choices": [0.1]}, "train.lr": {"low": 0.003, "high": 0.1, "log": True}}


def test_figures_use_the_runs_of_their_tables() -> None:
    """A figure that draws a table has no runs of its own."""
    for figure, tables in {
        "shn/fig4": ("shn/table2", "shn/table3", "shn/table4"),
        "shn/fig11": ("shn/table2", "shn/table3", "shn/table4"),
        "fedsheafhn/fig3": ("fedsheafhn/table2",),
    }.items():
        prints = {spec.parse(expanded(t), t).run(key).fingerprint() for t in tables for key in expanded(t)["runs"]}
        study = spec.parse(expanded(figure), figure)
        assert {study.run(key).fingerprint() for key in study.runs} <= prints


def written(tmp_path: Path, text: str) -> Path:
    """A folder of studies with the project's base and one study, `mine`."""
    (tmp_path / "base.yaml").write_text((ROOT / "studies" / "base.yaml").read_text())
    (tmp_path / "mine.yaml").write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("sedes: [4]\ntasks: {digits: {methods: [fedavg]}}", ["studies/mine.yaml", "sedes", "did you mean 'seeds'"]),
        (
            "methods: {fedavgg: {mu: 3}}\ntasks: {digits: {methods: [fedavg]}}",
            ["studies/mine.yaml: methods", "did you mean 'fedavg'"],
        ),
        (
            "tasks: {digits: {methods: [{fast: {method: fedavg, sett: {train.lr: 1}}}]}}",
            ["tasks.digits.methods", "did you mean 'set'"],
        ),
        (
            "tasks: {digits: {protocl: fedpub, methods: [fedavg]}}",
            ["studies/mine.yaml: tasks.digits: 'protocl'", "did you mean 'protocol'", "base", "methods"],
        ),
        (
            "tasks: {digits: {methods: [{fedaghn: {graph: uniform}}]}}",
            ["tasks.digits.methods", "'graph' is a setting; write it under set: {graph: uniform}"],
        ),
        (
            "tasks: {digits: {methods: [{slow: {method: fedavg, train.lr: 0.01}}]}}",
            ["tasks.digits.methods", "write it under set: {train.lr: 0.01}"],
        ),
        ("tasks: {digits: {methods: fedavg}}", ["tasks.digits.methods", "list"]),
        ("tasks: {digits: {}}", ["tasks.digits.methods", "missing"]),
        ("tasks: [digits]", ["studies/mine.yaml: tasks", "not a block"]),
        ("about: nothing", ["studies/mine.yaml: tasks", "missing"]),
        ("tasks: {cora: {protocol: fedbub, methods: [local]}}", ["tasks.cora.protocol", "'fedbub'", "fedpub"]),
        ("tasks: {digits: {methods: [{fast: fedavg}]}}", ["tasks.digits.methods", "'fedavg'", "nor a variant"]),
        ("tasks: {digits: {methods: [{}]}}", ["tasks.digits.methods", "{}", "one variant"]),
        (
            "tasks: {digits: {methods: [{a: {method: local}, b: {method: fedavg}}]}}",
            ["tasks.digits.methods", "'b'", "one variant"],
        ),
        (
            "tune: {spaces: {fedavgg: {}}}\ntasks: {digits: {methods: [fedavg]}}",
            ["mine.yaml: tune.spaces", "did you mean 'fedavg'"],
        ),
        ("tune: 3\ntasks: {digits: {methods: [fedavg]}}", ["studies/mine.yaml: tune: 3", "not a block"]),
        ("tasks: {digits: {methods: [3]}}", ["studies/mine.yaml: tasks.digits.methods: 3", "nor a variant"]),
        ("tasks: {digits: {methods: [null]}}", ["tasks.digits.methods: None", "nor a variant"]),
        ("tasks: {digits: {methods: [[local]]}}", ["tasks.digits.methods: ['local']", "nor a variant"]),
        ("tasks: {digits: {methods: [{x: {method: [fedavg]}}]}}", ["tasks.digits.methods", "method is a name"]),
        ("tasks: {digits: {methods: [{x: {method: fedavg, set: [1]}}]}}", ["tasks.digits.methods", "set a mapping"]),
        ("tasks: {digits: {methods: [{fedavg: {set: hi}}]}}", ["tasks.digits.methods", "'hi'", "set a mapping"]),
        ("like: [3]\ntasks: {digits: {methods: [fedavg]}}", ["studies/mine.yaml: like: [3]", "list of names"]),
        ("tasks: {own: {dataset: [digits], methods: [fedavg]}}", ["tasks.own.dataset: ['digits']", "not a name"]),
        ("tasks: {digits: {methods: [local, local]}}", ["tasks.digits.methods: two entries", "'digits-local'"]),
        (
            "tasks: {digits: {methods: [local, {x: {method: fedavg}}, {x: {method: local}}]}}",
            ["tasks.digits.methods: two entries", "'digits-x'"],
        ),
        ("methods: [fedavg]\ntasks: {digits: {methods: [fedavg]}}", ["studies/mine.yaml: methods", "not a block"]),
    ],
)
def test_a_study_file_is_read_or_refused(tmp_path: Path, text: str, words: list[str]) -> None:
    """Entries that would be ignored or fail are refused in one line."""
    with refused(*words):
        catalogue.expand("mine", written(tmp_path, text))


def test_a_saved_params_file_is_a_study(tmp_path: Path) -> None:
    """`study use` names this way out if params.yaml was edited."""
    whole = catalogue.expand("quick", ROOT / "studies") | {"seeds": [7]}
    folder = written(tmp_path, yaml.safe_dump(whole, sort_keys=False))
    assert catalogue.expand("mine", folder) == whole | {"study": "mine"}


@pytest.mark.parametrize(
    ("name", "words"), [("folder.yaml", "folder.yaml: not found"), ("x.YAML", "x.YAML: a study file ends in .yaml")]
)
def test_a_folder_and_an_ending_in_capitals_are_refused(name: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "folder.yaml").mkdir()
    with pytest.raises(BadInput, match=words):
        catalogue.find_file(str(tmp_path / name))


@pytest.mark.parametrize("name", NAMES)
def test_a_study_shows_every_setting_of_its_methods(name: str) -> None:
    """The value is the default of the class, or the study's own. The study does not repeat defaults."""
    own = catalogue.overlay(name, ROOT / "studies").get("methods", {})
    for method, block in expanded(name)["methods"].items():
        given = {setting.name: setting.default for setting in METHODS[method].settings()}
        defaults = {key: list(value) if isinstance(value, tuple) else value for key, value in given.items()}
        assert block == {**defaults, **own.get(method, {})}
        assert block.keys() - {"train", "evaluate"} == defaults.keys()
        assert [key for key, value in own.get(method, {}).items() if key in defaults and value == defaults[key]] == []


@pytest.mark.parametrize("name", ["fedpub", "fedsheafhn"])
def test_a_protocol_has_all_settings_of_the_public_code(name: str) -> None:
    """Kept moments, plain means, split, seed, decay and dropout reach every run of the task."""
    expected = {"fedpub": (0.01, 1e-6, 0.5, 1, 1234, 0.2), "fedsheafhn": (0.02, 5e-4, 0.3, 5, 123, 0.4)}[name]
    study = spec.parse(expanded("fedsheafhn/protocols"), name)
    keys = [key for key in study.runs if key.startswith(f"photo-{name}-")]
    assert {study.run(key).method for key in keys} >= {"local", "fedper", "fedpub", "fedsheafhn"}
    for run in map(study.run, keys):
        train, task = run.train, run.task
        assert (train.client_optimizer, train.averaging, run.evaluate.point) == ("kept", "uniform", "post")
        values = (train.lr, train.weight_decay, task.model["dropout"], train.epochs, task.partition["seed"])
        assert (*values, task.partition["split"]["train"]) == expected
    assert study.run("photo-fedpub-fedpub").options["detached"]
    options = study.run("photo-fedsheafhn-fedsheafhn").options
    names = ("lr_theta", "lr_phi", "enrol_epochs", "continued")
    assert tuple(options[name] for name in names) == (0.02, 0.01, 10, True)
    fresh = study.run("photo-fresh-local")
    assert (fresh.train.client_optimizer, fresh.train.averaging) == ("fresh", "size")
    assert {"client_optimizer", "averaging"}.isdisjoint(fresh.specification()["train"])


def test_the_server_has_the_rates_of_the_public_scripts_on_arxiv() -> None:
    """server_lr, server_hn_lr and client_lr of CarrieWFF/FedSheafHN by number of clients. Every variant has them."""
    rates = {10: (0.001, 0.01, 0.01), 20: (0.001, 0.001, 0.01), 30: (0.01, 0.001, 0.01), 50: (0.01, 0.001, 0.02)}
    met = set()
    for name in ("table1", "table2", "table3", "table3b", "table6", "table7", "fig4"):
        study = spec.parse(expanded(f"fedsheafhn/{name}"), name)
        for run in map(study.run, study.runs):
            if run.task.dataset == "ogbn-arxiv" and run.method == "fedsheafhn":
                clients = run.task.partition["clients"]
                options = (run.options["lr_theta"], run.options["lr_phi"], run.train.lr)
                assert (*options, run.options["enrol_epochs"]) == (*rates[clients], 50), run.name
                met.add(clients)
    assert met == {*rates}


def test_a_protocol_of_graphs_fits_graphs_and_other_models(tmp_path: Path) -> None:
    """A task may use the other settings of a protocol with a model of its own."""
    text = "{own: {base: digits, protocol: fedpub, model: {name: mlp, dropout: null}, methods: [local]}, "
    folder = written(tmp_path, f"tasks: {text}digits-graph: {{protocol: fedpub, methods: [local]}}}}\n")
    models = [task["model"]["name"] for task in catalogue.expand("mine", folder)["tasks"].values()]
    assert models == ["mlp", "gcn"]


def test_another_partition_rule_drops_options_that_it_does_not_have(tmp_path: Path) -> None:
    """Options of both rules are kept. The setting is not named after the partition of the base."""
    rule = "{name: grouped, clients: 6, groups: 2, share: 0.9}"
    tasks = f"a: {{base: digits, partition: {rule}, methods: [local]}}, "
    tasks += "b: {base: digits, partition: {clients: 5}, methods: [local]}, "
    tasks += "c: {base: fashion-mnist, partition: {name: dirichlet, beta: 0.5}, setting: mine, methods: [local]}"
    expanded_study = catalogue.expand("mine", written(tmp_path, f"without_controls: a test\ntasks: {{{tasks}}}\n"))
    task = expanded_study["tasks"]["a"]
    assert task["partition"] == {"name": "grouped", "clients": 6, "seed": 666, "groups": 2, "share": 0.9}
    assert task["setting"] == "grouped"
    same = expanded_study["tasks"]["b"]
    assert (same["partition"], same["setting"]) == (
        {"name": "dirichlet", "clients": 5, "seed": 666, "beta": 0.3},
        "dir0.3",
    )
    shared = expanded_study["tasks"]["c"]
    assert shared["setting"] == "mine"
    assert {"pool", "test", "split"} <= shared["partition"].keys()
    assert "classes" not in shared["partition"]
    validate.check(spec.parse(expanded_study, "mine"))


def test_options_that_a_study_gives_to_another_rule_are_checked(tmp_path: Path) -> None:
    """Only options of the base are dropped, and not typing errors."""
    rule = "{name: grouped, groups: 2, share: 0.9, beta: 0.3}"
    text = f"without_controls: a test\ntasks: {{a: {{base: digits, partition: {rule}, methods: [local]}}}}\n"
    study = spec.parse(catalogue.expand("mine", written(tmp_path, text)), "mine")
    with pytest.raises(BadInput, match=r"tasks\.a\.partition: 'beta' is unknown"):
        validate.check(study, "mine")


@pytest.mark.parametrize("spelling", ["one.yaml", "sub/../one.yaml", "./one.yaml", "../{folder}/one.yaml"])
def test_a_study_like_itself_is_refused_for_every_spelling_of_its_path(spelling: str, tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    file = tmp_path / "one.yaml"
    file.write_text(f"like: {spelling.format(folder=tmp_path.name)}\n")
    with pytest.raises(BadInput, match="is like this study itself"):
        catalogue.overlay(str(file), tmp_path)
