"""The user whose command runs."""

import getpass
import os


def user_name() -> str:
    """The user's name; the number of one without a name, as in a container."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())
