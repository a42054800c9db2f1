"""Controls that an analyst would try first, from the rows of a federation and without its training.

A linear model and gradient boosting of each client, gradient boosting of all rows in one place, partial pooling
(`fedweave.families.mixed_effects`), and the shares of the classes in all training rows. Penalties and the number of
trees are chosen on validation rows. None of them has a seed. They are for tables, series and texts, and not for images
and graphs.
"""

import hashlib
import warnings
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from fedweave.client.regression import Forecast
from fedweave.client.task import NodeClassification, Task
from fedweave.engine.clients import balanced_weights
from fedweave.engine.schedule import evaluation_cohort
from fedweave.families import mixed_classes, mixed_effects, mixed_numbers, trust_region
from fedweave.families.mixed_effects import MOST_COLUMNS, Rows, add_effects, design, split_point
from fedweave.files.arrays import read_npz
from fedweave.files.atomic import atomic_path, read
from fedweave.processes.forks import one_thread
from fedweave.runs.build import PreparedRun
from fedweave.runs.control_names import BASE_RATE, BOOSTED, LINEAR, PARTIAL, POOLED_BOOSTING
from fedweave.study.code import digest

MOST_CLIENTS, MOST_ROWS = 500, 100_000  # of federations that have these controls, except for the base rate
PENALTIES = (0.1, 1.0, 10.0, 100.0)  # of squared coefficients of columns with variance 1
TREES, RATE, LEAVES, SMALLEST_LEAF = 60, 0.1, 15, 20
STEPS = 10  # of Newton's method, for partial pooling of classes
FEW_ROWS = 10  # for one column, below which partial pooling has a penalty
MOST_COMPONENTS = 20  # principal components of wide inputs, which partial pooling reads in their place
MOST_RECENT = 8
_RECENT: dict[str, dict[str, Any]] = {}  # the last fits of this process by digest, for calls with other folders

Outputs = list[np.ndarray]  # of every client, for its validation rows and then its test rows [v + m, K or C]


class ClientTable(NamedTuple):
    """Rows of a client: inputs [., F], for training [n], validation [v] and test [m], and targets of the first two."""

    train: np.ndarray
    targets: np.ndarray
    val: np.ndarray
    val_targets: np.ndarray
    test: np.ndarray
    class_weight: np.ndarray = np.ones(0)  # of each class in the losses [C]; empty: none

    @property
    def rest(self) -> np.ndarray:
        """The inputs of validation and test rows."""
        return np.concatenate([self.val, self.test])


def are_fitted(prepared: PreparedRun) -> bool:
    """Whether a run has these controls: its rows are numbers, and it keeps what it learns."""
    task, evaluate, x = prepared.method.task, prepared.run.evaluate, prepared.federation.shared.get("x")
    if isinstance(task, NodeClassification) or x is None or not (evaluate.models or evaluate.predictions):
        return False
    return isinstance(task, Forecast) or x.ndim == 2 or (x.ndim == 4 and x.shape[2] == 1)  # windows have one line


def fit_controls(prepared: PreparedRun, folder: Path) -> dict[str, list[Tensor]]:
    """Control -> outputs [m, ...] for the test rows of every evaluated client: probabilities, or scaled numbers.

    Args:
        folder: where outputs are kept, by the rows and the code that they depend on, for all runs on these rows.
    """
    if not are_fitted(prepared):
        return {}
    tables = client_tables(prepared)
    classes = int(prepared.federation.shared["y"].max()) + 1 if prepared.method.task.targets_are == "classes" else 0
    key = _digest(tables, classes)
    file = folder / f"{key}.npz"
    if not file.is_file():
        arrays = _RECENT.pop(key, None) or _fit_arrays(tables, classes)
        _RECENT[key] = arrays
        if len(_RECENT) > MOST_RECENT:
            _RECENT.pop(next(iter(_RECENT)))
        with atomic_path(file) as temporary:
            np.savez_compressed(temporary, **arrays)
    ends = np.cumsum([len(table.rest) for table in tables])[:-1]
    like, evaluated = prepared.federation.sizes, prepared.federation.sample.tolist()
    stored = {name: np.split(values, ends) for name, values in read(file, read_npz, "remove it").items()}
    return {
        name: [torch.from_numpy(parts[i][len(tables[i].val) :].copy()).to(like) for i in evaluated]
        for name, parts in stored.items()
    }


def _fit_arrays(tables: Sequence[ClientTable], classes: int) -> dict[str, Any]:
    """Control -> outputs of all clients, one after the other."""
    import sklearn.ensemble  # noqa: F401  its OpenMP must be loaded before it is limited

    # Otherwise bits depend on threads, and a process that has used several of OpenMP cannot fork.
    with one_thread(), threadpool_limits(1), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit that is not quite finished is a control nevertheless
        outputs = fit_tables(tables, classes)
    return {name: np.concatenate(values) for name, values in outputs.items()}


def _digest(tables: Sequence[ClientTable], classes: int) -> str:
    """A hash of all that the outputs depend on."""
    code = [Path(module.__file__ or "") for module in (mixed_classes, mixed_effects, mixed_numbers, trust_region)]
    hashed = hashlib.sha256(f"{digest([Path(__file__), *code])} {version('scikit-learn')} {classes}".encode())
    for part in (part for table in tables for part in table):
        hashed.update(f"{part.shape}".encode() + np.ascontiguousarray(part).tobytes())
    return hashed.hexdigest()[:24]


def client_tables(prepared: PreparedRun) -> list[ClientTable]:
    """The rows of all clients, columns scaled to mean 0 and variance 1 over all training rows.

    Of federations that have the base rate alone, the inputs have no columns: of a large table they would fill memory.
    """
    task, federation = prepared.method.task, prepared.federation
    cohort = evaluation_cohort(federation, 0, 0, positions=torch.arange(federation.clients))
    first = cohort.client_data(0)
    columns = design(task, first, first.train[:1]).shape[1] - 1
    used = columns if _are_few(federation.clients, int(federation.sizes.sum()), columns) else 0
    parts = []
    for i in range(len(cohort)):
        data = cohort.client_data(i)
        rows = [part[part >= 0] for part in (data.train, data.val, data.test)]
        inputs = [design(task, data, part)[:, 1:].cpu().numpy() if used else np.zeros((len(part), 0)) for part in rows]
        targets = [_targets(task, data, part) for part in rows[:2]]
        weight = data.arrays.get("class_weight", torch.ones(0)).cpu().numpy()
        parts.append(ClientTable(inputs[0], targets[0], inputs[1], targets[1], inputs[2], weight))
    every = np.concatenate([part.train for part in parts])
    mean, scale = every.mean(0), every.std(0)
    scale = np.where(scale > 0, scale, 1.0)
    return [
        part._replace(**{name: (getattr(part, name) - mean) / scale for name in ("train", "val", "test")})
        for part in parts
    ]


def fit_tables(tables: Sequence[ClientTable], classes: int) -> dict[str, Outputs]:
    """Control -> its outputs for all clients; of numbers, `classes` is 0.

    Boosting of clients that are too small for one split is left out: it is their mean.
    """
    outputs = {BASE_RATE: _base_rates(tables, classes)} if classes else {}
    if not _are_few(len(tables), sum(len(table.train) for table in tables), tables[0].train.shape[1]):
        return outputs
    prior = _base_rate(tables, classes)
    linear = fit_logistic if classes else fit_ridge
    outputs[LINEAR] = [_smooth(linear(table, classes), table, prior) for table in tables]
    if np.median([len(table.train) for table in tables]) >= 2 * SMALLEST_LEAF:
        outputs[BOOSTED] = [_smooth(boost([table], classes)[0], table, prior) for table in tables]
    outputs[POOLED_BOOSTING] = boost(tables, classes)
    outputs[PARTIAL] = pool_partially(tables, classes)
    return outputs


def _are_few(clients: int, rows: int, columns: int) -> bool:
    """Whether controls are fitted to the inputs of so many clients, training rows and columns."""
    return clients <= MOST_CLIENTS and rows <= MOST_ROWS and 0 < columns <= MOST_COLUMNS


def _targets(task: Task, data: Any, rows: Tensor) -> np.ndarray:
    targets = task.targets(data, rows).cpu().numpy()
    return targets if task.targets_are == "classes" else targets.reshape(len(targets), -1).astype(float)


def _base_rate(tables: Sequence[ClientTable], classes: int) -> np.ndarray:
    """Shares [C] of the classes in all training rows, and one more row of each class; of numbers [1.0]."""
    if not classes:
        return np.ones(1)
    counts = np.bincount(np.concatenate([table.targets for table in tables]), minlength=classes) + 1.0
    return np.asarray(counts / counts.sum())


def _base_rates(tables: Sequence[ClientTable], classes: int) -> Outputs:
    rate = _base_rate(tables, classes)
    return [np.tile(rate, (len(table.rest), 1)) for table in tables]


def _smooth(outputs: np.ndarray, table: ClientTable, prior: np.ndarray) -> np.ndarray:
    """Probabilities of a client's own model, as if it had one more row, so that no class is impossible."""
    rows = len(table.train)
    return outputs if len(prior) == 1 else (rows * outputs + prior) / (rows + 1)


def _row_weights(table: ClientTable, targets: np.ndarray) -> np.ndarray:
    """The weights of rows with these targets: those of their classes in the table, or 1."""
    return table.class_weight[targets] if len(table.class_weight) else np.ones(len(targets))


def _loss(outputs: np.ndarray, table: ClientTable, classes: int) -> float:
    """Mean squared error of validation rows, or weighted log-loss of probabilities; 0 without rows."""
    targets = table.val_targets
    if not len(targets):
        return 0.0
    if not classes:
        return float(np.square(outputs - targets).mean())
    losses = -np.log(outputs[np.arange(len(targets)), targets].clip(1e-6))
    return float((_row_weights(table, targets) * losses).mean())


def _choose(candidates: Sequence[Outputs], tables: Sequence[ClientTable], classes: int) -> Outputs:
    """The outputs with the smallest loss on all validation rows; without any, those in the middle."""
    if not sum(len(table.val) for table in tables):
        return candidates[len(candidates) // 2]
    weights = [len(table.val) for table in tables]
    losses = [
        sum(w * _loss(out[: len(t.val)], t, classes) for out, t, w in zip(one, tables, weights, strict=True))
        for one in candidates
    ]
    return candidates[int(np.argmin(losses))]


def fit_ridge(table: ClientTable, classes: int = 0) -> np.ndarray:
    """Ridge regression with an intercept."""
    mean, center = table.targets.mean(0), table.train.mean(0)
    left, sizes, right = np.linalg.svd(table.train - center, full_matrices=False)
    moment = left.T @ (table.targets - mean)
    fits = [(right.T * (sizes / (sizes**2 + penalty))) @ moment for penalty in PENALTIES]
    return _choose([[mean + (table.rest - center) @ fit] for fit in fits], [table], 0)[0]


def fit_logistic(table: ClientTable, classes: int) -> np.ndarray:
    """Logistic regression, of several classes a multinomial one."""
    from sklearn.linear_model import LogisticRegression

    if len(present := np.unique(table.targets)) == 1:
        return np.tile(np.eye(classes)[present[0]], (len(table.rest), 1))
    train, rest = table.train, table.rest
    if len(train) < train.shape[1]:  # a penalised solution is a sum of rows, so that their span is enough
        basis = np.linalg.svd(train, full_matrices=False)[2].T
        train, rest = train @ basis, rest @ basis
    candidates = []
    for penalty in PENALTIES:
        model = LogisticRegression(C=1 / penalty, max_iter=50, tol=1e-2)
        model.fit(train, table.targets, _row_weights(table, table.targets))
        candidates.append([_spread(model.predict_proba(rest), present, classes)])
    return _choose(candidates, [table], classes)[0]


def _spread(probabilities: np.ndarray, present: np.ndarray, classes: int) -> np.ndarray:
    """Probabilities [m, C] of all classes, from those that are `present`."""
    every = np.zeros((len(probabilities), classes))
    every[:, present] = probabilities
    return every


def boost(tables: Sequence[ClientTable], classes: int) -> Outputs:
    """Histogram gradient boosting on the training rows of `tables`, by as many trees as validation rows ask for.

    Several numbers of a target are one model, with the position of the number as one more column.
    """
    from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor

    x, y = (np.concatenate([getattr(table, name) for table in tables]) for name in ("train", "targets"))
    width = 1 if classes else y.shape[1]
    trees = max(10, TREES // classes) if classes > 2 else TREES
    options = {
        "max_iter": trees,
        "learning_rate": min(0.3, RATE * TREES / trees),
        "max_leaf_nodes": LEAVES,
        "min_samples_leaf": SMALLEST_LEAF,
        "early_stopping": False,
        "random_state": 0,
    }
    rest = np.concatenate([table.rest for table in tables])
    ends = np.cumsum([len(table.rest) for table in tables])[:-1]
    if classes and len(present := np.unique(y)) == 1:
        return np.split(np.tile(np.eye(classes)[present[0]], (len(rest), 1)), ends)
    if classes:
        if len(tables[0].class_weight):  # balanced over all rows of this model
            pooled = balanced_weights(torch.from_numpy(y), classes).numpy()
            tables = [table._replace(class_weight=pooled) for table in tables]
        # Weights of 1 change nothing, and take many times as long: scikit-learn then seeks each threshold by itself.
        weights = _row_weights(tables[0], y) if len(tables[0].class_weight) else None
        stages = HistGradientBoostingClassifier(**options).fit(x, y, weights).staged_predict_proba(rest)
        found = [np.split(_spread(stage, present, classes), ends) for stage in stages]
    else:
        model = HistGradientBoostingRegressor(**options).fit(_stack(x, width), y.reshape(-1))
        found = [np.split(s.reshape(len(rest), width), ends) for s in model.staged_predict(_stack(rest, width))]
    if not sum(len(table.val) for table in tables):
        return found[-1]
    return _choose(found, tables, classes)


def _stack(x: np.ndarray, width: int) -> np.ndarray:
    """Each row `width` times, with the position of its number behind; a single number has none."""
    if width == 1:
        return x
    return np.column_stack([np.repeat(x, width, axis=0), np.tile(np.arange(width), len(x))])


def pool_partially(tables: Sequence[ClientTable], classes: int) -> Outputs:
    """A mixed-effects model with random intercepts, as `PartialPooling` has it."""
    tables = _reduce(tables)
    columns, rows = tables[0].train.shape[1] + 1, sum(len(table.train) for table in tables)
    ridges: tuple[float, ...] = (1.0, 10.0, 100.0) if rows < FEW_ROWS * columns else (1.0 if classes else 0.0,)
    clients = [_rows(table, classes) for table in tables]
    fit: Callable[..., list[list[Tensor]]] = _fit_classes if classes else _fit_numbers
    candidates = [
        [_predict(coef, table.rest, classes) for coef, table in zip(coefs, tables, strict=True)]
        for coefs in fit(clients, ridges)
    ]
    return _choose(candidates, tables, classes)


def _reduce(tables: Sequence[ClientTable]) -> Sequence[ClientTable]:
    """`tables` with the first principal components of all training rows, if they have more columns."""
    every = np.concatenate([table.train for table in tables])
    if every.shape[1] <= MOST_COMPONENTS:
        return tables
    vectors = np.linalg.eigh(every.T @ every)[1][:, -MOST_COMPONENTS:]
    vectors = vectors / (every @ vectors).std(0).clip(1e-9)
    return [t._replace(train=t.train @ vectors, val=t.val @ vectors, test=t.test @ vectors) for t in tables]


def _rows(table: ClientTable, classes: int) -> Rows:
    x = torch.from_numpy(np.column_stack([np.ones(len(table.train)), table.train]))
    if classes:
        labels = torch.arange(1 if classes == 2 else 0, classes)
        targets = (torch.from_numpy(table.targets) == labels[:, None]).double()
    else:
        targets = torch.from_numpy(table.targets).mT
    return Rows(x, targets, torch.from_numpy(_row_weights(table, table.targets)).double())


def _fit_numbers(clients: Sequence[Rows], ridges: Sequence[float]) -> list[list[Tensor]]:
    """For each ridge, the coefficients [K, d] of each client."""
    grams = mixed_numbers.repair(torch.stack([mixed_numbers.gram(rows) for rows in clients]))
    models = len(clients[0].targets)
    columns = grams.shape[-1] - models
    parts = [[*range(columns), target] for target in range(columns, columns + models)]
    found = []
    for ridge in ridges:
        points = [mixed_numbers.fit(grams[:, part][:, :, part], ridge=ridge)[0] for part in parts]
        coef, factor = split_point(torch.stack(points), "none")
        found.append([add_effects(coef, factor, mixed_numbers.find_mode(rows, coef, factor)) for rows in clients])
    return found


def _fit_classes(clients: Sequence[Rows], ridges: Sequence[float]) -> list[list[Tensor]]:
    """For each ridge, the coefficients [K, d] of each client, after a few rounds of the method.

    The fits with all ridges are models side by side, which take hardly longer than one.
    """
    from torch.nn.utils.rnn import pad_sequence

    design, weight = (
        pad_sequence([getattr(r, part) for r in clients], batch_first=True) for part in ("design", "weight")
    )
    targets = pad_sequence([rows.targets.mT for rows in clients], batch_first=True).mT
    classes, columns = targets.shape[1], design.shape[-1]
    stacked = Rows(design, targets.repeat(1, len(ridges), 1), weight)
    ridge = torch.tensor(ridges, dtype=design.dtype).repeat_interleave(classes)
    state = mixed_classes.start_state(len(clients), len(ridge), columns, "none", design.new_zeros(()))
    improve = torch.func.vmap(mixed_classes.improve_mode, in_dims=(0, None, None, 0))
    terms = torch.func.vmap(
        lambda rows, coef, factor, mode: mixed_classes.client_terms(rows, coef, factor, mode, "none"),
        in_dims=(0, None, None, 0),
    )
    mode = design.new_zeros(len(clients), len(ridge), 1)

    def find_mode(coef: Tensor, factor: Tensor, mode: Tensor) -> Tensor:
        for _ in range(mixed_classes.MODE_STEPS):
            mode, distance = improve(stacked, coef, factor, mode)
            if float(distance.max()) < 1e-7:  # the next one would be its square
                break
        return mode

    for _ in range(STEPS):
        coef, factor = split_point(state["point"], "none")
        mode = find_mode(coef, factor, mode)
        uploads = terms(stacked, coef, factor, mode)
        new = mixed_classes.server_step(state, torch.arange(len(clients)), uploads, "none", ridge)
        change, state = float((new["point"] - state["point"]).abs().max()), new
        if change < 1e-3:
            break
    coef, factor = split_point(state["point"], "none")
    fits = [add_effects(coef, factor, effects) for effects in find_mode(coef, factor, mode)]
    return [[fit[start : start + classes] for fit in fits] for start in range(0, len(ridge), classes)]


def _predict(coef: Tensor, inputs: np.ndarray, classes: int) -> np.ndarray:
    """Outputs [m, K] of numbers, or probabilities [m, C]."""
    outputs = coef[:, 0].numpy() + inputs @ coef[:, 1:].numpy().T
    if not classes:
        return np.asarray(outputs)
    chances = 1 / (1 + np.exp(-outputs.clip(-30, 30)))
    chances = np.concatenate([1 - chances, chances], 1) if classes == 2 else chances
    return np.asarray(chances / chances.sum(1, keepdims=True))
