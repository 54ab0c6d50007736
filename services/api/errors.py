"""Define the errors that cross service boundaries.

    RemoteStorageError                     INTERNAL             anything else
    ├── InvalidRequestError                INVALID_ARGUMENT     malformed; names the field path
    │   └── CustomMetadataTooLargeError    INVALID_ARGUMENT     over the configured limit
    ├── InvalidRangeError                  OUT_OF_RANGE         position or offset outside
    ├── RemoteResourceNotFoundError        NOT_FOUND            object, index, partition or id
    ├── SegmentAlreadyExistsError          ALREADY_EXISTS       same id, different content
    ├── InvalidStateTransitionError        FAILED_PRECONDITION  read again; a retry cannot help
    ├── FencedLeaderEpochError             FAILED_PRECONDITION  an older leader than the partition's
    ├── DeletionRefusedError               FAILED_PRECONDITION  a hold, a pause, a lease
    ├── StoreNotFoundError                 FAILED_PRECONDITION  no such bucket or directory
    ├── StoreAccessDeniedError             FAILED_PRECONDITION  the store refuses RSM's credentials
    ├── BodyTooLargeError                  FAILED_PRECONDITION  a proxy refuses a request's size
    ├── DirectReadRefusedError             FAILED_PRECONDITION  the log can only be streamed
    ├── ConcurrentUpdateError              ABORTED              expected revision did not match
    ├── CorruptSegmentError                DATA_LOSS            bytes do not match their digest
    ├── CorruptMetadataError               DATA_LOSS            stored rows contradict each other
    ├── ThrottledError                     RESOURCE_EXHAUSTED   quota or full queue
    ├── UnauthenticatedError               UNAUTHENTICATED
    ├── PermissionDeniedError              PERMISSION_DENIED
    ├── NotServedError                     UNIMPLEMENTED        a field or RPC not served here
    └── RetriableRemoteStorageError        UNAVAILABLE          unreachable, throttled, not ready

Each class names its gRPC status and its reason, so that no ladder of `except` can forget one. A
client maps an answer back by the reason; several classes may share a status.
"""

from typing import ClassVar


class RemoteStorageError(Exception):
    """Report what no class below names. Clients of a server get a fixed text only.

    Kafka: RemoteStorageException.
    """

    status: ClassVar[str] = "INTERNAL"
    reason: ClassVar[str] = "REMOTE_STORAGE_ERROR"


class InvalidRequestError(RemoteStorageError):
    """Report a malformed request; the message starts with the path of the field at fault."""

    status = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"


class CustomMetadataTooLargeError(InvalidRequestError):
    """Report custom metadata over the limit (Kafka: CustomMetadataSizeLimitExceeded)."""

    reason = "CUSTOM_METADATA_TOO_LARGE"


class InvalidRangeError(RemoteStorageError):
    """Report a position or an offset outside of what exists."""

    status = "OUT_OF_RANGE"
    reason = "INVALID_RANGE"


class RemoteResourceNotFoundError(RemoteStorageError):
    """Report a missing object, index, partition or id, but never a missing bucket.

    Kafka: RemoteResourceNotFoundException.
    """

    status = "NOT_FOUND"
    reason = "REMOTE_RESOURCE_NOT_FOUND"


class SegmentAlreadyExistsError(RemoteStorageError):
    """Report an id that a segment with other content has."""

    status = "ALREADY_EXISTS"
    reason = "SEGMENT_ALREADY_EXISTS"


class InvalidStateTransitionError(RemoteStorageError):
    """Report a change that the state machine forbids: read the state again, do not retry."""

    status = "FAILED_PRECONDITION"
    reason = "INVALID_STATE_TRANSITION"


class FencedLeaderEpochError(RemoteStorageError):
    """Report a broker leader epoch that is older than the partition's."""

    status = "FAILED_PRECONDITION"
    reason = "FENCED_LEADER_EPOCH"


class DeletionRefusedError(RemoteStorageError):
    """Report a deletion that settings, a copy lease or a manifest forbid.

    The settings are a hold, a pause, or another retention owner. RSM deletes objects of a
    committed copy by their keys only if the request says that it means them.
    """

    status = "FAILED_PRECONDITION"
    reason = "DELETION_REFUSED"


class StoreNotFoundError(RemoteStorageError):
    """The bucket or directory does not exist; fails until an operator creates or corrects it."""

    status = "FAILED_PRECONDITION"
    reason = "STORE_NOT_FOUND"


class StoreAccessDeniedError(RemoteStorageError):
    """The store denies RSM access; fails until an operator corrects credentials or rights."""

    status = "FAILED_PRECONDITION"
    reason = "STORE_ACCESS_DENIED"


class BodyTooLargeError(RemoteStorageError):
    """A proxy before the store refuses a request for its size, until an operator raises a limit."""

    status = "FAILED_PRECONDITION"
    reason = "BODY_TOO_LARGE"


class DirectReadRefusedError(RemoteStorageError):
    """Report a log that clients cannot read from the store themselves: stream it."""

    status = "FAILED_PRECONDITION"
    reason = "DIRECT_READ_REFUSED"


class ConcurrentUpdateError(RemoteStorageError):
    """Report an expected revision that did not match: read again, then decide."""

    status = "ABORTED"
    reason = "CONCURRENT_UPDATE"


class CorruptSegmentError(RemoteStorageError):
    """Report bytes that do not match their digest; the message names the part."""

    status = "DATA_LOSS"
    reason = "CORRUPT_SEGMENT"


class CorruptMetadataError(RemoteStorageError):
    """Report stored rows that contradict each other, so that no retry of the change can work."""

    status = "DATA_LOSS"
    reason = "CORRUPT_METADATA"


class ThrottledError(RemoteStorageError):
    """Report a used-up quota or a full queue; the message says when to retry."""

    status = "RESOURCE_EXHAUSTED"
    reason = "THROTTLED"


class UnauthenticatedError(RemoteStorageError):
    """Report a caller without an identity."""

    status = "UNAUTHENTICATED"
    reason = "UNAUTHENTICATED"


class PermissionDeniedError(RemoteStorageError):
    """Report a call that the caller may not make."""

    status = "PERMISSION_DENIED"
    reason = "PERMISSION_DENIED"


class NotServedError(RemoteStorageError):
    """Report by its name a field or call that this release, or a service so set, does not serve."""

    status = "UNIMPLEMENTED"
    reason = "NOT_SERVED"


class RetriableRemoteStorageError(RemoteStorageError):
    """Report an unreachable or unready store, database or service. The call may have worked.

    Kafka: RetriableRemoteStorageException.
    """

    status = "UNAVAILABLE"
    reason = "RETRIABLE_REMOTE_STORAGE_ERROR"


def every_error_class() -> list[type[RemoteStorageError]]:
    """Return the whole tree, the root first."""
    found: list[type[RemoteStorageError]] = [RemoteStorageError]
    for cls in found:
        found.extend(cls.__subclasses__())
    return found
