"""A recommendation as an object and as files: tidy tables, sentences, a page."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from fedweave.comparison.folder_copies import copy
from fedweave.errors import BadInput
from fedweave.files.atomic import read_json, read_table, write_atomic, write_json
from fedweave.own_data.argument_checks import check_folder
from fedweave.recommendation.answers import EQUIVALENT_OR_BETTER, LEADS, Answers
from fedweave.recommendation.sentences import Line, list_names
from fedweave.results import AS_WRITTEN

if TYPE_CHECKING:
    from fedweave.comparison.comparison import Comparison

FOLDER = "recommendation"  # of the tables, in the folder of the last comparison
FACTS = "answer.json"
TABLES = {
    "race": ("rung", "candidate"),
    "board": ("method", "test"),
    "clients": ("client", "method"),
    "rows": ("share", "mean"),
}
REMEDY = "run recommend again"


@dataclass(frozen=True, eq=False, repr=False)
class Recommendation:
    """What to do with one federation.

    Attributes:
        folder: of the results; the last comparison lies in it too, so `fedweave.load(folder)` opens that.
        facts: the answers as plain data.
        race: one row per candidate and rung: validation score, cost and outcome.
        board: one row per finalist and control: validation and test scores, test against the leader, cost.
        clients: one row per client and method: paired difference to local training, with interval and verdict.
        rows: validation score of the recommended method against the share of training rows.
        graph: who learns from whom (rows: learners), of the best method that has a graph; or None.
        temporary: the temporary folder that is removed with this object, if there is one.
    """

    folder: Path
    facts: Mapping[str, Any]
    race: pd.DataFrame
    board: pd.DataFrame
    clients: pd.DataFrame
    rows: pd.DataFrame
    graph: pd.DataFrame | None = None
    temporary: Any = None

    @classmethod
    def load(cls, folder: Path | str, temporary: Any = None) -> "Recommendation":
        """Open a folder that `recommend` or `save` has written.

        Raises:
            BadInput: it holds no recommendation, or a damaged one.
        """
        check_folder(folder, "folder")
        folder = Path(folder)
        tables_folder = folder / FOLDER
        if not (tables_folder / FACTS).is_file():
            raise BadInput(f"{tables_folder / FACTS}: not found; give the folder of a recommendation")
        facts = read_json(tables_folder / FACTS, REMEDY)
        text_columns = dict.fromkeys(
            ("client", "method", "candidate", "settings", "label", "verdict", "verdict_local", "outcome"), "str"
        )
        tables = {
            name: read_table(tables_folder / f"{name}.csv", columns, REMEDY, dtype=text_columns, **AS_WRITTEN)
            for name, columns in TABLES.items()
        }
        tables = {name: table.fillna({k: "" for k in text_columns if k in table}) for name, table in tables.items()}
        file = tables_folder / "graph.csv"
        return cls(folder, facts, **tables, graph=_read_graph(file) if file.is_file() else None, temporary=temporary)

    @property
    def answer(self) -> str:
        """What to deploy: "local", "common" (one model), "groups" or "personal"."""
        return str(self.facts["answer"])

    @property
    def method(self) -> str:
        """Name of the recommended method, as in `board`."""
        return str(self.facts["method"])

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of the recommended method that are not the declared ones."""
        return dict(self.facts["settings"])

    @property
    def equal_methods(self) -> tuple[str, ...]:
        """Methods that are equivalent to the best collaborating one or better; it is among them."""
        return tuple(self.facts["equal"])

    @property
    def groups(self) -> list[list[str]]:
        """Names of the clients of each group that the graph shows; empty if it shows none."""
        return [list(group) for group in self.facts["groups"]]

    @property
    def lines(self) -> list[Line]:
        """The answers in sentences."""
        return [Line(topic, text) for topic, text in self.facts["lines"]]

    @property
    def local_clients(self) -> list[str]:
        """Clients that keep to local training although the others collaborate, chosen on their validation rows."""
        return [str(name) for name in self.facts["own"].get(self.method, [])]

    def method_of(self, client: str) -> str:
        """Name of the method whose model a client deploys: the recommended one, or local training if it keeps to it."""
        return str(self.facts["alone"]) if client in self.local_clients else self.method

    @property
    def choices(self) -> dict[str, str]:
        """Client -> the finalist that it would deploy by its validation rows, of those that would not deploy `method`.

        The line "A choice for each client" says what these choices gain on test rows.
        """
        return {str(client): str(name) for client, name in self.facts.get("choices", {}).items()}

    @property
    def note_on_local(self) -> str:
        """Against what local training is tested, where it is not the leader whose score stands beside; else empty."""
        names = list_names(self.facts["own"].get(self.facts["leader"], []))
        label = self.board.set_index("method")["label"].get(self.facts["leader"], "")
        return names and f"Local is tested against {label} as it would be deployed, with local training for {names}."

    def losing(self, method: str | None = None) -> list[str]:
        """Clients that are shown to lose by a method (default: the recommended one), compared with local training."""
        rows = self.clients[self.clients["method"] == (method or self.method)]
        return [str(name) for name in rows[rows["verdict"] == "loses"]["client"]]

    @cached_property
    def comparison(self) -> "Comparison":
        """The last comparison: finalists and controls."""
        from fedweave.comparison.compare import load

        return load(self.folder)

    def report(self) -> Path:
        """Build recommendation.html in the folder and return its path."""
        from fedweave.recommendation import page

        return page.build(self)

    def save(self, folder: Path | str) -> Path:
        """Copy everything to `folder`, which `load` opens, in the place of what `folder` recommended before.

        Raises:
            BadInput: the folder has other content.
        """
        check_folder(folder, "folder")
        copy(self.folder, Path(folder), FOLDER)
        return Path(folder)

    def __str__(self) -> str:
        width = max(len(line.topic) for line in self.lines)
        notes = [f"{'note':{width}}  {note}" for note in self.facts["notes"]]
        return "\n".join([*(f"{line.topic:{width}}  {line.text}" for line in self.lines), *notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{escape(line.topic)}</th><td>{escape(line.text)}</td></tr>" for line in self.lines)
        return f"<table>{rows}</table>"


def write(
    folder: Path, answer: Answers, lines: list[Line], race: pd.DataFrame, rows: pd.DataFrame, facts: Mapping[str, Any]
) -> None:
    """Write the answers and their tables; the file of the answers comes last."""
    tables_folder = folder / FOLDER
    (tables_folder / FACTS).unlink(missing_ok=True)  # of an earlier call: it must not be read with new tables
    for name, table in {"race": race, "board": answer.board, "clients": answer.clients, "rows": rows}.items():
        write_atomic(tables_folder / f"{name}.csv", table.to_csv(index=False, lineterminator="\n"))
    (tables_folder / "graph.csv").unlink(missing_ok=True)
    if answer.graph is not None:
        write_atomic(tables_folder / "graph.csv", answer.graph.to_csv(lineterminator="\n"))
    is_equal = answer.board["verdict"].isin([LEADS, *EQUIVALENT_OR_BETTER])
    pays = answer.tests_against_local.get(answer.pays or answer.leader)
    content = {
        "answer": answer.kind,
        "method": answer.method,
        "leader": answer.leader,
        "alone": answer.local_name,
        "equal": [*answer.board[is_equal]["method"]],
        "pays": pays and asdict(pays),
        "rival": answer.leader,
        "margin": answer.margin,
        "woven": answer.graph_method,
        "groups": answer.members,
        "graph_tests": [*answer.tests],
        "own": {**answer.local_clients},
        "choices": {**answer.choices},
        "choice_test": answer.choice_test and asdict(answer.choice_test),
        **facts,
        "lines": [[*line] for line in lines],
    }
    write_json(tables_folder / FACTS, content, default=_to_python)


def _read_graph(file: Path) -> pd.DataFrame:
    """The weights between clients. Their names stay texts, even if they look like numbers.

    Raises:
        BadInput: the file is damaged.
    """
    table = read_table(file, (), REMEDY, converters={0: str}, **AS_WRITTEN)
    graph = table.set_index(table.columns[0]).rename_axis(None)
    if [*graph.index] != [*graph.columns] or not all(kind.kind in "fiu" for kind in graph.dtypes):
        raise BadInput(f"{file}: damaged (no weights between the same clients); {REMEDY}")
    return graph


def _to_python(value: Any) -> Any:
    """A number of NumPy as one of Python."""
    return value.item() if hasattr(value, "item") else str(value)
