"""Define the exit codes of a sweep and the error that ends one."""

from collections.abc import Iterator
from contextlib import contextmanager

from services.api.errors import InvalidRequestError, RemoteStorageError

EXIT_PARTIAL = 1
EXIT_REFUSED = 2
EXIT_FAILED = 3


class SweepError(Exception):
    """The sweep could not start or continue; the message has the reason and the remedy."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def service_errors() -> Iterator[None]:
    """Turn errors of the services into SweepError.

    Any other error is a defect of the sweep and keeps its traceback.
    """
    try:
        yield
    except InvalidRequestError as e:
        raise SweepError(str(e), EXIT_REFUSED) from e
    except RemoteStorageError as e:
        raise SweepError(str(e)) from e
