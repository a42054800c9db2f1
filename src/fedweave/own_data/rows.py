"""Federations of independent rows: the client of each row, the parts, and how columns become numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedweave import exported_model
from fedweave.data import Dataset
from fedweave.errors import BadInput, format_value
from fedweave.own_data import arrays, data_warnings, forecast_windows, image_files
from fedweave.own_data.argument_checks import as_names
from fedweave.own_data.arrangement import Arrangement, arrange, federation_fields
from fedweave.own_data.array_checks import as_plain
from fedweave.own_data.arrays_by_client import join_clients
from fedweave.own_data.column_encoding import Preprocessing, fit_columns
from fedweave.own_data.column_roles import (
    COLUMN_OPTIONS,
    check_column,
    check_roles,
    column_values,
    feature_columns,
    named_columns,
)
from fedweave.own_data.contents import describe_columns
from fedweave.own_data.features import as_features, find_unscaled
from fedweave.own_data.row_options import DataOptions, find_large_clients
from fedweave.own_data.several_inputs import as_vectors, describe_inputs, find_inputs, read_inputs
from fedweave.own_data.user_files import AMOUNTS, CODES, COMMAS, NOTES

if TYPE_CHECKING:
    import pandas as pd

SCALING_NOTES = {
    "standard": "Features are scaled by the training rows of all clients together.",
    "standard_client": "Features are scaled by each client's own training rows.",
}
TARGET_NOTES = {
    "pooled": "Targets are scaled by the training rows of all clients together; scores are in their own unit.",
    "client": "Targets are scaled by each client's own training rows; scores are in their own unit.",
}
TEXT_COLUMN = "text"  # name of the column of a list of texts


def fields_from_arrays(x: Any, y: Any, client: Any, options: DataOptions) -> dict[str, Any]:
    x, y, client, options = join_clients(x, y, client, options)
    if options.min_rows:
        return _fields_of_large_clients(x, y, client, options)
    if options.is_forecast:
        return forecast_windows.fields_from_steps(y, x, client, options)
    if are_texts(x):
        options = replace(options, features=[TEXT_COLUMN], text=[TEXT_COLUMN])
        return fields_from_table(text_table(x, y, client), "client", "label", options)
    scaling = options.normalize.get("name") if isinstance(options.normalize, Mapping) else options.normalize
    inputs = find_inputs(x, y)
    if inputs:
        stored, notes = read_inputs(inputs, options.name, scaling)
        values = as_vectors(stored)
    else:
        values, notes = as_features(x, options.name, scaling not in ("none", "unit"))
    if options.normalize is None:
        scaling = "none" if values.dtype == np.uint8 else "standard"
        options = replace(options, normalize=scaling)
    arrangement = arrange(y, client, len(values), options)
    scope = "client" if scaling == "standard_client" else "pooled"
    note = [SCALING_NOTES.get(str(scaling), ""), *([TARGET_NOTES[scope]] if arrangement.numbers is not None else [])]
    columns = describe_inputs(stored, arrangement.rows["train"]) if inputs else ()
    text = " ".join(filter(None, note))
    dataset = _build_dataset(exported_model.as_images(values), arrangement, options, text, columns=columns)
    if arrangement.numbers is not None and scope == "client":
        options = replace(options, normalize={"name": scaling, "targets": scope})
    notes += data_warnings.find_duplicates(dataset, arrangement.rows) + find_unscaled(dataset.x, bool(note[0]))
    notes += () if arrangement.numbers is None else data_warnings.find_marks(arrangement.numbers, "y")
    fields = federation_fields(dataset, arrangement, options, values.shape[1:], notes)
    roles = {"client": client, "y": y, "time": options.time, "recording": options.recording}
    roles |= {f"x[{name!r}]": part for name, part in inputs.items()} if inputs else {"x": x}
    return {**fields, "content": describe_columns(roles)}


def _fields_of_large_clients(x: Any, y: Any, client: Any, options: DataOptions) -> dict[str, Any]:
    """The fields of a federation of the clients with `min_rows` rows."""
    targets = as_plain(y, "y")
    kept, options, note = find_large_clients(client, len(targets), options)
    owners = as_plain(client, "client").ravel()
    if inputs := find_inputs(x, y):
        parts = {name: as_plain(part, f"x[{name!r}]") for name, part in inputs.items()}
        selected = [part[kept] for part in parts.values()]
        whole = dict(zip(parts, selected, strict=True)) if isinstance(x, Mapping) else tuple(selected)
        return _with_note(fields_from_arrays(whole, targets[kept], owners[kept], options), note)
    features = None if x is None else as_plain(x, "x")
    if features is not None and len(features) != len(targets):
        raise BadInput(f"x: {len(features)} rows, but y has {len(targets)}; give one for each")
    large = None if features is None else features[kept]
    return _with_note(fields_from_arrays(large, targets[kept], owners[kept], options), note)


def _with_note(fields: dict[str, Any], note: str) -> dict[str, Any]:
    return {**fields, "notes": (*filter(None, [note]), *fields["notes"])}


def _keep_large_clients(table: "pd.DataFrame", client: str, options: DataOptions) -> tuple["pd.DataFrame", DataOptions]:
    """The rows of clients with `min_rows` rows, with a note among those of the table."""
    if not options.min_rows:
        return table, options
    check_column(table, client, "client")
    kept, options, note = find_large_clients(column_values(table, client), len(table), options)
    large = table[kept].reset_index(drop=True)
    large.attrs = {**table.attrs, NOTES: [*filter(None, [note]), *table.attrs.get(NOTES, ())]}
    return large, options


def text_table(x: Any, y: Any, client: Any) -> "pd.DataFrame":
    """A list of texts with the label and the client of each, as a table."""
    import pandas as pd

    label = arrays.as_column(y, "y", len(x))
    arrays.as_clients(client, len(x))
    return pd.DataFrame({TEXT_COLUMN: [*x], "client": [*client], "label": pd.Series([*label])})


def are_texts(x: Any) -> bool:
    """Whether `x` is a list of texts."""
    try:
        flat = exported_model.as_plain(x) if hasattr(x, "dtype") or isinstance(x, list | tuple) else np.zeros(0)
    except (ValueError, RuntimeError, TypeError):  # such as rows of different lengths; refused later
        return False
    return flat.ndim == 1 and flat.dtype.kind not in "biufc" and any(isinstance(one, str) for one in flat)


def _build_dataset(x: np.ndarray, arrangement: Arrangement, options: DataOptions, note: str, **more: Any) -> Dataset:
    return Dataset(
        options.name,
        "images",
        x,
        arrangement.labels,
        len(arrangement.classes),
        note=note,
        targets=arrangement.numbers,
        class_names=arrangement.classes,
        class_type=arrangement.class_type,
        **more,
    )


def fields_from_table(
    table: "pd.DataFrame",
    client: str,
    label: str | Sequence[str],
    options: DataOptions,
    preprocessing: Preprocessing | None = None,
) -> dict[str, Any]:
    """The fields of a federation of a table.

    Args:
        preprocessing: of the columns, from a training without these clients; default: fitted on the training rows.
    """
    table, options = _keep_large_clients(table, client, options)
    option_columns = named_columns(table, options)
    if options.target is None and label in table.attrs.get(AMOUNTS, ()):
        options = replace(options, target="numbers")
    if options.is_forecast:
        return _fields_from_series(table, client, label, options, option_columns)
    _refuse_scaling(options.normalize)
    if not isinstance(label, str) and len(as_names(label, "label")) > 1:
        raise BadInput(f"label: {[*label]} are several columns, which only forecasts have; give window and horizon")
    target = str(as_names(label, "label")[0])
    selected = feature_columns(table, client, [target], options.features, option_columns, exclude=options.exclude)
    options = replace(options, **{key: column_values(table, column) for key, column in option_columns.items()})
    arrangement = arrange(column_values(table, target), column_values(table, client), len(table), options)
    train = arrangement.rows["train"]
    if preprocessing is None:
        words = options.words(selected)
        preprocessing = fit_columns(table, selected, train, options.embed, options.is_pooled, words)
    else:
        preprocessing = preprocessing.with_clients(table, train)
    known_clients = max(0, preprocessing.clients - len(arrangement.names))  # they come first
    encoded = preprocessing.encode(table, arrangement.owner + known_clients)
    numbers, scaled = arrangement.numbers, "standard" if options.is_pooled else "standard_client"
    has_numbers = any(not (column.levels or column.is_text) for column in preprocessing.columns)
    sentences = [SCALING_NOTES[scaled]] * has_numbers + [TARGET_NOTES[options.preprocess]] * (numbers is not None)
    dataset = _build_dataset(
        exported_model.as_images(encoded),
        arrangement,
        options,
        " ".join(sentences),
        categories=preprocessing.categories,
        columns=tuple(preprocessing.as_data()),
        client_column=client,
        raw=preprocessing.read(table),
    )
    if numbers is not None and not options.is_pooled:
        options = replace(options, normalize={"name": "none", "targets": "client"})
    notes = _warnings(table, selected, arrangement, dataset, preprocessing)
    notes += () if numbers is None else data_warnings.find_marks(numbers, f"column {target!r}")
    fields = federation_fields(dataset, arrangement, options, encoded.shape[1:], notes)
    roles = dict.fromkeys(selected, "feature") | {column: role for role, column in option_columns.items()}
    content = describe_columns({**roles, target: "label", client: "client"}, table)
    return {**fields, "preprocessing": preprocessing, "content": content}


def _refuse_scaling(normalize: Any) -> None:
    """Refuse a scaling of arrays, which would scale the encoded columns a second time."""
    if normalize is not None:
        raise BadInput(
            f"normalize: {format_value(normalize)} does not fit the columns of a table, or texts, which are scaled "
            "already; leave it out, and give preprocess='client' for columns by each client's own rows"
        )


def _warnings(
    table: "pd.DataFrame",
    features: Sequence[str],
    arrangement: Arrangement,
    dataset: Dataset,
    preprocessing: Preprocessing,
) -> tuple[str, ...]:
    """Warnings about the columns and rows of a table, one line each."""
    train = np.concatenate(arrangement.rows["train"])
    whole_rows = table[[*features]].notna().all(axis=1).to_numpy()
    misread = [data_warnings.find_misread_columns(table, [column], len(train)) for column in preprocessing.columns]
    others = [column for column, found in zip(preprocessing.columns, misread, strict=True) if not found]
    return (
        *table.attrs.get(NOTES, ()),
        *data_warnings.find_codes(table.attrs.get(CODES, {}), features),
        *data_warnings.find_label_leakage(table, features, arrangement.labels, arrangement.numbers, train),
        *data_warnings.find_duplicates(dataset, arrangement.rows, whole_rows),
        *chain(*misread),
        *data_warnings.find_unseen(table, others, arrangement.rows),
        *data_warnings.find_infinite(table, preprocessing.columns),
    )


def _fields_from_series(
    table: "pd.DataFrame",
    client: str,
    label: str | Sequence[str],
    options: DataOptions,
    option_columns: Mapping[str, str],
) -> dict[str, Any]:
    """The fields of a federation of a table whose rows are time steps."""
    if options.embed is not None or options.text:
        raise BadInput(
            f"{'text' if options.text else 'embed'}: does not fit forecasts, whose columns are numbers; drop it"
        )
    if options.exclude:
        raise BadInput("exclude: forecasts read the label and `features` alone; drop it")
    labels = as_names(label, "label")
    others = feature_columns(
        table, client, labels, () if options.features is None else options.features, option_columns, least=0
    )
    options = replace(options, **{key: column_values(table, column) for key, column in option_columns.items()})
    if not options.is_pooled:
        options = replace(options, normalize=options.normalize or "standard_client")
    channels = [forecast_windows.as_channels(table[name].to_numpy(), f"column {name!r}") for name in (*labels, *others)]
    values = np.concatenate(channels[: len(labels)], axis=1)
    other_values = np.concatenate(channels[len(labels) :], axis=1) if others else None
    fields = forecast_windows.fields_from_steps(values, other_values, column_values(table, client), options)
    fields["dataset"] = replace(fields["dataset"], client_column=client)
    fields["notes"] = (*table.attrs.get(NOTES, ()), *fields["notes"])
    described = {client: "client", **{column: role for role, column in option_columns.items()}}
    described |= dict.fromkeys(labels, "label, forecast") | dict.fromkeys(others, "feature, known steps")
    fields["content"] = describe_columns(described, table)
    commas = {"has_commas": True} if table.attrs.get(COMMAS) else {}
    roles: list[dict[str, Any]] = [{"name": name, "role": "value", "label": True, **commas} for name in labels]
    roles += [{"name": name, "role": "value", **commas} for name in others]
    if "time" in option_columns:
        steps = forecast_windows.usual_steps(options.time, table[client].to_numpy())
        roles += [{"name": option_columns["time"], "role": "time", "steps": steps}, {"name": client, "role": "client"}]
        fields["dataset"] = replace(fields["dataset"], columns=tuple(roles))
    return fields


def fields_from_named_arrays(
    stored: Mapping[str, np.ndarray], client: str, label: str | Sequence[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The fields of a federation of the arrays of a file.

    Raises:
        BadInput: an array is not there, several are named where one is needed, or an option is one of tables.
    """
    arguments = dict(options)
    features = arguments.pop("features", None)
    table_only = next((key for key in ("exclude", "embed", "preprocess", "text") if key in arguments), None)
    if table_only:
        raise BadInput(f"{table_only}: is an option of tables, and this file holds arrays; leave it out")
    option_arrays = {key: arguments[key] for key in COLUMN_OPTIONS if isinstance(arguments.get(key), str)}
    option_arrays = {key: name for key, name in option_arrays.items() if key != "split" or name in stored}
    target, feature_name = (_one_name(*pair) for pair in ((label, "label"), (features or "x", "features")))
    check_roles(client, [target], option_arrays)
    without_features = features is None and arguments.get("window") is not None and feature_name not in stored
    for name in (*([] if without_features else [feature_name]), client, target, *option_arrays.values()):
        if not isinstance(name, str) or name not in stored:
            raise BadInput(f"arrays: there is no {format_value(name)}; the file has {', '.join(stored)}")
    arguments |= {key: stored[name] for key, name in option_arrays.items()}
    return fields_from_arrays(
        None if without_features else stored[feature_name], stored[target], stored[client], DataOptions(**arguments)
    )


def _one_name(value: Any, option: str) -> str:
    names = as_names(value, option)
    if len(names) > 1:
        raise BadInput(f"{option}: {names} are several arrays; give one")
    return str(names[0])


def fields_from_images(
    table: "pd.DataFrame",
    image: str,
    client: str,
    label: str,
    root: Path,
    size: tuple[int, int] | None,
    options: DataOptions,
) -> dict[str, Any]:
    """The fields of a federation of images that a column of a table names or holds."""
    table, options = _keep_large_clients(table, client, options)
    option_columns = named_columns(table, options)
    check_column(table, image, "image")
    feature_columns(table, client, [label], [image], option_columns)
    options = replace(options, **{key: column_values(table, column) for key, column in option_columns.items()})
    x = image_files.load(table[image].tolist(), root, size)
    fields = fields_from_arrays(x, column_values(table, label), column_values(table, client), options)
    return {
        **fields,
        "notes": (*table.attrs.get(NOTES, ()), *fields["notes"]),
        "dataset": replace(fields["dataset"], columns=(image_files.describe(image, size),), client_column=client),
        "content": describe_columns(
            {client: "client", label: "label", **{column: role for role, column in option_columns.items()}}, table
        ),
    }
