"""What a user sees when a command cannot do its work: one sentence and an exit code."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

EXIT_PARTIAL = 1
EXIT_USAGE = 2
EXIT_FAILED = 3


class CommandError(Exception):
    """The command cannot go on; the message says what was wrong and what to do."""

    def __init__(self, message: str, exit_code: int = EXIT_USAGE) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def reported() -> Iterator[None]:
    """Print the failures that a user can cause or must know of; anything else is a defect of ours
    and keeps its traceback."""
    try:
        yield
    except CommandError as e:
        _exit(e, e.exit_code)
    except Exception as e:
        exit_code = _exit_code(e)
        if exit_code is None:
            raise
        _exit(e, exit_code)


def _exit_code(error: Exception) -> int | None:
    """None: no failure that a user must know by a sentence."""
    # Imported only now: a command that succeeds need not wait for them.
    from services.api.errors import InvalidRequestError, RemoteStorageError
    from services.local.data_directory import DataDirectoryError
    from services.local.postgres_cluster import ClusterError
    from services.local.process import ProcessError
    from services.rlm.kafka_log.errors import LogDirError

    if isinstance(error, InvalidRequestError | DataDirectoryError | ClusterError | LogDirError):
        return EXIT_USAGE
    if isinstance(error, RemoteStorageError | ProcessError):
        return EXIT_FAILED
    return None


def _exit(error: Exception, exit_code: int) -> None:
    print(f"sediment: {error}", file=sys.stderr)
    raise SystemExit(exit_code)
