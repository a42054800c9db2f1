"""A client of the Prefect server, which may ask for a password."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fedweave.errors import BadInput

from .. import addresses

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


@contextmanager
def connect() -> Iterator["SyncPrefectClient"]:
    """A client of the server that PREFECT_API_URL names.

    Raises:
        BadInput: the server refuses the password.
    """
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError
    from prefect.settings import PREFECT_API_URL

    try:
        with get_client(sync_client=True) as client:
            yield client
    except PrefectHTTPStatusError as error:
        if error.response.status_code not in addresses.PASSWORD_ERRORS:
            raise
        raise BadInput(
            f"PREFECT_API_URL: the Prefect server at {PREFECT_API_URL.value()} refuses the password "
            f"({error.response.status_code}); set PREFECT_API_AUTH_STRING=USER:PASSWORD, or PREFECT_API_KEY to a key"
        ) from error
