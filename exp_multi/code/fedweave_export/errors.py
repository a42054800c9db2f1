"""The error of rows and files that do not fit."""


class InputError(ValueError):
    """Rows that the model cannot take, or a file that it cannot be read from: one line with the reason."""
