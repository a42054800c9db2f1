"""Checks of the names in a method's class: what nothing calls has no effect, and what has no type is not a setting."""

import difflib
import warnings

from fedweave.engine.hook_names import check_hooks, find_hooks, own_classes, untyped_values, unused_functions
from fedweave.engine.protocol import Method
from fedweave.errors import BadInput


def check_names(cls: type[Method]) -> None:
    """Refuse what a registered class is refused or warned for, and values that look like settings and are none.

    A function is used if the class, its bases or another part of the file reads an attribute with its name. Another one
    that is not used may be for callers elsewhere: it is a warning.

    Raises:
        AssertionError: naming the class, the name and what to write in its place.
    """
    try:
        with warnings.catch_warnings(action="error", category=UserWarning):  # of a name that nothing calls
            check_hooks(cls)
    except (BadInput, UserWarning) as error:
        raise AssertionError(str(error)) from None
    for own in own_classes(cls):
        for name, value in untyped_values(own).items():
            kind = type(value).__name__
            raise AssertionError(
                f"{own.__name__}: {name} = {value!r} has no type, so that it is not a setting; "
                f"write {name}: {kind} = {value!r}, or {name}: ClassVar[{kind}] = {value!r} for a constant"
            )
        for name in unused_functions(cls, own):
            closest = difflib.get_close_matches(name, find_hooks(own), 1, 0.0)
            warnings.warn(
                f"{own.__name__}: nothing calls {name}, which is not a hook; the closest hook is {closest[0]}; "
                f"name it _{name} if it is a function of your own",
                stacklevel=3,
            )
