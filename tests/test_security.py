"""No input is executed: no eval, no pickles of others, no open port, and pinned digests for files that a library
unpickles.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from fedweave.data.sources.origins import CATALOGUE

ROOT = Path(__file__).resolve().parent.parent
PLACES = ("src", "pipelines", "tools", "benchmarks")
FILES = sorted(path for place in PLACES for path in (ROOT / place).rglob("*.py"))
PICKLERS = r"^\s*(import|from) (pickle|cloudpickle|dill|joblib|marshal|shelve)\b"
NEVER = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "torch.jit.load"),
    *(
        f"{module}.{way}"
        for module in ("pickle", "cloudpickle", "dill", "joblib", "marshal")
        for way in ("load", "loads")
    ),
    *("yaml.unsafe_load", "yaml.full_load", "shelve.open"),
}


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    """Every call of a file by its dotted name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield dotted(node.func), node


def dotted(node: ast.expr) -> str:
    """ "a.b.c" of such an expression, and "" of others."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def keyword(call: ast.Call, name: str) -> object:
    """The constant given for a keyword, or None."""
    return next((k.value.value for k in call.keywords if k.arg == name and isinstance(k.value, ast.Constant)), None)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_input_is_executed(path: Path) -> None:
    """No eval and similar functions, no shell, and loaders restricted to plain data."""
    for name, call in calls(path):
        assert name not in NEVER, f"{path}:{call.lineno}: {name}"
        assert keyword(call, "shell") is not True, f"{path}:{call.lineno}: a shell"
        assert keyword(call, "allow_pickle") is not True, f"{path}:{call.lineno}: pickled arrays"
        assert name != "torch.load" or keyword(call, "weights_only") is True, (
            f"{path}:{call.lineno}: without weights_only"
        )
        if name == "yaml.load":
            safe = ast.unparse(call.args[1]) == "Strict" and "class Strict(yaml.SafeLoader):" in path.read_text(
                encoding="utf-8"
            )
            assert safe, f"{path}:{call.lineno}: {name}"


def test_files_that_unpickle_are_restricted() -> None:
    """Only what restricts pickle imports it; another file writes what FL-bench reads, and reads nothing."""
    users = {path.name: path for path in FILES if re.search(PICKLERS, path.read_text(), re.M)}
    assert [*users] == ["drive_flbench.py", "pickles.py"]
    readers = [path for path in FILES if "pd.read_pickle" in path.read_text(encoding="utf-8")]
    assert [path.name for path in readers] == ["tables.py"]  # of installed packages, whose digests are checked
    assert "packaged_files(name)" in readers[0].read_text(encoding="utf-8")
    assert {name for name, _ in calls(users["drive_flbench.py"]) if "pickle" in name} == {"pickle.dump"}


@pytest.mark.parametrize("name", ["cora", "citeseer", "pubmed", "cifar10", "cifar100"])
def test_files_that_libraries_unpickle_have_pinned_digests(name: str) -> None:
    """torch-geometric and torchvision unpickle their own formats. They read only files with these digests."""
    for form in CATALOGUE[name]:
        assert [
            file.path for file in form.files if not re.fullmatch(r"sha256:[0-9a-f]{64}|md5:[0-9a-f]{32}", file.digest)
        ] == []


def test_servers_listen_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands bind to 127.0.0.1. Containers, which have their own network, publish only there."""
    for path in (ROOT / "pipelines").rglob("*.py"):
        assert "0.0.0.0" not in path.read_text(), path
    from fedweave.pipelines import ui

    monkeypatch.delenv("UI_HOST", raising=False)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///mlflow.db")
    for server in ui.servers():
        assert server.command[server.command.index("--host") + 1] == "127.0.0.1"
    services = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"].values()
    ports = [str(port) for service in services for port in service.get("ports", ())]
    assert ports
    assert all(re.match(r"(\$\{\w+:-)?127\.0\.0\.1", port) for port in ports)


def test_no_secret_is_in_the_project() -> None:
    """The committed settings have no text that looks like a password or a key."""
    for name in (".env", "params.yaml", "prefect.yaml", "dvc.yaml", "studies/base.yaml"):
        assert not re.search(r"(?i)(password|secret|token|api_?key)\s*[:=]\s*[^\s$]", (ROOT / name).read_text()), name
