"""How long a request to an S3 store may take, and for whom it is repeated."""

from contextlib import suppress
from types import TracebackType
from typing import Any, Self, cast

from urllib3 import BaseHTTPResponse, Retry, Timeout
from urllib3.connectionpool import ConnectionPool, HTTPConnectionPool
from urllib3.exceptions import MaxRetryError

from services.api.calls import current_call
from services.api.errors import RetriableRemoteStorageError
from services.rsm.clean_up import left_s
from services.rsm.waiting import Waiting

# urllib3 takes no timeout of 0.
_SHORTEST_S = 0.001


class GivenUpError(MaxRetryError):
    """A request might be repeated, and is not: `why`."""

    def __init__(
        self, pool: ConnectionPool | None, url: str | None, error: Exception | None, why: str
    ) -> None:
        super().__init__(cast(HTTPConnectionPool, pool), url or "", error)
        self.why = why


class Repeats(Retry):
    """Retry that repeats for nobody who is gone, and not once the service stops.

    The caller is that of the current call. It is looked for before each repeat, and all through
    the pause before it: against a silent store a caller who left would else hold a thread for as
    many timeouts as there are repeats.
    """

    def __init__(self, *args: Any, waiting: Waiting, **named: Any) -> None:
        super().__init__(*args, **named)
        self._waiting = waiting

    def new(self, **named: Any) -> Self:
        return super().new(waiting=self._waiting, **named)

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: BaseHTTPResponse | None = None,
        error: Exception | None = None,
        _pool: ConnectionPool | None = None,
        _stacktrace: TracebackType | None = None,
    ) -> Self:
        """What is left of the repeats, once the next one is due.

        Raises:
            MaxRetryError: none is left.
            GivenUpError: nobody waits for one.
            Exception: `error`, after which this request is not repeated.
        """
        left = super().increment(method, url, response, error, _pool, _stacktrace)
        is_active = current_call().is_active
        with suppress(RetriableRemoteStorageError):  # What ended the pause is told below.
            self._waiting.until(self._waiting.now() + left.get_backoff_time(), is_active)
        if self._waiting.is_closed():
            raise GivenUpError(_pool, url, error, "the service is stopping")
        if not is_active():
            raise GivenUpError(_pool, url, error, "nobody waits for it any more")
        return left

    def sleep(self, response: BaseHTTPResponse | None = None) -> None:
        """Not here: `increment` has waited, and may still say no then."""


class Patience(Timeout):
    """Timeout that is no longer than what is left to a clean-up."""

    def __init__(self, connect_s: float, read_s: float, waiting: Waiting) -> None:
        super().__init__(connect=connect_s, read=read_s)
        self._connect_s = connect_s
        self._read_s = read_s
        self._waiting = waiting

    def clone(self) -> Timeout:
        """The timeouts of one request."""
        most_s = max(left_s(self._waiting), _SHORTEST_S)
        return Timeout(
            connect=min(self._connect_s, most_s),
            read=min(self._read_s, most_s),
            total=most_s,
        )
