"""Runs whose settings ask for the value of edges (`evaluate.edges`) but that have none."""

from fedweave import results
from fedweave.results import Run, Study

FILE = "edges.csv"
NEEDED = "at least three clients that receive mixtures of models and have validation rows"


def missing_edges_note(study: Study) -> tuple[str, ...]:
    """One sentence that names these runs, by task where tasks differ; empty if there are none."""
    missing = {task: [run.label for run in runs if _lacks_edges(run)] for task, runs in results.by_task(study).items()}
    if not any(missing.values()):
        return ()
    same_everywhere = len({*map(tuple, missing.values())}) == 1
    phrases = {
        ("" if same_everywhere else f"{task}: ") + ", ".join(labels): None for task, labels in missing.items() if labels
    }
    return (f"evaluate.edges measured nothing for {'; '.join(phrases)}. It needs {NEEDED}.",)


def _lacks_edges(run: Run) -> bool:
    wanted = ((run.info.get("spec") or {}).get("evaluate") or {}).get("edges")
    return bool(wanted) and not (run.folder / FILE).is_file()
