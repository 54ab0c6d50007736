"""What a user sees when a sweep cannot go on: one sentence and an exit code."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException

from services.api.errors import InvalidRequestError, RemoteStorageError

EXIT_PARTIAL = 1
EXIT_REFUSED = 2
EXIT_FAILED = 3

# Among the lines of what Spark says of a failed job, best first: our own error, which ended a task;
# what Spark makes of the task; the end of any other traceback of Python.
_CAUSES = (
    re.compile(r"^services\.api\.errors\.\w+: (?P<cause>.+)$", re.M),
    re.compile(r"Job aborted due to stage failure: (?P<cause>.+)$", re.M),
    re.compile(r"^(?P<cause>[\w.]+(?:Error|Exception): .+)$", re.M),
)


class SweepError(Exception):
    """The sweep did not begin or could not go on; the message says why and what to do."""

    def __init__(self, message: str, exit_code: int = EXIT_FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@contextmanager
def told_in_one_line() -> Iterator[None]:
    """Make a SweepError of what services and Spark raise; anything else is a defect of ours and
    keeps its traceback."""
    try:
        yield
    except InvalidRequestError as e:
        raise SweepError(str(e), EXIT_REFUSED) from e
    except RemoteStorageError as e:
        raise SweepError(str(e)) from e
    except (PySparkException, Py4JError) as e:
        raise SweepError(f"{_cause(e)}; run it again, --work-dir keeps Spark's log") from e


def _cause(error: Exception) -> str:
    """What ended a Spark job, in one line."""
    text = str(error)
    for pattern in _CAUSES:
        found = pattern.search(text)
        if found is not None:
            return found["cause"]
    lines = [line.strip(": ") for line in text.split("\n") if line.strip()]
    return f"Spark: {' '.join(lines[:2]) or type(error).__name__}"
