"""params.yaml with errors: each is refused in one line that names the key, the value and the way out."""

import time
from typing import Any

import pytest

from fedweave.errors import BadInput, format_value
from fedweave.results import published
from fedweave.study import spec, validate
from tests.study.test_spec import altered, good, refused

DIGITS, GRAPH = "tasks/digits", "tasks/graph"


IID = {"name": "iid", "clients": 3}
ALLOWED = ["letters (a-z, A-Z), digits, - and _"]


# path in the file, bad value -> words that the message must contain.
BAD: list[tuple[str, Any, list[str]]] = [
    ("study", "", ["study"]),
    ("study", 3, ["study: 3 is not a text"]),
    ("seeds", [], ["seeds: [] is not a list with entries"]),
    ("seeds", 3, ["seeds: 3 is not a list with entries"]),
    ("tasks", "x", ["tasks: 'x' is not a mapping with entries"]),
    ("seeds", [0, 0], ["seeds", "different"]),
    ("seeds", [-1], ["seeds", "-1"]),
    ("seeds", [0.5], ["seeds", "0.5"]),
    ("typo", 1, ["typo", "choices"]),
    (f"{DIGITS}/dataset", "digit", ["tasks.digits.dataset", "did you mean 'digits'"]),
    (f"{DIGITS}/dataste", "digits", ["dataste", "did you mean 'dataset'"]),
    (f"{DIGITS}/partition/name", "dirichle", ["partition.name", "did you mean 'dirichlet'"]),
    (f"{DIGITS}/partition/betta", 0.3, ["partition", "betta", "did you mean 'beta'"]),
    (f"{DIGITS}/partition", {"clients": 10}, ["partition.name", "missing"]),
    (f"{DIGITS}/model/name", "small_cn", ["model.name", "did you mean 'small_cnn'"]),
    (f"{DIGITS}/model/width", 3, ["model", "width"]),
    (f"{DIGITS}/train/lr", "fast", ["train.lr", "'fast'", "number"]),
    (f"{DIGITS}/train/lr", -0.1, ["train.lr", "-0.1", "at least 0"]),
    (f"{DIGITS}/train/lr", float("nan"), ["train.lr", "nan", "finite"]),
    (f"{DIGITS}/train/lr", True, ["train.lr", "True"]),
    (f"{DIGITS}/train/rounds", 0, ["train.rounds", "0", "at least 1"]),
    (f"{DIGITS}/train/rounds", 2.5, ["train.rounds", "2.5", "whole number"]),
    (f"{DIGITS}/train/rounds", "10", ["train.rounds", "'10'", "whole number"]),
    (f"{DIGITS}/train/round", 10, ["train.round", "did you mean 'rounds'"]),
    (f"{DIGITS}/train/participation", 0, ["train.participation", "0", "at least"]),
    (f"{DIGITS}/train/optimizer", "adamw", ["train.optimizer", "'adamw'", "adam"]),
    (f"{DIGITS}/train/momentum", 1.5, ["train.momentum", "1.5", "between 0 and 1"]),
    (f"{DIGITS}/train/batch_size", -1, ["train.batch_size", "-1"]),
    (f"{DIGITS}/train/steps", 5, ["train.steps", "train.epochs"]),
    (f"{DIGITS}/train/executor", "parallel", ["train.executor", "'parallel'", "batched"]),
    (f"{DIGITS}/train/executor", "compiled", ["train.executor", "'compiled' is gone", "use auto or kernel"]),
    (f"{DIGITS}/train/device", "gpu", ["train.device", "'gpu'", "cuda"]),
    (f"{DIGITS}/train/newcomers", 2, ["newcomers", "join_round"]),
    (f"{DIGITS}/train", [1, 2], ["tasks.digits.train", "mapping"]),
    (f"{DIGITS}/evaluate/every", 0, ["evaluate.every", "0"]),
    (f"{DIGITS}/evaluate/select", "best_test_round", ["evaluate.select", "best_test_round", "best_val_round"]),
    (f"{DIGITS}/evaluate/point", "before", ["evaluate.point", "'before'", "pre"]),
    (DIGITS, {"dataset": "digits"}, ["tasks.digits", "missing"]),
    ("runs/digits-ditto/task", "digitz", ["runs.digits-ditto.task", "did you mean 'digits'"]),
    ("runs/digits-ditto/method", "dito", ["runs.digits-ditto.method", "did you mean 'ditto'"]),
    ("runs/digits-ditto/method", "", ["method", "choices"]),
    ("runs/digits-ditto/sett", {}, ["sett", "did you mean 'set'"]),
    ("runs/digits-ditto/set", {"lamda": 1}, ["runs.digits-ditto.set.lamda", "did you mean 'lam'"]),
    ("runs", {}, ["runs: {} is not a mapping with entries"]),
    ("methods/ditto/lam", "big", ["methods.ditto.lam", "'big'", "number"]),
    ("methods/ditto/personal_epochs", 1.5, ["methods.ditto.personal_epochs", "1.5", "whole number"]),
    ("methods/ditto/lambda", 1.0, ["methods.ditto.lambda", "choices: lam"]),
    ("methods/ditto/task", "x", ["methods.ditto.task", "not a setting"]),
    ("methods/local", {"x": 1}, ["methods.local.x: not a setting of local: 'x' is unknown; there are no choices"]),
    ("runs/graph-fedavg/method", "fedbn", ["FedBN", "batch_norm", "gcn"]),
    ("tune/trials", -1, ["tune.trials", "-1"]),
    ("tune/seeds", [0], ["tune.seeds", "overlap"]),
    ("tune/sampler", "grad", ["tune.sampler", "'grad'", "tpe"]),
    ("ablate", {"x": {"run": "digits-ditto"}}, ["ablate.x", "variants"]),
    ("ablate", {"x": {"run": "nope", "variants": {"a": {}}}}, ["ablate.x.run", "'nope'"]),
    ("ablate", {"x": {"run": "digits-ditto", "variants": {"a": {"lamm": 1}}}}, ["lamm", "did you mean 'lam'"]),
    ("ablate", {"x": {"run": "digits-ditto", "grid": {"lam": [1.0]}}}, ["ablate.x.grid", "at least two"]),
    ("ablate", {"x": {"run": "digits-ditto", "grid": {"lam": [1.0, 2.0]}, "variants": {}}}, ["ablate.x", "either"]),
    (
        "ablate",
        {"x": {"run": "digits-ditto", "grid": {"partition.bata": [1.0, 2.0]}}},
        ["partition", "did you mean 'beta'"],
    ),
    ("study", "../../etc", ["study", "../../etc", "letters"]),
    ("study", "a//b", ["study", "a//b"]),
    ("seeds", [2**40], ["seeds", str(2**40), "2^31"]),
    ("runs", {"../x": {"task": "digits", "method": "ditto"}}, ["runs", "../x", "letters"]),
    ("runs", {5: {"task": "digits", "method": "ditto"}}, ["runs", "5", "letters"]),
    ("runs/digits-ditto", "ditto", ["runs.digits-ditto", "'ditto'", "mapping"]),
    ("runs/digits-ditto/task", 3, ["runs.digits-ditto.task", "3", "text"]),
    ("runs/digits-ditto/set", 3, ["runs.digits-ditto.set", "3", "mapping"]),
    ("runs/digits-ditto/set", {"train": 3}, ["runs.digits-ditto", "train", "3", "mapping"]),
    ("runs/digits-ditto/set", {"train.lrr": 1}, ["train.lrr", "did you mean 'lr'"]),
    ("runs/digits-ditto/set", {"train.lr": "fast"}, ["train.lr", "'fast'"]),
    ("runs/digits-ditto/set", {"lam": {"a": 1}}, ["lam", "number"]),
    ("runs/digits-ditto/set", {"evaluate.clients": -1}, ["evaluate.clients", "-1", "at least 0"]),
    (
        "ablate",
        {"x": {"run": "digits-ditto", "variants": {"few": {"evaluate.clients": 2}}}},
        ["ablate.x.few", "evaluate.clients: 2", "same clients", "tasks.digits.evaluate"],
    ),
    ("margins", {"acuracy": 1}, ["margins: 'acuracy' is unknown", "did you mean 'accuracy'"]),
    ("margins", {"roc_auc": 1}, ["margins.roc_auc: 1 is the whole range of roc_auc"]),
    ("methods", ["ditto"], ["methods", "a mapping"]),
    ("methods", {"dito": {}}, ["methods", "did you mean 'ditto'"]),
    ("methods/ditto", 3, ["methods.ditto", "3", "mapping"]),
    ("methods/ditto/lam", -1.0, ["methods.ditto.lam", "-1.0", "at least 0"]),
    ("methods/ditto/lam", None, ["methods.ditto.lam", "None", "number"]),
    ("methods/ditto/personal_epochs", -1, ["methods.ditto.personal_epochs", "-1"]),
    ("tasks", {"a b": {}}, ["tasks: 'a b'", *ALLOWED]),
    ("tasks", {"x" * 101: {}}, ["tasks: 'xxx", *ALLOWED]),
    ("tasks", {"a.b": {}}, ["tasks: 'a.b'", *ALLOWED]),
    ("tasks", {"-rf": {}}, ["tasks: '-rf'", *ALLOWED]),
    ("tasks", {"$(id)": {}}, ["tasks: '$(id)'", *ALLOWED]),
    ("tasks", {"digits\n": {}}, [r"tasks: 'digits\n'", *ALLOWED]),
    ("tasks", {"digits": {}, "Digits": {}}, ["tasks: 'Digits' and 'digits'", "capital letters"]),
    ("runs", {"a;id": {"task": "digits", "method": "ditto"}}, ["runs: 'a;id'", *ALLOWED]),
    ("runs/digits-ditto/task", "a b", ["runs.digits-ditto.task: 'a b'", *ALLOWED]),
    ("methods", {"a b": {}}, ["methods: 'a b'", *ALLOWED]),
    ("ablate", {"a/b": {}}, ["ablate: 'a/b'", *ALLOWED]),
    ("ablate", {"x": {"run": "digits-ditto", "variants": {"a\nb": {}}}}, ["ablate.x.variants", r"'a\nb'", "printed"]),
    (
        "ablate",
        {"x": {"run": "digits-ditto", "grid": {"lam": [*range(2000)]}}},
        ["ablate.x.grid", "2000 combinations", "1000"],
    ),
    ("uses", {"x' $(touch /tmp/pwn) '": "a.py"}, ["uses: \"x' $(touch /tmp/pwn) '\"", "not a name of a plug-in"]),
    ("uses", {3: "a.py"}, ["uses: 3", "not a name of a plug-in"]),
    ("datasets", ["a; id"], ["datasets: 'a; id'", *ALLOWED]),
    ("study", "a b", ["study: 'a b'", *ALLOWED]),
    ("study", "a/.hidden", ["study: 'a/.hidden'", *ALLOWED]),
    ("study", "/".join(["a"] * 100), ["study", "150 characters"]),
    ("study", "quick/runs", ["study: 'quick/runs'", "results of 'quick'"]),
    ("about", ["x"], ["about: ['x']", "text"]),
    ("seeds", [*range(100_000)], ["seeds: [0, 1, 2", "between 1 and 1000"]),
    ("tune/seeds", [], ["tune.seeds: []", "between 1 and 1000"]),
    ("tune/seeds", [-1], ["tune.seeds: [-1]", "at least 0"]),
    ("tune/seeds", [7, 7], ["tune.seeds: [7, 7]", "different"]),
    ("tune/seeds", [2**31], ["tune.seeds", "too large"]),
    ("tune/seeds", [True], ["tune.seeds", "whole number"]),
    ("tune/seeds", [*range(5, 5000)], ["tune.seeds: [5, 6", "between 1 and 1000"]),
    ("tune/objectives", ["bytes"], ["tune.objectives: ['bytes']", "[score, bytes]"]),
    ("tune/objectives", ["score", "scor"], ["tune.objectives", "each entry one of score, bytes"]),
    ("tune/objectives", "score", ["tune.objectives: 'score'", "a list", "write ['score']"]),
    ("tune/seeds", 1000, ["tune.seeds: 1000 is not a list, each entry a whole number; write [1000]"]),
    ("tune/spaces", {"ditto": {"lam": {"choices": 3}}}, ["tune.spaces.ditto.lam.choices: 3 is not a list; write [3]"]),
    ("tune/workers", 10**9, ["tune.workers", "1024"]),
    ("tune/trials", 10**12, ["tune.trials", "too large"]),
    ("datasets", ["digits"], ["datasets", "digits-graph"]),
    ("datasets", 4, ["datasets", "4"]),
    ("tune", None, ["tune", "None", "mapping"]),
    ("tune/share", 0, ["tune.share", "0", "between"]),
    ("tune/share", 1.5, ["tune.share", "1.5"]),
    ("tune/workers", 0, ["tune.workers", "0"]),
    ("tune/spaces", {"dito": {}}, ["tune.spaces", "did you mean 'ditto'"]),
    ("tune/spaces", {"ditto": 3}, ["tune.spaces.ditto", "3", "mapping"]),
    ("ablate", [1], ["ablate", "mapping"]),
    ("ablate", {"x": {"run": "digits-ditto", "variants": {"a": 3}}}, ["ablate.x", "settings"]),
    (f"{DIGITS}/partition/clients", "ten", ["partition.clients", "'ten'", "whole number"]),
    (f"{DIGITS}/partition/clients", 0, ["partition.clients", "0", "at least 1"]),
    (f"{DIGITS}/partition", {"name": "iid", "clients": 3}, ["partition.seed", "missing", "whole number"]),
    (f"{DIGITS}/partition/seed", -1, ["partition.seed", "-1"]),
    (f"{DIGITS}/partition/seeds", [1, 2], ["partition: seed 666", "seeds [1, 2]", "one of them"]),
    (f"{DIGITS}/partition", {**IID, "seeds": []}, ["partition.seeds", "[]", "one per split"]),
    (f"{DIGITS}/partition", {**IID, "seeds": 3}, ["partition.seeds", "3", "list"]),
    (f"{DIGITS}/partition", {**IID, "seeds": [1, -1]}, ["partition.seeds", "-1", "at least 0"]),
    (f"{DIGITS}/partition", {**IID, "seeds": [4, 4]}, ["partition.seeds", "[4, 4]", "twice"]),
    (f"{DIGITS}/partition", {**IID, "seeds": [*range(9)]}, ["partition.seeds", "9 splits", "one seed per split"]),
    (f"{DIGITS}/partition/7", 1, ["partition", "'7'", "choices"]),
    (f"{DIGITS}/model", {"name": "lenet16", "batch_norm": 1}, ["model.batch_norm", "1", "true or false"]),
    (f"{DIGITS}/model", {"name": "mlp", "hidden": 0}, ["model.hidden", "0", "at least 1"]),
    (f"{DIGITS}/model", {"name": "mlp", "adapter": "lorra"}, ["model.adapter", "'lorra'", "did you mean 'lora'"]),
    (f"{DIGITS}/model", {"name": "mlp", "adapter": {"rank": 2}}, ["model.adapter", "has no name; for example"]),
    (f"{DIGITS}/model/adapter", {"name": "lora", "rank": 0}, ["model.adapter.rank", "0", "at least 1"]),
    (f"{DIGITS}/model/adapter", {"name": "lora", "targets": "fc"}, ["model.adapter.targets", "'fc'", "a list"]),
    (f"{DIGITS}/model/adapter", {"name": "head", "rank": 2}, ["model.adapter.rank", "not a setting of"]),
    (f"{DIGITS}/model", {"name": "mlp", "hidden": "big"}, ["model.hidden", "'big'", "whole number"]),
    (f"{DIGITS}/model", {"name": "mlp", "hidden": [8, -1]}, ["model.hidden", "-1"]),
    (f"{DIGITS}/model", {"name": "gcn"}, ["tasks.digits.model.name: 'gcn' does not fit digits (images)", "small_cnn"]),
    (f"{GRAPH}/model", {"name": "mlp"}, ["tasks.graph.model.name: 'mlp' does not fit digits-graph (graph)", "gcn"]),
    (f"{GRAPH}/partition", {**IID, "seed": 1}, ["'iid' does not fit digits-graph (graph)", "metis"]),
    (f"{DIGITS}/normalize", "minmax", ["tasks.digits.normalize: 'minmax' does not fit digits (images)", "standard"]),
    (f"{DIGITS}/model", {}, ["model.name", "missing", "small_cnn"]),
    (f"{DIGITS}/model", "small_cnn", ["model", "'small_cnn'", "mapping"]),
    (f"{GRAPH}/model/dropout", 1.5, ["model.dropout", "1.5"]),
    (f"{GRAPH}/model/hidden", None, ["model.hidden", "None"]),
    (f"{DIGITS}/train/participation", 50, ["train.participation", "50", "10 clients"]),
    (f"{DIGITS}/train/participation", 2.5, ["train.participation", "2.5", "whole number"]),
    (f"{DIGITS}/train/participation", -0.1, ["train.participation", "-0.1"]),
    (f"{DIGITS}/train/freeze", True, ["train.freeze", "newcomers"]),
    (f"{DIGITS}/train/freeze", "yes", ["train.freeze", "'yes'", "true or false"]),
    (f"{DIGITS}/train/checkpoint", -5, ["train.checkpoint", "-5"]),
    (f"{DIGITS}/train/clip", 0, ["train.clip", "0"]),
    (f"{DIGITS}/train/weight_decay", -1, ["train.weight_decay", "-1"]),
    (f"{DIGITS}/train/lr", 10**400, ["train.lr", "about 401 digits", "too large"]),
    (f"{DIGITS}/train/lr", 10**5000, ["train.lr", "about 5001 digits", "too large"]),
    (f"{DIGITS}/train/lr", 1e308, ["tasks.digits.train.lr", "1e+308", "at most 1000"]),
    (f"{DIGITS}/train/weight_decay", 1e39, ["train.weight_decay", "1e+39", "too large"]),
    (f"{DIGITS}/train/clip", 1e39, ["train.clip", "1e+39", "too large"]),
    (f"{DIGITS}/train/batch_size", 2**62, ["train.batch_size", "too large"]),
    (f"{DIGITS}/train/epochs", 10**9, ["train.epochs", "1000000000", "at most 10000"]),
    (f"{DIGITS}/train/steps", 10**9, ["train.steps", "1000000000"]),
    (f"{DIGITS}/train/rounds", 10**9, ["train.rounds", "1000000000"]),
    (f"{DIGITS}/train/privacy", {"clip": 1e39, "noise": 1.0}, ["train.privacy.clip", "1e+39"]),
    (f"{DIGITS}/train/privacy", {"clip": 1.0, "noise": 1e9}, ["train.privacy.noise", "1000000000.0"]),
    (f"{DIGITS}/attack", {"kind": "noise", "share": 0.1, "scale": 1e39}, ["attack.scale", "1e+39"]),
    (f"{DIGITS}/partition/clients", 10**9, ["partition.clients", "1000000000", "at most"]),
    (f"{DIGITS}/partition/beta", 1e300, ["partition.beta", "1e+300", "too large"]),
    (f"{DIGITS}/model", {"name": "mlp", "hidden": 2**40}, ["model.hidden", "too large"]),
    (f"{DIGITS}/model", {"name": "mlp", "hidden": 10**6}, ["model.hidden", "1000000"]),
    ("methods/ditto/lam", 1e300, ["methods.ditto.lam", "1e+300", "too large"]),
    ("methods/ditto/personal_epochs", 2**40, ["methods.ditto.personal_epochs", "too large"]),
    (f"{DIGITS}/train/epochs", 0, ["train.epochs", "0", "at least 1"]),
    (f"{DIGITS}/train/chunk", -1, ["train.chunk", "-1"]),
    (f"{DIGITS}/train/privacy", {"clip": 1.0, "noize": 1.0}, ["train.privacy.noize", "did you mean 'noise'"]),
    (f"{DIGITS}/train/privacy", 3, ["train.privacy", "3", "mapping"]),
    (f"{DIGITS}/train/robust", {}, ["train.robust.rule", "missing", "setting of robust"]),
    (f"{DIGITS}/train", {"lrr": 1}, ["tasks.digits.train.lrr: not a setting of train", "did you mean 'lr'"]),
    (f"{DIGITS}/train/bn_buffers", "mean", ["train.bn_buffers", "'mean'"]),
    (f"{DIGITS}/train/augment", 0, ["train.augment", "0"]),
    (f"{DIGITS}/train/precision", "fp16", ["train.precision", "'fp16'", "bfloat16"]),
    (f"{DIGITS}/attack", {"kind": "sybil", "share": 0.1}, ["attack.kind", "sybil", "sign_flip"]),
    (f"{DIGITS}/attack", {"kind": "sign_flip", "share": 1.5, "scale": 1}, ["attack.share", "1.5"]),
    (f"{DIGITS}/attack", {"kind": "gaussian", "share": 0.1, "scale": 1}, ["attack", "embeddings", "ditto"]),
    (f"{DIGITS}/normalize", ["unit"], ["tasks.digits.normalize: ['unit']", "must be a name"]),
    (f"{DIGITS}/normalize", "unti", ["tasks.digits.normalize: 'unti'", "did you mean 'unit'"]),
    (f"{DIGITS}/normalize", {"name": "unit", "mean": 1}, ["tasks.digits.normalize.mean", "not an option of unit"]),
    (f"{DIGITS}/published", {"papr": "fedaghn"}, ["tasks.digits.published: 'papr'", "did you mean 'paper'"]),
    (f"{DIGITS}/evaluate/evry", 1, ["evaluate.evry", "did you mean 'every'"]),
    (f"{DIGITS}/evaluate/every", "often", ["evaluate.every", "'often'"]),
    ("tune/spaces", {"ditto": {"lamm": {"low": 1, "high": 2}}}, ["spaces.ditto", "'lamm'", "did you mean 'lam'"]),
    ("tune/spaces", {"ditto": {"lr": {"low": 1, "high": 2}}}, ["spaces.ditto", "'lr'", "did you mean 'train.lr'"]),
    ("tune/spaces", {"ditto": {"train.rounds": {"low": 1, "high": 2}}}, ["spaces.ditto", "'train.rounds'", "unknown"]),
    ("tune/spaces", {"ditto": {"lam": 3}}, ["spaces.ditto.lam", "3", "low and high", "choices"]),
    ("tune/spaces", {"ditto": {"lam": {"low": 1}}}, ["spaces.ditto.lam.high", "missing"]),
    ("tune/spaces", {"ditto": {"lam": {"low": 1, "hihg": 2}}}, ["spaces.ditto.lam.hihg", "did you mean 'high'"]),
    ("tune/spaces", {"ditto": {"lam": {"low": 1, "high": "x"}}}, ["spaces.ditto.lam.high", "'x'", "number"]),
    ("tune/spaces", {"ditto": {"lam": {"low": 3, "high": 2}}}, ["spaces.ditto.lam", "low 3", "high 2", "swap"]),
    ("tune/spaces", {"ditto": {"lam": {"low": 0, "high": 2, "log": True}}}, ["spaces.ditto.lam", "log", "low is 0"]),
    (
        "tune/spaces",
        {"ditto": {"lam": {"low": 1, "high": 2, "log": True, "step": 1}}},
        ["spaces.ditto.lam", "step 1", "log"],
    ),
    ("tune/spaces", {"ditto": {"lam": {"low": 1, "high": 2, "step": -1}}}, ["spaces.ditto.lam", "step -1", "above 0"]),
    ("tune/spaces", {"ditto": {"lam": {"low": -1, "high": 2}}}, ["spaces.ditto.lam", "-1", "at least 0"]),
    (
        "tune/spaces",
        {"ditto": {"personal_epochs": {"low": 0.5, "high": 2}}},
        ["spaces.ditto.personal_epochs", "0.5", "whole"],
    ),
    (
        "tune/spaces",
        {"ditto": {"personal_epochs": {"low": 1, "high": 5, "step": 0.5}}},
        ["spaces.ditto.personal_epochs.step", "0.5", "whole"],
    ),
    (
        "tune",
        {"trials": 2, "spaces": {"ditto": {"lam": {"low": 2, "high": 8, "step": 2}}}},
        ["spaces.ditto.lam", "steps of 2 from 2", "1.0", "runs.digits-ditto", "choices"],
    ),
    ("tune/spaces", {"ditto": {"lam": {"choices": []}}}, ["spaces.ditto.lam.choices", "[]", "at least one"]),
    ("tune/spaces", {"ditto": {"lam": {"choices": [[1]]}}}, ["spaces.ditto.lam.choices", "[[1]]"]),
    ("tune/spaces", {"ditto": {"lam": {"choices": [1, "x"]}}}, ["spaces.ditto.lam", "'x'", "number"]),
    (
        "tune/spaces",
        {"ditto": {"lam": {"low": 1, "high": 2, "choices": [1]}}},
        ["spaces.ditto.lam", "either", "choices"],
    ),
    (
        "tune",
        {"trials": 2, "sampler": "grid", "spaces": {"ditto": {"lam": {"low": 1, "high": 2}}}},
        ["spaces.ditto.lam", "grid", "tpe"],
    ),
    (
        "tune",
        {"trials": 2, "spaces": {"ditto": {"train.clip": {"low": 1, "high": 2}}}},
        ["train.clip", "None", "runs.digits-ditto"],
    ),
    (
        "tune",
        {"trials": 2, "spaces": {"ditto": {"train.momentum": {"low": 0.1, "high": 0.9, "log": True}}}},
        ["spaces.ditto.train.momentum", "0.0", "runs.digits-ditto", "without tuning"],
    ),
]


@pytest.mark.parametrize(("path", "value", "words"), BAD, ids=[f"{p}={format_value(v)}"[:60] for p, v, _ in BAD])
def test_bad_configurations_are_refused(path: str, value: Any, words: list[str]) -> None:
    """Every stage refuses them when it reads params.yaml, in one readable line."""
    started = time.process_time()
    with refused(*words):
        validate.check(spec.parse(altered(path, value)))
    assert time.process_time() - started < 1


@pytest.mark.parametrize(
    ("method", "model", "words"),
    [
        (
            "fedavg",
            {"name": "mlp", "adapter": {"name": "lora", "rank": 70, "targets": ["fc1"]}},
            ["tasks.digits.model.adapter.rank: 70", "fc1.weight is a matrix of 64 x 64", "at most 64"],
        ),
        (
            "fedavg",
            {"name": "mlp", "adapter": {"name": "lora", "targets": ["conv"]}},
            ["tasks.digits.model.adapter.targets: 'conv' names no layer", "fc1"],
        ),
        (
            "scaffold",
            {"name": "mlp", "adapter": {"name": "lora", "mix": "product"}},
            ["runs.a", "mix: product", "SCAFFOLD takes none"],
        ),
        ("fedpac", {"name": "linear"}, ["runs.a: FedPAC needs a trained layer below the head", "model linear"]),
        ("fedpac", {"name": "mlp", "adapter": "head"}, ["FedPAC needs a trained layer", "mlp and its adapter"]),
        ("fedah", {"name": "mlp", "hidden": []}, ["FedAH needs a trained layer below the head", "drop the run"]),
        ("fedper", {"name": "linear"}, ["FedPer keeps every parameter of the model linear at the client"]),
    ],
)
def test_models_that_do_not_fit_their_adapters_or_methods_are_refused(
    method: str, model: dict[str, Any], words: list[str]
) -> None:
    """Before any work, where the sizes of the data set are published."""
    content = good(method)
    content["tasks"]["digits"]["model"] = model
    with refused(*words):
        validate.check(spec.parse(content))


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        ("fedamp", {}, ["train.bn_buffers average", "fedamp takes no mean", "fedavg"]),
        (
            "fedavg",
            {"privacy": {"clip": 1.0, "noise": 1.0}},
            ["train.bn_buffers average", "train.privacy", "leave one of them out"],
        ),
        ("local", None, ["train.bn_buffers average", "model mlp has no BatchNorm"]),
    ],
)
def test_statistics_that_cannot_be_averaged_are_refused(
    method: str, changes: dict[str, Any] | None, words: list[str]
) -> None:
    content = good(method)
    content["tasks"]["digits"]["train"] |= {"bn_buffers": "average", **(changes or {})}
    if changes is None:
        content["tasks"]["digits"]["model"] = {"name": "mlp"}
    with refused(*words):
        validate.check(spec.parse(content))


@pytest.mark.parametrize("method", ["local", "fedproto"])
def test_a_defence_needs_uploaded_models(method: str) -> None:
    """Clipping is refused for a method without uploads of models."""
    content = good(method)
    content["tasks"]["digits"]["train"] |= {"robust": {"rule": "clip"}}
    with refused("train.robust.rule clip", f"{method} uploads none", "leave it out"):
        validate.check(spec.parse(content))


@pytest.mark.parametrize(
    ("path", "value", "words"),
    [
        (f"{DIGITS}/train/lr", float("inf"), "x.yaml: tasks.digits.train.lr: inf is not a finite number"),
        (f"{DIGITS}/train/robust", {"rule": "medan"}, "x.yaml: runs.digits-ditto.train.robust.rule: 'medan'"),
        ("runs/digits-ditto/set", {"train.lr": -1}, "x.yaml: runs.digits-ditto.train.lr: -1"),
        ("runs/digits-ditto/set", {"train": {"lr": 1}, "train.lr": 2}, "x.yaml: runs.digits-ditto.set: train.lr: 2"),
        ("methods/ditto/lam", -1, "x.yaml: methods.ditto.lam: -1"),
    ],
)
def test_messages_name_the_file(path: str, value: Any, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        validate.check(spec.parse(altered(path, value), "x.yaml"), "x.yaml")
    assert str(caught.value).startswith(words)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"table": 3}, "x.yaml: tasks.digits.published.paper: ''"),
        ({"paper": "fedaghn", "table": 3}, "x.yaml: tasks.digits.published.table: '3'"),
    ],
)
def test_printed_columns_that_do_not_exist_are_refused(block: dict[str, Any], words: str) -> None:
    """The first stage of `dvc repro` refuses them, and `fedweave study use`."""
    study = spec.parse(altered(f"{DIGITS}/published", block), "x.yaml")
    with pytest.raises(BadInput) as caught:
        published.check(study.tasks, "x.yaml")
    assert str(caught.value).startswith(words)


def with_newcomers(count: int) -> dict[str, Any]:
    content = good()
    content["tasks"]["digits"]["train"] |= {"newcomers": count, "join_round": 2}
    return content


def test_only_newcomers_are_refused() -> None:
    """At least one client must be there from the start."""
    with refused("train.newcomers", "10 of 10"):
        validate.check(spec.parse(with_newcomers(10)))
    validate.check(spec.parse(with_newcomers(9)))
