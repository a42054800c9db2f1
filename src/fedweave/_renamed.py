"""The names of modules of version 0.1.0, which plug-ins, exported models and pickles of users may hold.

They can be imported until version 0.3. CHANGELOG.md has the same table.
"""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# (old package, new package) -> modules; "old:new" where the name of a module has changed too.
MOVED = {
    ("api", "comparison"): (
        "compare plan central_control reuse:earlier_runs progress scorers:user_metrics comparison "
        "result:method_result paired_test leaderboard margins figures comparison_warnings:warnings "
        "folder:results_folder tuning newcomers:further_rounds"
    ),
    ("api", "own_data"): (
        "federation options:row_options arguments:argument_checks arrays client_arrays:arrays_by_client "
        "tables:column_encoding columns:column_roles reading:user_files splits targets features images:image_files "
        "graphs forecasts:forecast_windows rows data_checks:data_warnings"
    ),
    ("api", "prediction"): "prediction:predictor export packing",
    ("api.exported_model", "exported_model"): "columns errors pixels model serving",
    ("federation", "engine"): (
        "protocol engine executors schedule timeline start records evaluation predictions uploads accounting "
        "server_hooks sent_downloads own_settings registry subgraphs federation:clients graph_truth edge_values"
    ),
    ("federation", "engine.guards"): (
        "guards:draws_and_names hook_guards:hook_calls state_guards:returned graph_guards:returned"
    ),
    ("federation", "graphs"): (
        "graph_settings:setting collaboration:weights graph_quality:quality graph_controls:controls"
    ),
    ("server_networks", "families.networks"): "sheaf attention mlp maps collaborative graph architecture antisymmetric",
    ("readers", "files"): "arrays",
    ("tensors", "processes"): "forks",
    ("runs", "processes"): "parallel",
    ("runs", "runs"): "preparation:build metric_check:row_checks units:row_checks",
    ("models", "models"): "adapter:own_module",
    ("runs", "study"): "assembly:validate",
    ("deployment", "deployment"): "store:stored_states",
    ("deployment", "deployment.node"): "node_options client_data own_rows predictions devices:node",
    ("deployment", "deployment.server"): (
        "enrolment node_registry recording checkpoint message_log averaging inspection:replies folders:checkpoint"
    ),
    ("deployment", "deployment.wire"): "messages spec roster status support tensors decoding:tensors run_config:roster",
}
PACKAGES = {
    "api": "",
    "api.exported_model": "exported_model",
    "federation": "engine",
    "readers": "files",
    "server_networks": "families.networks",
}
CLASSES = {
    ("federation.federation", "Federation"): "Clients",
    ("models.adapter", "Adapter"): "OwnModule",
    ("models.adapter", "AdaptedModel"): "WrappedModule",
    ("models.adapter", "adapt"): "wrap",
}


def new_names() -> dict[str, str]:
    """Old -> new name of every module that has moved, without the "fedweave." before them."""
    names = {}
    for (old, new), modules in MOVED.items():
        for module in modules.split():
            before, _, after = module.partition(":")
            names[f"{old}.{before}"] = f"{new}.{after or before}"
    return names


class OldNames:
    """Finds a module by its old name: an empty one that takes what is asked of it from the new one."""

    def __init__(self) -> None:
        self.names = {f"fedweave.{old}": new for old, new in (PACKAGES | new_names()).items()}

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """Called by Python for a module that it has not found."""
        if name not in self.names:
            return None
        return ModuleSpec(name, self, is_package=name.removeprefix("fedweave.") in PACKAGES)  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None:
        """Python makes the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Fill the module."""
        old = module.__name__.removeprefix("fedweave.")
        new = self.names[module.__name__]
        if new:
            warnings.warn(f"{module.__name__} is fedweave.{new} now", DeprecationWarning, stacklevel=2)

        def get(name: str) -> Any:
            if not new or name.startswith("__"):
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            return getattr(import_module(f"fedweave.{new}"), CLASSES.get((old, name), name))

        module.__dict__["__getattr__"] = get


def install() -> None:
    """Let Python find modules by their old names; called when fedweave is imported."""
    sys.meta_path.append(OldNames())
