"""Translate the errors of the library obstore, which tells an answer's status in words only."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError

from services.api.errors import (
    CorruptSegmentError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoreAccessDeniedError,
    StoreNotFoundError,
)
from services.rsm.backends.protocol import NoAnswerError
from services.rsm.deadline import require_wanted

_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>|\(code: (\d{3})\)")
# Of a range that begins past the end: what the library finds wrong with an answer other than 416.
_PAST_THE_END = re.compile(r"object was only \d+ bytes long|: \"bytes 0--1/0\"")
_RETRIED = re.compile(r"after [1-9]\d* retries")
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound")
_RETRIABLE_CODES = frozenset(
    {
        *("ContainerBeingDeleted", "InternalError", "OperationTimedOut", "ServerBusy"),
        # The upload was ended by the store's lifecycle: a new one may complete.
        *("NoSuchUpload", "InvalidBlockList", "InvalidPart"),
    }
)
_RETRIABLE_STATUSES = frozenset({408, 429, 500, 502, 503, 504, 507})


@contextmanager
def store_errors(what: str) -> Iterator[None]:
    """Translate errors raised inside; `what` names the operation and its object.

    Passed on are FileNotFoundError, since only the request knows whether the bucket is missing, and
    AlreadyExistsError. No text of the library goes into a message: it may contain a signature.
    """
    require_wanted()
    try:
        yield
    except (AlreadyExistsError, PreconditionError):
        raise
    except FileNotFoundError as e:
        if any(code in str(e) for code in _NO_BUCKET):
            raise _error_for(str(e), what) from e
        raise
    except (BaseError, OSError) as e:
        was_answered = _STATUS.search(str(e)) is not None
        raise _error_for(str(e), what) from (e if was_answered else NoAnswerError(e))


def require_one_try(error: BaseException, text: str) -> None:
    """Raise a retriable error if the library sent the request more than once."""
    if _RETRIED.search(str(error)):
        raise RetriableRemoteStorageError(text) from NoAnswerError()


def _error_for(text: str, what: str) -> RemoteStorageError:
    found = _STATUS.search(text)
    named = _CODE.search(text)
    code = (named[1] or named[2]) if named else ""
    status = int(found[1]) if found else 0
    is_token = "token request" in text or "signing" in text
    if code in _NO_BUCKET:
        return StoreNotFoundError(
            f"{what}: the object store answered {code}; create the bucket or container, or correct "
            "RSM_BUCKET"
        )
    if is_token and status // 100 != 5:
        who = "the service that gives access tokens"
        if not status:
            return RetriableRemoteStorageError(f"{what}: {who} cannot be reached")
        return StoreAccessDeniedError(f"{what}: {who} answered {status}; correct the credentials")
    if _PAST_THE_END.search(text):
        return CorruptSegmentError(f"{what}: the object is shorter")
    if not status:
        return RetriableRemoteStorageError(f"{what}: no answer from the object store")
    answer = f"{what}: the object store answered {status} {code}".rstrip()
    if status == 407:
        return StoreAccessDeniedError(
            f"{what}: the proxy answered 407; correct the proxy_credentials_file of the location"
        )
    if status in (401, 403):
        return StoreAccessDeniedError(
            f"{answer}; correct the credentials, or what they are allowed to do"
        )
    if status == 416:
        return CorruptSegmentError(answer)
    if status == 404:
        return StoreNotFoundError(f"{answer}; create the bucket, or correct RSM_BUCKET")
    # An intermediary's redirect is no answer of the store.
    if status in _RETRIABLE_STATUSES or code in _RETRIABLE_CODES or status // 100 == 3:
        return RetriableRemoteStorageError(answer)
    return RemoteStorageError(answer)
