"""What papers print besides scores: collaboration weights, traffic, sizes of data sets and models."""

import json
from collections.abc import Iterable, Mapping
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedweave.files import read
from fedweave.results import published
from fedweave.results.kept import Graphs, graphs
from fedweave.results.runs import Run, Study, by_task
from fedweave.runs import selection

COLUMNS = [
    "run",
    "task",
    "dataset",
    "setting",
    "method",
    "quantity",
    "part",
    "stage",
    "round",
    "value",
    "std",
    "seeds",
    "printed",
    "table",
]
WEIGHTS = ("collab_weight_self", "collab_weight_similar", "collab_weight_other")
AUC, VARIATION = "group_auc", "row_variation"  # what a collaboration graph shows, at the reported round
CLIENT_ROUNDS = 750  # that the printed traffic of pFedLA's Table 3 stands for
MIB = 2.0**20


def measures(study: Study, chosen: pd.DataFrame, partitions: Path | None = None) -> pd.DataFrame:
    """One row per run and quantity, the printed value beside it where the run may be laid beside the paper.

    Args:
        chosen: the table of `clients`: the round that selection chose for every run, seed and client.
        partitions: folder with <task>/summary.json; without it sizes of data sets are left out.
    """
    rows: list[dict[str, Any]] = []
    for runs in by_task(study).values():
        for run in runs:
            mine = chosen[chosen["run"] == run.name]
            found = [*_weights(run, mine), *_structure(run, mine), *_traffic(run)]
            rows += [{**_about(run), **row, "table": _table(run, row["quantity"])} for row in found]
        rows += [
            {**_about(runs[0]), "method": "", **row, "table": _table(runs[0], row["quantity"])}
            for row in _sizes(runs[0], partitions)
        ]
    return pd.DataFrame(rows, columns=COLUMNS)


def _table(run: Run, quantity: str) -> str:
    """The printed table that the task lies beside, if it has the quantity at all."""
    beside = run.reference
    if beside is None:
        return ""
    return (
        beside.title
        if any(r.table == beside.table and r.metric == quantity for r in published.rows(beside.paper))
        else ""
    )


def _about(run: Run) -> dict[str, Any]:
    return {
        "run": run.name,
        "task": run.task,
        "dataset": run.info["dataset"],
        "setting": run.info["setting"],
        "method": run.label,
    }


def _weights(run: Run, chosen: pd.DataFrame) -> Iterable[dict[str, Any]]:
    """Weights of oneself, of similar and of other clients (FedAGHN, Table 4), for clients in planted groups.

    Round t is trained from the graph that is kept after t − 1 rounds. "first" is the first graph that has seen an update,
    "final" the one behind the reported models; "middle" and "prior" lie at a half and at a sixth of the way.
    """
    found: dict[tuple[str, str, str], list[float]] = {}
    rounds: dict[str, list[int]] = {}
    for seed, part in chosen.groupby("seed"):
        kept = graphs(run, int(seed))
        if kept is None or kept.group is None:
            return
        final = _final(run, part)
        for stage, wanted in {"first": 1, "prior": final // 6, "middle": final // 2, "final": final}.items():
            index = kept.at(wanted)
            rounds.setdefault(stage, []).append(kept.rounds[index])
            for name, shares in _shares(kept.weights[index], kept.group).items():
                for quantity, value in zip(WEIGHTS, shares, strict=True):
                    found.setdefault((stage, name, quantity), []).append(value)
    for (stage, name, quantity), values in found.items():
        yield {"quantity": quantity, "part": name, "stage": stage, "round": float(np.mean(rounds[stage])), **_over_seeds(values),
               "printed": _printed_weight(run, stage, name, quantity)}  # fmt: skip


def _final(run: Run, part: pd.DataFrame) -> int:
    """The round after which the graph behind a seed's reported models is kept."""
    return int(part["round"].max()) - (run.info["point"] == "post")


def reported_graphs(run: Run, chosen: pd.DataFrame) -> list[tuple[Graphs, int]]:
    """The graphs of every seed, and the position of those behind the reported models; nothing for a run without graphs.

    Args:
        chosen: the rows of `clients` that belong to the run.
    """
    found = [(graphs(run, int(seed)), _final(run, part)) for seed, part in chosen.groupby("seed")]
    return [(kept, kept.at(final)) for kept, final in found if kept is not None]


def _structure(run: Run, chosen: pd.DataFrame) -> Iterable[dict[str, Any]]:
    """Of the graph behind the reported models, averaged over layers: how well it separates the true groups, how its rows differ."""
    found: dict[str, list[float]] = {}
    shown = reported_graphs(run, chosen)
    for kept, index in shown:
        layers = kept.weights[index]
        found.setdefault(VARIATION, []).append(float(np.mean([selection.row_variation(layer) for layer in layers])))
        if kept.group is not None:
            found.setdefault(AUC, []).append(
                float(np.mean([selection.group_auc(layer, kept.group) for layer in layers]))
            )
    for quantity, values in found.items():
        when = float(np.mean([kept.rounds[index] for kept, index in shown]))
        yield {"quantity": quantity, "part": "all", "stage": "final", "round": when, **_over_seeds(values)}


def _shares(weights: np.ndarray, group: np.ndarray) -> Mapping[str, tuple[float, ...]]:
    import torch

    from fedweave.federation.collaboration import weight_shares

    return weight_shares(torch.from_numpy(weights), torch.from_numpy(group))


def _over_seeds(values: list[float]) -> dict[str, float]:
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
    return _printed(run.reference._replace(setting=setting), quantity, names)


def _printed(reference: published.Reference, metric: str, names: list[str]) -> float:
    """The number printed for one of `names`, in the paper's unit; NaN where there is none."""
    found = (
        row.mean
        for row in published.column(reference)
        if row.metric == metric and any(published.same(n, row.method) for n in names)
    )
    return next(found, np.nan)


def _traffic(run: Run) -> Iterable[dict[str, Any]]:
    """MiB that 750 updates of a client cost, both ways, where the paper prints them; they do not depend on the budget."""
    if run.reference is None or not any(row.metric == "comm_cost_MB" for row in published.column(run.reference)):
        return
    share, clients = run.info["spec"]["train"]["participation"], run.info["clients"]
    updates = run.trained_rounds * (int(share) if share > 1 else ceil(share * clients))
    sent = run.rounds.groupby("seed")[["bytes_up", "bytes_down"]].sum().sum(axis=1)
    values = [CLIENT_ROUNDS * total / updates / MIB for total in sent]
    yield {"quantity": "comm_cost_MB", "round": run.trained_rounds, **_over_seeds(values),
           "printed": _printed(run.reference, "comm_cost_MB", [run.printed_label])}  # fmt: skip


def _sizes(run: Run, partitions: Path | None) -> Iterable[dict[str, Any]]:
    """Sizes of the task's data and model that the printed column has, in the row that the task names (default: the nameless one)."""
    if run.reference is None:
        return
    path = partitions / run.task / "summary.json" if partitions else None
    again = f"deal the clients again: dvc repro partition@{run.task}"
    facts = (
        read(path, lambda file: sizes(json.loads(file.read_text(encoding="utf-8"))), again)
        if path and path.is_file()
        else {}
    )
    facts["num_parameters"] = run.info.get("parameters", np.nan)
    for quantity, value in facts.items():
        printed = _printed(run.reference, quantity, [run.info["published"].get("row", "")])
        if np.isfinite(printed):
            yield {"quantity": quantity, "value": float(value), "seeds": 1, "printed": printed}


def sizes(summary: Mapping[str, Any]) -> dict[str, float]:
    """Numbers of a partition's summary.json under the papers' names; of subgraph clients the means over clients."""
    found = {"num_clients": summary["clients"]}
    for ours, theirs in {"clustering": "clustering_coefficient", "heterogeneity": "heterogeneity_js_median"}.items():
        found |= {theirs: summary[ours]} if ours in summary else {}
    for ours, theirs in {"nodes": "num_nodes", "edges": "num_edges"}.items():
        found |= {theirs: summary[ours]["mean"]} if ours in summary else {}
    if "relation" in summary:  # the papers count a self loop for every client
        found["num_edges"] = summary["relation"] + summary["clients"]
    return found | ({"num_classes": len(summary["labels"][0])} if summary.get("labels") else {})


def cohorts(study: Study, chosen: pd.DataFrame) -> pd.DataFrame:
    """Test scores of the clients that are looked at apart (newcomers, liars, the rest), at both points and the selected round."""
    columns = [
        "run",
        "task",
        "dataset",
        "setting",
        "method",
        "metric",
        "cohort",
        "clients",
        "point",
        "reported",
        "mean",
        "std",
        "seeds",
    ]
    rows: list[dict[str, Any]] = []
    for run in study.runs:
        tests = run.evaluations[run.evaluations["split"] == "test"]
        picked = chosen[chosen["run"] == run.name][["seed", "client", "round"]].merge(
            tests, on=["seed", "client", "round"]
        )
        for name, members in (run.info.get("cohorts") or {}).items():
            for point, part in picked[picked["client"].isin(members)].groupby("point"):
                found = _over_seeds(part.groupby("seed")["value"].mean().tolist())
                beside = {
                    "metric": run.info["metric"],
                    "cohort": name,
                    "clients": len(members),
                    "point": point,
                    "reported": point == run.info["point"],
                }
                rows.append(
                    {**_about(run), **beside, "mean": found["value"], "std": found["std"], "seeds": found["seeds"]}
                )
    return pd.DataFrame(rows, columns=columns)
