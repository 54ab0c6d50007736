"""What a user sees when a command cannot do its work: one sentence and an exit code."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

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
        _exit(str(e), e.exit_code)
    except Exception as e:
        # Imported only now: a command that succeeds need not wait for it.
        from services.api.errors import RemoteStorageError

        if not isinstance(e, RemoteStorageError):
            raise
        _exit(str(e), EXIT_FAILED)


def _exit(message: str, exit_code: int) -> None:
    print(f"sediment: {message}", file=sys.stderr)
    raise SystemExit(exit_code)
