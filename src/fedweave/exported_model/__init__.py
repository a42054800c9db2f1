"""Raw rows as inputs of a model, and a model that was exported: this package works without the rest of fedweave.

`export` copies it into its folder under another name, so its files import each other by relative names. So rows become
inputs in the same way there as in training.
"""

from .columns import (
    as_images,
    as_table,
    check_client,
    check_columns,
    encode_column,
    is_encoded,
    last_window,
    level_codes,
    other_clients,
    step_names,
    unique_texts,
    warn_of_empty,
    warn_of_numbers,
)
from .errors import InputError
from .inputs import describe_inputs, has_inputs, join_inputs
from .model import ABOUT, LOADER, MAX_ROWS, PROGRAM, WEIGHTS, Model, load, probabilities, read_rows
from .pixels import WHITE, divide_bytes, scale_pixels
from .serving import PyfuncModel, _load_pyfunc
from .values import EXACT, KINDS, as_labels, as_numbers, as_plain, as_text, as_times, find_no_code, name_of, type_names
