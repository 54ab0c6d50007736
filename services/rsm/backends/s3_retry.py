"""Translate errors of the store and of urllib3, and decide how long and how often to try.

urllib3's Retry owns all repeated requests of a call to the store: a GET that resumes a broken body
takes from the same RSM_RETRIES as the request before it, and each MiB that arrives restores them.
"""

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from http import HTTPStatus
from types import TracebackType
from typing import Any, Self, cast
from xml.etree import ElementTree

from urllib3 import BaseHTTPResponse, Retry, Timeout
from urllib3.connectionpool import ConnectionPool, HTTPConnectionPool
from urllib3.exceptions import HTTPError, MaxRetryError, PoolError, ProtocolError

from services.api.calls import current_call
from services.api.errors import (
    BodyTooLargeError,
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoreAccessDeniedError,
    StoreNotFoundError,
)
from services.rsm.active_copies import Waiter
from services.rsm.backends.protocol import CHUNK_BYTES, NoAnswerError
from services.rsm.backends.s3_answers import UnusableAnswerError

# urllib3 takes no timeout of 0.
_SHORTEST_S = 0.001
# Temporary errors, even with a status below 500.
_RETRIABLE_CODES = frozenset(
    {
        "ConditionalRequestConflict",
        "OperationAborted",
        "RequestTimeout",
        # The store is too busy, whatever the status: for one key of many the status is 200.
        "InternalError",
        "RequestLimitExceeded",
        "ServerBusy",
        "ServiceUnavailable",
        "SlowDown",
        "SlowDownRead",
        "SlowDownWrite",
        "TooManyRequests",
        # The bytes changed on their way to the store.
        "BadDigest",
        "IncompleteBody",
        # The clock of this host or of the store is wrong, until an operator sets it.
        "RequestTimeTooSkewed",
        "MalformedXML",
        "XAmzContentChecksumMismatch",
        "XAmzContentSHA256Mismatch",
        # The upload was aborted, perhaps by the store's own clean-up: a new one may complete.
        "NoSuchUpload",
        # The store does not know the ETag that it answered for a part.
        "InvalidPart",
    }
)

_ACCESS_CODES = frozenset(
    {
        "AccessDenied",
        "AccountProblem",
        "AllAccessDisabled",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "NotSignedUp",
        "SignatureDoesNotMatch",
    }
)

_ADVICE = {
    "RequestTimeTooSkewed": "set the clock of this host, or the store's",
    "InvalidPart": "a part is missing, or the store answered a wrong ETag for it",
    "InvalidObjectState": "the object is archived: restore it in the store (RestoreObject), and "
    "exempt this prefix from the lifecycle rule that archives",
    "InvalidStorageClass": "correct storage_class of the location, or remove it",
    "KMS.DisabledException": "enable the key that sse_kms_key_id of the location names",
    "KMS.NotFoundException": "correct sse_kms_key_id of the location",
}
"""What to do next, by the code of the answer."""

# 499: the store takes the client for gone, for example if a request's body ended early.
_RETRIABLE_STATUSES = frozenset({408, 429, 499, 500})

_log = logging.getLogger(__name__)


class GivenUpError(MaxRetryError):
    """Raised if a request that could be retried is not retried; `why` has the reason."""

    def __init__(
        self, pool: ConnectionPool | None, url: str | None, error: Exception | None, why: str
    ) -> None:
        super().__init__(cast(HTTPConnectionPool, pool), url or "", error)
        self.why = why


class Repeats(Retry):
    """A Retry that ends when the caller is gone or the service stops.

    The caller is that of the current call. It is checked before each retry and during the pause
    before it: otherwise, if the store is silent, a caller that left would occupy a thread for one
    timeout per retry.
    """

    def __init__(self, *args: Any, waiter: Waiter, **named: Any) -> None:
        super().__init__(*args, **named)
        self._waiter = waiter

    def new(self, **named: Any) -> Self:
        return super().new(waiter=self._waiter, **named)

    def increment(
        self,
        method: str | None = None,
        url: str | None = None,
        response: BaseHTTPResponse | None = None,
        error: Exception | None = None,
        _pool: ConnectionPool | None = None,
        _stacktrace: TracebackType | None = None,
    ) -> Self:
        """Wait until the next retry is due; return the remaining retries.

        Raises:
            MaxRetryError: no retries are left.
            GivenUpError: the caller is gone, or the service stops.
            Exception: `error`, if this request must not be retried.
        """
        left = super().increment(method, url, response, error, _pool, _stacktrace)
        is_active = current_call().is_active
        with suppress(RetriableRemoteStorageError):  # The reason is raised below.
            self._waiter.until(self._waiter.now() + left.get_backoff_time(), is_active)
        if self._waiter.is_closed():
            raise GivenUpError(_pool, url, error, "the service is stopping")
        if not is_active():
            raise GivenUpError(_pool, url, error, "the client has left")
        return left

    def sleep(self, response: BaseHTTPResponse | None = None) -> None:
        """Do nothing, since `increment` has waited already."""


class BrokenBodyError(Exception):
    """Raised if a connection ends or times out before the last byte of a body. Internal to RSM.

    `retries` are those that the request had left.
    """

    def __init__(self, reason: str, retries: Retry | None) -> None:
        super().__init__(reason)
        self.retries = retries


def resumed(
    get: Callable[[int, Retry], Generator[bytes, None, None]],
    start: int,
    retries: Retry,
    what: str,
) -> Generator[bytes, None, None]:
    """Stream `get(start, retries)`; after a break resume with `get` at the next byte.

    A break costs a retry, as a failed request does. A GET that brings 1 MiB or more restores all.

    Raises:
        RetriableRemoteStorageError: no retries are left, the client has left, or the service stops.
    """
    position, left = start, retries
    while True:
        began, body = position, get(position, left)
        try:
            for chunk in body:
                position += len(chunk)
                yield chunk
            return
        except BrokenBodyError as e:
            text = f"{what}: the body broke off at byte {position} ({e})"
            left = retries if position - began >= CHUNK_BYTES else e.retries or retries
            try:
                left = left.increment("GET", error=ProtocolError(text))
            except MaxRetryError as gone:
                why = f"; not retried: {gone.why}" if isinstance(gone, GivenUpError) else ""
                raise RetriableRemoteStorageError(text + why) from e
            _log.info("%s; requesting the rest", text)
        finally:
            body.close()


class RequestTimeout(Timeout):
    """A Timeout that is no longer than the time left to the current call."""

    def __init__(self, connect_s: float, read_s: float) -> None:
        super().__init__(connect=connect_s, read=read_s)
        self._connect_s = connect_s
        self._read_s = read_s

    def clone(self) -> Timeout:
        """Return the timeouts of one request."""
        most_s = max(current_call().left_s(), _SHORTEST_S)
        return Timeout(
            connect=min(self._connect_s, most_s),
            read=min(self._read_s, most_s),
            total=most_s,
        )


def error_for(code: str | None, status: int, what: str) -> RemoteStorageError:
    """Return the error for a response of the store; `what` names the operation and its object."""
    text = f"{what}: the object store answered {status} {code}"
    if code in _ADVICE:
        text += f"; {_ADVICE[code]}"
    if status == HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
        text += "; correct the proxy_credentials_file of the location"
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        return BodyTooLargeError(
            f"{text}: a proxy before the store refuses this size; raise its limit above "
            "RSM_PART_SIZE_BYTES (nginx: client_max_body_size), or lower RSM_PART_SIZE_BYTES"
        )
    if code == "NoSuchKey":
        return RemoteResourceNotFoundError(text)
    if code == "NoSuchBucket":
        return StoreNotFoundError(f"{text}; create the bucket, or correct RSM_BUCKET")
    if code in _ACCESS_CODES or (code is None and status in (401, 403)):
        return StoreAccessDeniedError(
            f"{text}; correct the keys that RSM_CREDENTIALS names, or what the bucket's policy "
            "allows them; if it demands encryption, set sse of the location"
        )
    if code == "InvalidRange" or status == 416:
        # Only ranges within what was written are requested: bytes have been lost.
        return CorruptSegmentError(text)
    # A redirect is never followed: usually an intermediary sent it, not the store.
    is_redirect = 300 <= status < 400
    is_for_now = status in _RETRIABLE_STATUSES or status > 501
    if code in _RETRIABLE_CODES or is_redirect or is_for_now:
        return RetriableRemoteStorageError(text)
    return RemoteStorageError(text)


@contextmanager
def s3_errors(what: str) -> Iterator[None]:
    """Translate errors raised inside; `what` names the operation and its object."""
    try:
        yield
    except (ElementTree.ParseError, ValueError, LookupError) as e:
        # Not XML, such as a login page, or XML in an unknown encoding; or no number or no time.
        raise RetriableRemoteStorageError(f"{what}: not an answer of an S3 store ({e})") from e
    except GivenUpError as e:
        text = f"{what}: no answer from the object store; not retried: {e.why}"
        raise RetriableRemoteStorageError(text) from NoAnswerError(e)
    except UnusableAnswerError as e:
        raise RetriableRemoteStorageError(f"{what}: not an answer of an S3 store: {e}") from e
    except HTTPError as e:
        # http.client tells only in words which status a proxy gave instead of a tunnel.
        if "Tunnel connection failed: 407" in str(e):
            raise error_for(None, HTTPStatus.PROXY_AUTHENTICATION_REQUIRED, what) from e
        # Refused, reset, timed out, cut off: urllib3 has retried what may be retried.
        pool = e.pool if isinstance(e, PoolError) else None
        at = "" if pool is None else f" at {pool.host}:{pool.port}"
        text = f"{what}: the object store{at} cannot be reached ({type(e).__name__})"
        raise RetriableRemoteStorageError(text) from NoAnswerError(e)
