"""From what the minio SDK and urllib3 raise to our errors, by code and status, never by text."""

from collections.abc import Iterator
from contextlib import contextmanager
from xml.etree import ElementTree

from minio.error import MinioException, S3Error, ServerError
from urllib3.exceptions import HTTPError

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.rsm.backends.protocol import NoAnswerError
from services.rsm.backends.s3_patience import GivenUpError

# A matter of the moment, also with a status below 500.
_RETRIABLE_CODES = frozenset(
    {
        "ConditionalRequestConflict",
        "OperationAborted",
        "RequestTimeout",
        # The store has no time, whatever the status: of one key of many it is 200.
        "InternalError",
        "RequestLimitExceeded",
        "ServerBusy",
        "ServiceUnavailable",
        "SlowDown",
        "SlowDownRead",
        "SlowDownWrite",
        "TooManyRequests",
        # What we sent did not arrive as it was.
        "BadDigest",
        "IncompleteBody",
        # This host's clock is wrong, or the store's: until somebody sets it.
        "RequestTimeTooSkewed",
        "MalformedXML",
        "XAmzContentChecksumMismatch",
        "XAmzContentSHA256Mismatch",
        # Somebody ended our upload, such as the store's own clean-up: a new one may complete.
        "NoSuchUpload",
    }
)
# 499: the store takes us for gone, as where our body ended early.
_RETRIABLE_STATUSES = frozenset({408, 429, 499, 500})


def error_for(code: str | None, status: int, what: str) -> RemoteStorageError:
    """The error for an answer of the store; `what` says what was tried, and on what."""
    text = f"{what}: the object store answered {status} {code}"
    if code == "RequestTimeTooSkewed":
        text += "; set the clock of this host, or the store's"
    if code == "NoSuchKey":
        return RemoteResourceNotFoundError(text)
    if code == "InvalidRange" or status == 416:
        # Ranges are asked for within what was written: bytes have been lost.
        return CorruptSegmentError(text)
    # A redirect is never followed: something between us and the store sent it, as a rule.
    is_redirect = 300 <= status < 400
    is_for_now = status in _RETRIABLE_STATUSES or status > 501
    if code in _RETRIABLE_CODES or is_redirect or is_for_now:
        return RetriableRemoteStorageError(text)
    return RemoteStorageError(text)


@contextmanager
def s3_errors(what: str) -> Iterator[None]:
    """Translate what the SDK raises inside; `what` says what is tried, and on what."""
    try:
        yield
    except S3Error as e:
        raise error_for(e.code, e.response.status, what) from e
    except ServerError as e:
        raise error_for(None, e.status_code, what) from e
    except MinioException as e:
        # InvalidResponseError: no XML, so something between us and the store answered.
        raise RetriableRemoteStorageError(f"{what}: not an answer of an S3 store") from e
    except (ElementTree.ParseError, ValueError) as e:
        # No XML, or of something else, as a page to sign in: the SDK misses an element in it. Or
        # what the SDK did not send, as it takes our own part for wrong: then it alone says so.
        raise RetriableRemoteStorageError(f"{what}: not an answer of an S3 store ({e})") from e
    except GivenUpError as e:
        text = f"{what}: no answer of the object store, and not asked again: {e.why}"
        raise RetriableRemoteStorageError(text) from _no_answer(e)
    except HTTPError as e:
        # Refused, reset, timed out, cut off: urllib3 has retried what may be retried.
        text = f"{what}: the object store cannot be reached ({type(e).__name__})"
        raise RetriableRemoteStorageError(text) from _no_answer(e)


def _no_answer(error: HTTPError) -> NoAnswerError:
    no_answer = NoAnswerError()
    no_answer.__cause__ = error
    return no_answer
