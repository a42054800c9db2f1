"""Quantities that papers print in addition to scores: collaboration weights, traffic, sizes of data sets and models."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedweave.files.atomic import read_json, read_table
from fedweave.graphs.quality import EDGES, quality
from fedweave.results import published
from fedweave.results.runs import RETRAIN_HINT, Run, Study, by_task
from fedweave.results.server_records import Graphs, graphs_by_seed

OF_RUN = ("run", "task", "dataset", "setting", "method")
COLUMNS = [*OF_RUN, "quantity", "part", "stage", "round", "value", "std", "seeds", "printed", "table"]
WEIGHTS = ("collab_weight_self", "collab_weight_similar", "collab_weight_other")
STAGES = ("first", "prior", "middle", "final")  # of a training, where weights are printed
CLIENT_ROUNDS = 750  # number of client updates behind the printed traffic of pFedLA's Table 3
MIB = 2.0**20


def measures(study: Study, selected: pd.DataFrame, partitions: Path | None = None) -> pd.DataFrame:
    """One row per run and quantity, with the printed value where the run may be compared with the paper.

    Args:
        selected: the table of `clients`: the selected round of every run, seed and client.
        partitions: folder with <task>/summary.json; without it sizes of data sets are left out.
    """
    rows: list[dict[str, Any]] = []
    for runs in by_task(study).values():
        for run in runs:
            run_scores = selected[selected["run"] == run.name]
            stored = graphs_by_seed(run)
            run_rows = [*_weights(run, run_scores, stored), *_structure(run, run_scores, stored), *_traffic(run)]
            rows += [{**run_columns(run), **row, "table": _printed_table(run, row["quantity"])} for row in run_rows]
        rows += [
            {**run_columns(runs[0]), "method": "", **row, "table": _printed_table(runs[0], row["quantity"])}
            for row in _sizes(runs[0], partitions)
        ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _printed_table(run: Run, quantity: str) -> str:
    """The printed table that the task is compared with, if it has the quantity; else empty."""
    reference = run.reference
    if reference is None:
        return ""
    rows = published.rows(reference.paper)
    has_quantity = any(row.table == reference.table and row.metric == quantity for row in rows)
    return reference.title if has_quantity else ""


def run_columns(run: Run) -> dict[str, Any]:
    values = (run.name, run.task, run.info["dataset"], run.info["setting"], run.label)
    return dict(zip(OF_RUN, values, strict=True))


def _weights(run: Run, selected: pd.DataFrame, stored: Mapping[int, Graphs]) -> Iterable[dict[str, Any]]:
    """Weights of oneself, of similar and of other clients (FedAGHN, Table 4), where the true groups are known.

    Round t is trained from the graph that is stored after t − 1 rounds. "first" is the first graph that has seen an
    update, "final" the one behind the reported models; "prior" is at a sixth and "middle" at a half of the way.
    """
    shares_by_part: dict[tuple[str, str, str], list[float]] = {}
    rounds: dict[str, list[int]] = {}
    for seed, part in _reported_seeds(selected):
        graph = stored.get(seed)
        if graph is None or graph.group is None:
            return
        final = _final_round(run, part)
        for stage, round in zip(STAGES, (1, final // 6, final // 2, final), strict=True):
            index = graph.index_at(round)
            rounds.setdefault(stage, []).append(graph.rounds[index])
            for name, shares in _shares(graph.weights[index], graph.group).items():
                for quantity, value in zip(WEIGHTS, shares, strict=True):
                    shares_by_part.setdefault((stage, name, quantity), []).append(value)
    for (stage, name, quantity), values in shares_by_part.items():
        yield {
            "quantity": quantity,
            "part": name,
            "stage": stage,
            "round": float(np.mean(rounds[stage])),
            **summarise_seeds(values),
            "printed": _printed_weight(run, stage, name, quantity),
        }


def _final_round(run: Run, part: pd.DataFrame) -> int:
    """The round after which the graph behind a seed's reported models is stored."""
    return int(part["round"].max()) - (run.info["point"] == "post")


def _reported_seeds(selected: pd.DataFrame) -> list[tuple[int, pd.DataFrame]]:
    """(seed, its rows) of the seeds that report a round; one that has diverged reports none."""
    return [(int(seed), part) for seed, part in selected.groupby("seed") if part["round"].max() >= 0]


def reported_graphs(run: Run, selected: pd.DataFrame, stored: Mapping[int, Graphs]) -> list[tuple[Graphs, int]]:
    """The graphs of every seed, and the position of those behind the reported models; nothing for a run without graphs,
    and for seeds that have diverged.

    Args:
        selected: the rows of `clients` that belong to the run.
        stored: its `graphs_by_seed`.
    """
    parts = [(stored[seed], part) for seed, part in _reported_seeds(selected) if seed in stored]
    return [(graph, graph.index_at(_final_round(run, part))) for graph, part in parts]


def _structure(run: Run, selected: pd.DataFrame, stored: Mapping[int, Graphs]) -> Iterable[dict[str, Any]]:
    """Quality of the graph behind the reported models (`graphs.quality`): averaged over layers, and of each layer."""
    values_by_part: dict[tuple[str, str], list[float]] = {}
    reported = reported_graphs(run, selected, stored)
    for graph, index in reported:
        layers = graph.weights[index]
        parts = {"all": layers}
        if len(layers) > 1:
            parts |= {name: layer[None] for name, layer in zip(graph.layers, layers, strict=True)}
        for part, weights in parts.items():
            for quantity, value in quality(weights, graph.group, graph.divergence).items():
                values_by_part.setdefault((part, quantity), []).append(value)
    yield from _edges(run)
    for (part, quantity), values in values_by_part.items():
        mean_round = float(np.mean([graph.rounds[index] for graph, index in reported]))
        yield {"quantity": quantity, "part": part, "stage": "final", "round": mean_round, **summarise_seeds(values)}


def _edges(run: Run) -> Iterable[dict[str, Any]]:
    """Whether weight goes to sources that help: Spearman's correlation, for every client, of the weights of its sampled
    sources with their gains, averaged over clients.
    """
    path = run.folder / "edges.csv"
    if not path.is_file():
        return
    table = read_table(path, ("seed", "round", "learner", "source", "weight", "gain"), RETRAIN_HINT)
    values = []
    for _, part in table.groupby("seed"):
        ranks = part.groupby("learner")[["weight", "gain"]].rank()
        correlations = ranks.groupby(part["learner"]).apply(lambda rows: rows["weight"].corr(rows["gain"]))
        values.append(float(correlations.mean()))
    finite = [value for value in values if np.isfinite(value)]
    if finite:
        about = {"quantity": EDGES, "part": "all", "stage": "final", "round": table["round"].mean()}
        yield {**about, **summarise_seeds(finite)}


def _shares(weights: np.ndarray, group: np.ndarray) -> Mapping[str, tuple[float, ...]]:
    import torch

    from fedweave.graphs.weights import weight_shares

    return weight_shares(torch.from_numpy(weights), torch.from_numpy(group))


def summarise_seeds(values: list[float]) -> dict[str, float]:
    return {
        "value": float(np.mean(values)),
        "std": float(np.std(values, ddof=1)) if len(values) > 1 else np.nan,
        "seeds": len(values),
    }


def _printed_weight(run: Run, stage: str, part: str, quantity: str) -> float:
    if run.reference is None or run.shortfall:
        return np.nan
    setting = f"{run.reference.setting.rpartition('/')[0]}/{stage}"
    names = [f"{run.printed_label}-{part}", *([run.printed_label] if part == "all" else [])]
    return _printed_value(run.reference._replace(setting=setting), quantity, names)


def _printed_value(reference: published.Reference, metric: str, names: list[str]) -> float:
    """The number printed for one of `names`, in the paper's unit; NaN if none is printed."""
    printed = (
        row.mean
        for row in published.column(reference)
        if row.metric == metric and any(published.is_same_method(n, row.method) for n in names)
    )
    return next(printed, np.nan)


def _traffic(run: Run) -> Iterable[dict[str, Any]]:
    """MiB both ways of 750 updates of a client, where the paper prints them; independent of the budget."""
    if run.reference is None or not any(row.metric == "comm_cost_MB" for row in published.column(run.reference)):
        return
    totals = run.rounds.assign(updates=_updates(run)).groupby("seed")[["bytes_up", "bytes_down", "updates"]].sum()
    values = CLIENT_ROUNDS * (totals["bytes_up"] + totals["bytes_down"]) / totals["updates"] / MIB
    yield {
        "quantity": "comm_cost_MB",
        "round": run.trained_rounds,
        **summarise_seeds(values.tolist()),
        "printed": _printed_value(run.reference, "comm_cost_MB", [run.printed_label]),
    }


def rounds_before_join(run: Run) -> int:
    """How many rounds there are before newcomers join; a warm-up comes before the rounds of the method."""
    train, last = (run.info.get("spec") or {}).get("train", {}), int(run.rounds["round"].max())
    return max(0, last - train.get("rounds", last)) + train.get("join_round", 0)


def _updates(run: Run) -> np.ndarray:
    """How many clients took part in each row of `run.rounds`; newcomers count from the round in which they join."""
    from fedweave.engine.schedule import sample_size  # imports torch

    train, clients = run.info["spec"]["train"], run.info["clients"]
    founders = clients - train.get("newcomers", 0)
    before_join = run.rounds["round"] <= rounds_before_join(run)
    share = train["participation"]
    return np.where(before_join, sample_size(share, founders), sample_size(share, clients))


def _sizes(run: Run, partitions: Path | None) -> Iterable[dict[str, Any]]:
    """Sizes of the task's data and model that the printed column has.

    They are in the row that the task names, by default in the row without a name.
    """
    if run.reference is None:
        return
    path = partitions / run.task / "summary.json" if partitions else None
    advice = f"make the partition again: dvc repro partition@{run.task}"
    facts = read_json(path, advice, sizes) if path and path.is_file() else {}
    facts["num_parameters"] = run.info.get("parameters", np.nan)
    for quantity, value in facts.items():
        printed = _printed_value(run.reference, quantity, [run.info["published"].get("row", "")])
        if np.isfinite(printed):
            yield {"quantity": quantity, "value": float(value), "seeds": 1, "printed": printed}


def sizes(summary: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of a partition's summary.json under the papers' names; of subgraph clients the means over clients."""
    numbers = {"num_clients": summary["clients"]}
    for ours, theirs in {"clustering": "clustering_coefficient", "heterogeneity": "heterogeneity_js_median"}.items():
        numbers |= {theirs: summary[ours]} if ours in summary else {}
    for ours, theirs in {"nodes": "num_nodes", "edges": "num_edges"}.items():
        numbers |= {theirs: summary[ours]["mean"]} if ours in summary else {}
    if "relation" in summary:  # the papers count a self loop for every client
        numbers["num_edges"] = summary["relation"] + summary["clients"]
    return numbers | ({"num_classes": len(summary["labels"][0])} if summary.get("labels") else {})
