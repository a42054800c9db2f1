"""The text of params.yaml, which `fedweave study use` and `fedweave init` write."""

import re
from typing import Any

from .. import signed_files

NUMBER_LIKE = re.compile(r"[-+._0-9][-+._0-9a-fA-FxXoO:]*$")


def dump(content: dict[str, Any]) -> str:
    """The text of params.yaml: a block for each key, and one line for each entry of a block."""
    parts = []
    for key, value in content.items():
        if isinstance(value, dict) and value and key not in ("tune", "tasks"):
            parts.append(
                "\n".join(
                    [f"{key}:", *(f"  {_to_yaml({name: entry}, True, 10**6)[1:-1]}" for name, entry in value.items())]
                )
            )
        else:
            parts.append(_to_yaml({key: value}, None if isinstance(value, dict | list) else False, 150))
    body = "\n\n".join(parts) + "\n"
    command = f"`fedweave study use {content['study']}`"
    return signed_files.sign(f"Written by {command}; `dvc repro` runs what stands here.", body)


def _to_yaml(value: dict[str, Any], flow: bool | None, width: int) -> str:
    """YAML that `read_yaml` and DVC read as `value`."""
    import yaml

    class PlainDumper(yaml.SafeDumper):
        def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
            return super().increase_indent(flow, False)

        def ignore_aliases(self, data: Any) -> bool:
            return True

    # PyYAML writes YAML 1.1; what looks like a number in either dialect is quoted if it is a text.
    PlainDumper.add_implicit_resolver("!number", NUMBER_LIKE, None)
    return yaml.dump(
        value, Dumper=PlainDumper, sort_keys=False, default_flow_style=flow, width=width, allow_unicode=True
    ).rstrip()
