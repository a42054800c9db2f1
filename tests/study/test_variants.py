"""The declaration of an ablation becomes variants of a run. The committed ones cover every kind of variant."""

from pathlib import Path
from typing import Any

import pytest

from fedweave import plots
from fedweave.errors import BadInput
from fedweave.report import optional_files
from fedweave.study import catalogue, spec, validate, variants
from tests.fake_results import write_study

ROOT = Path(__file__).resolve().parents[2]


def test_a_grid_has_every_combination_named_after_its_settings() -> None:
    settings = variants.expand({"run": "r", "grid": {"train.epochs": [1, 2], "p": ["trained", "absent"]}}, "x")
    assert settings == {
        "run": "r",
        "variants": {
            "epochs = 1, p = trained": {"train.epochs": 1, "p": "trained"},
            "epochs = 1, p = absent": {"train.epochs": 1, "p": "absent"},
            "epochs = 2, p = trained": {"train.epochs": 2, "p": "trained"},
            "epochs = 2, p = absent": {"train.epochs": 2, "p": "absent"},
        },
    }
    assert variants.expand(settings, "x") == settings


@pytest.mark.parametrize(
    "block",
    [
        None,
        {},
        {"run": "r"},
        {"grid": {"k": [1, 2]}},
        {"run": "r", "grid": {}},
        {"run": "r", "grid": {"k": [1]}},
        {"run": "r", "grid": {"k": 3}},
        {"run": "r", "variants": {}},
        {"run": "r", "variants": {"a": 1}},
        {"run": "r", "variants": {"a": {}}, "grid": {"k": [1, 2]}},
    ],
)
def test_an_invalid_declaration_is_refused_in_one_line(block: Any) -> None:
    with pytest.raises(
        BadInput, match=r"^params.yaml: ablate.x.*give `run`, and either `variants`.*or `grid`"
    ) as caught:
        variants.expand(block, "params.yaml: ablate.x")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("values", [[1, 2, 1], [0, 0], [1, 1.0], [1, "1"], [[1], [1]], [None, None]])
def test_equal_values_in_a_grid_are_refused(values: list[Any]) -> None:
    """The second value would replace the first one."""
    with pytest.raises(BadInput, match=r"^params.yaml: ablate.x.grid.k: .* occurs twice; remove one"):
        variants.expand({"run": "r", "grid": {"k": values}}, "params.yaml: ablate.x")


def study() -> spec.StudySpec:
    return spec.parse(catalogue.expand("ablations", ROOT / "studies"))


def test_settings_of_variants_reach_method_training_and_task() -> None:
    declared = study().run("digits-fedaghn")
    settings = {"p": "absent", "train.epochs": 4, "partition.beta": 9.0, "model.batch_norm": False}
    run = validate.build_variant(study(), "digits-fedaghn", {"q0": 3.0}, settings)
    assert (run.options["p"], run.options["q0"], run.train.epochs) == ("absent", 3.0, 4)
    assert run.task.partition == {**declared.task.partition, "beta": 9.0}
    assert run.task.model == {**declared.task.model, "batch_norm": False}
    assert run.fingerprint() != declared.fingerprint()
    other = validate.build_variant(study(), "digits-fedaghn", {}, {"partition": {"name": "shards", "classes": 2}})
    assert other.task.partition == {
        "name": "shards",
        "classes": 2,
        "clients": 10,
        "seed": declared.task.partition["seed"],
    }
    assert validate.build_variant(study(), "digits-fedaghn", {}, {}).fingerprint() == declared.fingerprint()


def test_the_study_of_ablations_has_every_kind_and_can_be_run() -> None:
    checked = validate.check(study())
    settings = [variant for block in checked.ablate.values() for variant in block["variants"].values()]
    declared = [item for variant in settings for item in variant.items()]
    expected = [
        ("p", "absent"),
        ("q", "absent"),
        ("p", "frozen"),
        ("tied", True),
        ("gnn", "gcn"),
        ("attention", "none"),
        ("refresh", 0),
        ("depth", 8),
        ("k", 5),
        ("tau", 0.4),
        ("stalk", 2),
        ("train.participation", 0.2),
        ("train.epochs", 4),
        ("partition.clients", 20),
        ("partition.beta", 0.1),
    ]
    assert [item for item in expected if item not in declared] == []
    assert any(len(variant) > 1 for variant in settings)


def test_the_drawing_follows_from_the_declaration(tmp_path: Path) -> None:
    table = optional_files.ablations(write_study(tmp_path / "results" / "toy", seeds=(0,), clients=4, rounds=2))
    parts = dict([*table.groupby("ablation")])
    assert plots.factors_of(parts["depth"]) == {"depth": [1, 3, 5]}
    assert plots.factors_of(parts["roles"]) == {"p": ["trained", "frozen"], "q": ["trained", "absent"]}
    assert plots.factors_of(parts["attention"]) == {}
    assert [">depth<" in plots.ablation(parts[name]) for name in ("depth", "roles", "attention")] == [
        True,
        False,
        False,
    ]
    assert ">without p<" in plots.ablation(parts["attention"])


def test_the_page_of_settings_describes_ablations(tmp_path: Path) -> None:
    """Its example is a part of a study that is accepted, with a run for each of the variants that it explains."""
    page = (ROOT / "docs" / "settings.md").read_text(encoding="utf-8").split("## ablate\n")[1]
    example = page.split("```yaml\n")[1].split("```")[0]
    file = tmp_path / "own.yaml"
    file.write_text("tasks:\n  digits:\n    methods: [fedaghn]\n" + example, encoding="utf-8")
    study = validate.check(spec.parse(catalogue.expand(str(file), ROOT / "studies")))
    counts = {name: len(block["variants"]) for name, block in study.ablate.items()}
    assert counts == {"fedaghn-parts": 2, "fedaghn-budget": 4}
    for block in study.ablate.values():
        for settings in block["variants"].values():
            validate.check_run(validate.build_variant(study, block["run"], {}, settings), "own.yaml")
    assert f"at most {variants.MOST_VARIANTS} combinations" in page
