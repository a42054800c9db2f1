"""Runs that were asked for the value of edges (`evaluate.edges`) and have none."""

from fedweave import results
from fedweave.results import Run, Study

FILE = "edges.csv"
NEEDED = "at least three clients that receive mixtures of models and have validation rows"


def missing_edges_note(study: Study) -> tuple[str, ...]:
    """One sentence that names them, by task where tasks differ; nothing where every run that was asked has values."""
    lacking = {task: [run.label for run in runs if _lacks_edges(run)] for task, runs in results.by_task(study).items()}
    if not any(lacking.values()):
        return ()
    alike = len({*map(tuple, lacking.values())}) == 1
    named = {("" if alike else f"{task}: ") + ", ".join(labels): None for task, labels in lacking.items() if labels}
    return (f"evaluate.edges measured nothing for {'; '.join(named)}. It needs {NEEDED}.",)


def _lacks_edges(run: Run) -> bool:
    asked = ((run.info.get("spec") or {}).get("evaluate") or {}).get("edges")
    return bool(asked) and not (run.folder / FILE).is_file()
