"""The error of rows that do not fit."""


class InputError(ValueError):
    """Rows that the model cannot take: one line with the reason."""
