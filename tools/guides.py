"""Runs the guides as users follow them: the code and the commands of a page, in an empty folder."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(?P<mark><!-- excerpt -->\n)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_LINE = re.compile(r"# (?P<name>[\w/.-]+\.(?:py|yaml))\n")  # first line of a block that is a file
CONTINUATION = re.compile(r" *\\\n *")  # a line that continues in the next one
PROGRAMS = {"fedweave": ["-m", "fedweave.pipelines.commands.main"], "python": []}
AIRPORTS = ("ATL", "BNA", "BOS", "BUF", "CLE", "CLT")
SERVERS = ("deploy", "worker", "federate", "serve")  # a federation has a server, and needs a study that has run


class Guide(NamedTuple):
    """The files, the Python code and the commands of a page."""

    files: dict[str, str]
    script: str
    commands: list[list[str]]


def guide(page: str, servers: bool = False) -> Guide:
    """Read a page: files with a name in their first line, the other Python code as one script, and commands.

    A line of a command may end in a backslash; then the next line belongs to it. With `servers`, commands that start
    one belong to the guide.
    """
    files, script, commands = {}, [], []
    for block in BLOCK.finditer((ROOT / page).read_text(encoding="utf-8")):
        first_line = FILE_LINE.match(block["text"])
        if block["mark"]:
            continue
        if first_line:
            files[first_line["name"]] = block["text"]
        elif block["language"] == "python":
            script.append(block["text"])
        elif not block["language"]:
            lines = CONTINUATION.sub(" ", block["text"]).splitlines()
            command_lines = (line for line in lines if line.partition(" ")[0] in PROGRAMS)
            commands += [shlex.split(line, comments=True) for line in command_lines]
    return Guide(files, "\n".join(script), [words for words in commands if _can_be_typed(words, servers)])


def _can_be_typed(words: list[str], servers: bool) -> bool:
    """Whether a command needs no server and has no placeholder: a word in capitals that is not an airport."""
    needs_server = words[1] in SERVERS and not servers
    return not needs_server and not any(word.isupper() and word not in AIRPORTS for word in words)


def follow(page: str, folder: Path, python: str = sys.executable, commands: bool = True, servers: bool = False) -> str:
    """Write the files of a page, run its Python, and type its commands; returns what the Python prints.

    Args:
        page: relative to the repository.
        folder: an empty one, outside of it.
        commands: whether to run the commands, which need more packages than the library does.
        servers: whether commands that start a server are among them.

    Raises:
        AssertionError: a command failed; with the command and its output.
    """
    steps = guide(page, servers)
    _write_data(folder)
    for name, text in steps.files.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "script.py").write_text(steps.script, encoding="utf-8")
    printed = ""
    for command in (["python", "script.py"], *(steps.commands if commands else ())):
        program, *words = command
        env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))}
        process = subprocess.run(
            [python, *PROGRAMS[program], *words], cwd=folder, env=env, capture_output=True, text=True, check=False
        )
        assert process.returncode == 0, f"{shlex.join(command)}\n{process.stdout[-2000:]}{process.stderr[-3000:]}"
        assert "Traceback" not in process.stderr
        printed = printed or process.stdout
    return printed


def outputs(page: str) -> str:
    """The printed output of the Python code on a page: the blocks of the language "text"."""
    blocks = BLOCK.finditer((ROOT / page).read_text(encoding="utf-8"))
    return "".join(block["text"] for block in blocks if block["language"] == "text")


def _write_data(folder: Path) -> None:
    """Write the files that the guides read: tables with an owner, a label and a time, and recordings of people."""
    rng = np.random.default_rng(0)
    count = 300
    owner, day = rng.integers(6, size=count), rng.integers(100, size=count)
    distance = rng.normal(size=count)
    late = np.where(distance + rng.normal(size=count) > 0, "late", "on time")
    table = pd.DataFrame({"distance": distance, "weather": rng.choice(["rain", "sun"], count), "late": late})
    table.assign(day=day, depot=[f"depot {i}" for i in owner]).to_csv(folder / "deliveries.csv", index=False)
    flights = pd.DataFrame({"dest": np.array(AIRPORTS)[owner]})  # the form that docs/guides/flights.md makes
    flights["time_hour"] = pd.Timestamp("2013-01-01") + pd.to_timedelta(day, "D")
    flights = flights.assign(hour=rng.integers(5, 24, size=count), weekday=flights["time_hour"].dt.day_name())
    flights = flights.assign(origin="JFK", carrier=rng.choice(["B6", "UA"], count), distance=distance)
    flights = flights.assign(humid=rng.random(count), precip=0.0, visib=10.0, late=late)
    flights.to_csv(folder / "flights.csv", index=False)
    flights[flights["dest"] == "BOS"].drop(columns="late").head(3).to_csv(folder / "new.csv", index=False)
    ends = rng.integers(90, size=(200, 2))
    pd.DataFrame(ends, columns=["from", "to"]).to_csv(folder / "edges.csv", index=False)
    nodes = pd.DataFrame({"paper": np.arange(90), "library": [f"library {i % 3}" for i in range(90)]})
    nodes.assign(year=rng.integers(1990, 2020, size=90), topic=rng.choice(["sheaf", "graph"], 90)).to_csv(
        folder / "nodes.csv", index=False
    )
    for i in range(80):  # client, class and number of an image
        image = folder / "photos" / ("Ann", "Bob")[i % 2] / ("cat", "dog")[i // 2 % 2] / f"{i // 4}.png"
        image.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(256, size=(40, 36, 3), dtype=np.uint8)).save(image)
    activity = np.repeat(rng.integers(3, size=(5, 60)), 20, axis=1)
    np.save(folder / "activity.npy", activity)
    np.save(folder / "recordings.npy", activity[:, :, None] + rng.normal(size=(5, 1200, 2)))
