"""A study that takes seconds, in a copy of the project, and the stages of it that DVC runs."""

import re

import yaml

from fedweave.pipelines.commands.params_file import dump
from tests.servers import DIGITS, Project

GRAPH = {
    "dataset": "digits-graph",
    "setting": "overlap/clients10",
    "normalize": "none",
    "partition": {
        "name": "metis_overlap",
        "clients": 10,
        "seed": 666,
        "copies": 5,
        "split": {"train": 0.05, "val": 0.25, "test": 0.7},
    },
    "model": {"name": "gcn", "hidden": 8},
    "train": {"rounds": 2, "epochs": 1, "batch_size": 0, "optimizer": "adam", "lr": 0.01, "executor": "loop"},
    "evaluate": {"every": 1, "select": "best_val_round"},
}


def params(study: str = "small", lam: float = 1.0, searched: str = "lam") -> str:
    """A study of seconds: two methods on digits, one of them also on their graph, with tuning and an ablation."""
    content = {
        "study": study,
        "about": "",
        "seeds": [0, 1],
        "datasets": ["digits", "digits-graph"],
        "tasks": {"digits": DIGITS, "digits-graph": GRAPH},
        "runs": {
            "digits-fedavg": {"task": "digits", "method": "fedavg"},
            "digits-ditto": {"task": "digits", "method": "ditto"},
            "digits-graph-fedavg": {"task": "digits-graph", "method": "fedavg"},
        },
        "methods": {"fedavg": {}, "ditto": {"lam": lam, "personal_epochs": 1}},
        "tune": {
            "trials": 2,
            "share": 0.5,
            "seeds": [1000],
            "workers": 2,
            "spaces": {"ditto": {searched: {"low": 0.1, "high": 2.0}}},
        },
        "margins": {},
        "ablate": {
            "pull": {"run": "digits-ditto", "variants": {"none": {"lam": 0.0}, "strong": {"lam": 5.0}}},
            "clients": {"run": "digits-fedavg", "grid": {"partition.clients": [5, 10]}},
        },
    }
    return dump(content)


def part(study: str, lam: float) -> str:
    """One of its runs, with other settings, under another name."""
    content = yaml.safe_load(params(study, lam))
    runs = {"digits-ditto": content["runs"]["digits-ditto"]}
    content |= {"datasets": ["digits"], "tasks": {"digits": DIGITS}, "runs": runs, "ablate": {}}
    return dump(content)


def repro(project: Project) -> list[str]:
    """Run `dvc repro`. Returns the stages that ran."""
    done = project.python("dvc", "repro")
    return re.findall(r"Running stage '([^']+)'", done.stdout + done.stderr)
