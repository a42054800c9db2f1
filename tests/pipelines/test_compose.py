"""compose.yaml and Dockerfile as Docker reads them: pinned, unprivileged, with health checks, and with existing
commands.
"""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BASE, POSTGRES, GPU = (ROOT / name for name in ("compose.yaml", "compose.postgres.yaml", "compose.gpu.yaml"))
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ").splitlines()


def plain(value: Any) -> Any:
    """`value` with ${NAME:-default} replaced by the default."""
    if isinstance(value, dict):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [plain(entry) for entry in value]
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", value) if isinstance(value, str) else value


def merged(*files: Path) -> dict[str, Any]:
    """The files merged: services by name, their mappings by key."""
    result: dict[str, Any] = {"services": {}, "volumes": {}, "configs": {}}
    for content in (plain(yaml.safe_load(file.read_text())) for file in files):
        for name, service in content.get("services", {}).items():
            base = result["services"].setdefault(name, {})
            for key, value in service.items():
                base[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
        for part in ("volumes", "configs"):
            result[part] |= content.get(part) or {}
    return result


EVERYTHING = merged(BASE, POSTGRES, GPU)
SERVICES = EVERYTHING["services"]


def usage(program: str, *words: str) -> str:
    """The help text of a command."""
    import mlflow.cli
    import typer.main
    from click.testing import CliRunner

    from fedweave.pipelines.commands.main import app

    if program == "prefect":  # its commands are not click commands
        command = [sys.executable, "-m", "prefect", *words, "--help"]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout
    group = {"mlflow": mlflow.cli.cli, "fedweave": typer.main.get_command(app)}[program]
    done = CliRunner().invoke(group, [*words, "--help"], terminal_width=200)
    assert done.exit_code == 0, done.output
    return re.sub(r"\x1b\[[0-9;]*m", "", done.output)


def commands(service: dict[str, Any]) -> list[list[str]]:
    """The commands of a service. A shell line is split into its commands."""
    values = service.get("command") or []
    words = shlex.split(values) if isinstance(values, str) else values
    parts = [shlex.split(part) for part in words[2].split("&&")] if words[:2] == ["sh", "-c"] else [words] * bool(words)
    return [part[1:] if part[0] == "exec" else part for part in parts]


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_is_pinned_unprivileged_and_has_a_health_check(name: str) -> None:
    service = SERVICES[name]
    image, _, tag = service["image"].partition(":")
    assert "build" in service if image == "fedweave" else re.match(r"\d+\.\d+", tag)
    assert service["user"].split(":")[0] not in ("", "root", "0")
    assert "no-new-privileges:true" in service["security_opt"]
    assert service["restart"] == "unless-stopped"
    probe = service["healthcheck"]
    assert probe["test"][0] == "CMD"
    assert {"interval", "timeout", "retries", "start_period"} <= {*probe}
    patience = {name: int(probe[name].removesuffix("s")) for name in ("timeout", "start_period")}
    # On fully loaded cores, probes took 16 seconds, and MLflow took 231 seconds to start.
    assert image == "postgres" or (patience["timeout"] >= 30 and patience["start_period"] >= 300)
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    for other, condition in service.get("depends_on", {}).items():
        assert condition == {"condition": "service_healthy"}
        assert "healthcheck" in SERVICES[other]


@pytest.mark.parametrize(("name", "words"), [(name, words) for name in SERVICES for words in commands(SERVICES[name])])
def test_a_command_exists_with_all_its_options(name: str, words: list[str]) -> None:
    path = [word for word in words[1:3] if not word.startswith("-") and word.isalpha()]
    options = [word for word in words if word.startswith("--")]
    output = usage(words[0], *path)
    assert [option for option in options if option not in output] == []


def test_volumes_are_declared_and_their_folders_belong_to_the_user() -> None:
    """A volume inherits the owner of the image's folder. A folder that the image lacks would belong to root."""
    (made,) = (line.partition("mkdir -p ")[2].split() for line in DOCKERFILE if "core.no_scm" in line)
    for service in SERVICES.values():
        for volume, target in (entry.split(":") for entry in service.get("volumes", [])):
            assert volume in EVERYTHING["volumes"]
            assert service["image"].startswith("postgres") or target.removeprefix("/fedweave/") in made
        assert {entry["source"] for entry in service.get("configs", [])} <= {*EVERYTHING["configs"]}


def test_services_write_to_volumes_and_link_to_published_ports() -> None:
    """By default Prefect writes the pages of its UI into its own package. Without permission to write, it has no UI."""
    published = {
        f"http://{port.rpartition(':')[0]}" for service in SERVICES.values() for port in service.get("ports", [])
    }
    for service in SERVICES.values():
        volumes = [entry.partition(":")[2] for entry in service.get("volumes", [])]
        values = service.get("environment", {})
        paths = [
            value.removeprefix("sqlite:///")
            for value in values.values()
            if value.removeprefix("sqlite:///").startswith("/fedweave")
        ]
        assert [path for path in paths if not any(Path(path).is_relative_to(volume) for volume in volumes)] == []
        assert {values[name] for name in values if name.endswith("_UI_URL")} <= published
    assert {"PREFECT_HOME", "PREFECT_UI_STATIC_DIRECTORY"} <= {*SERVICES["prefect"]["environment"]}
    assert {"PREFECT_UI_URL", "MLFLOW_UI_URL"} <= {*SERVICES["worker"]["environment"]}


def test_variables_are_ones_that_the_programs_read() -> None:
    """A misspelt variable would be ignored without a message."""
    from mlflow.cli import cli
    from prefect.settings import Settings

    names = {name.upper() for name in _names(Settings)}
    values = {
        name for service in SERVICES.values() for name in service.get("environment", {}) if name.startswith("PREFECT_")
    }
    assert values <= names
    assert "MLFLOW_BACKEND_STORE_URI" in {option.envvar for option in cli.commands["server"].params}


def _names(model: Any) -> list[str]:
    """Every environment variable of Prefect's settings."""
    names = [f"{model.model_config.get('env_prefix', '')}{name}" for name in model.model_fields]
    for field in model.model_fields.values():
        names += [choice for choice in getattr(field.validation_alias, "choices", ()) if isinstance(choice, str)]
        names += _names(field.annotation) if hasattr(field.annotation, "model_fields") else []
    return names


def test_the_image_is_pinned_and_runs_as_an_unprivileged_user() -> None:
    (python,) = (line.partition("=")[2] for line in DOCKERFILE if line.startswith("ARG PYTHON"))
    assert re.fullmatch(r"\d+\.\d+\.\d+-slim-\w+", python)
    assert all(line.split()[1] == "python:${PYTHON}" for line in DOCKERFILE if line.startswith("FROM"))
    assert not DOCKERFILE[0].startswith("# syntax"), "a second image to pull, for a syntax that every builder knows"
    assert any(re.search(r"pip install \S+ uv==\d+\.\d+\.\d+", line) for line in DOCKERFILE)
    last = DOCKERFILE[max(i for i, line in enumerate(DOCKERFILE) if line.startswith("FROM")) :]
    order = [line.split()[0] for line in last if line.split()[:1] and line.split()[0] in ("USER", "HEALTHCHECK", "CMD")]
    assert order == ["USER", "HEALTHCHECK", "CMD"]
    assert "USER fedweave" in last


def test_the_layer_of_dependencies_uses_only_the_files_that_name_them() -> None:
    """With other files, every edit of them would download all dependencies again."""
    first = next(line for line in DOCKERFILE if line.startswith("COPY"))
    assert first.split()[1:-1] == ["pyproject.toml", "constraints.txt"]


def test_files_that_the_image_copies_are_in_the_build_context() -> None:
    """.dockerignore admits everything that a build or a run needs, and nothing that is not in the repository."""
    allowed = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    assert all((ROOT / name).exists() for name in allowed)
    copied = [
        word for line in DOCKERFILE if line.startswith("COPY") and "--from" not in line for word in line.split()[1:-1]
    ]
    assert {*copied} - {"."} <= {*allowed}
    assert {"dvc.yaml", "params.yaml", "prefect.yaml", "pipelines", "src", "studies", ".env"} <= {*allowed}
