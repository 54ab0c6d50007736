"""The one tree of errors that crosses service boundaries.

    RemoteStorageError                     INTERNAL             anything else
    ├── InvalidRequestError                INVALID_ARGUMENT     malformed; names the field path
    │   └── CustomMetadataTooLargeError    INVALID_ARGUMENT     over the configured limit
    ├── InvalidRangeError                  OUT_OF_RANGE         position or offset outside
    ├── RemoteResourceNotFoundError        NOT_FOUND            object, index, partition or id
    ├── SegmentAlreadyExistsError          ALREADY_EXISTS       same id, different content
    ├── InvalidStateTransitionError        FAILED_PRECONDITION  look again; retry is useless
    ├── FencedLeaderEpochError             FAILED_PRECONDITION  an older leader than the partition's
    ├── DeletionRefusedError               FAILED_PRECONDITION  a hold, an owner, a lease
    ├── StoreNotFoundError                 FAILED_PRECONDITION  no such bucket or directory
    ├── StoreAccessDeniedError             FAILED_PRECONDITION  the store refuses RSM's credentials
    ├── ConcurrentUpdateError              ABORTED              expected revision did not match
    ├── CorruptSegmentError                DATA_LOSS            bytes do not match their digest
    ├── ThrottledError                     RESOURCE_EXHAUSTED   quota or full queue
    ├── UnauthenticatedError               UNAUTHENTICATED
    ├── PermissionDeniedError              PERMISSION_DENIED
    ├── NotServedError                     UNIMPLEMENTED        a field or RPC not served yet
    └── RetriableRemoteStorageError        UNAVAILABLE          unreachable, throttled, not ready

Each class names its gRPC status and its reason, so that no ladder of `except` can forget one. A
client maps an answer back by the reason; several classes may share a status.
"""

from typing import ClassVar


class RemoteStorageError(Exception):
    """Anything that no class below names. Callers across the wire see a fixed text only.

    Kafka: RemoteStorageException.
    """

    status: ClassVar[str] = "INTERNAL"
    reason: ClassVar[str] = "REMOTE_STORAGE_ERROR"


class InvalidRequestError(RemoteStorageError):
    """The request is malformed; the message starts with the path of the field at fault."""

    status = "INVALID_ARGUMENT"
    reason = "INVALID_REQUEST"


class CustomMetadataTooLargeError(InvalidRequestError):
    """Custom metadata is longer than the limit (Kafka: CustomMetadataSizeLimitExceeded)."""

    reason = "CUSTOM_METADATA_TOO_LARGE"


class InvalidRangeError(RemoteStorageError):
    """A position or an offset lies outside of what exists."""

    status = "OUT_OF_RANGE"
    reason = "INVALID_RANGE"


class RemoteResourceNotFoundError(RemoteStorageError):
    """An object, an index, a partition or an id does not exist. Never: a missing bucket.

    Kafka: RemoteResourceNotFoundException.
    """

    status = "NOT_FOUND"
    reason = "REMOTE_RESOURCE_NOT_FOUND"


class SegmentAlreadyExistsError(RemoteStorageError):
    """The id is taken by a segment with other content."""

    status = "ALREADY_EXISTS"
    reason = "SEGMENT_ALREADY_EXISTS"


class InvalidStateTransitionError(RemoteStorageError):
    """The state machine does not allow it; look again, a retry is useless."""

    status = "FAILED_PRECONDITION"
    reason = "INVALID_STATE_TRANSITION"


class FencedLeaderEpochError(RemoteStorageError):
    """The caller's broker leader epoch is older than the partition's."""

    status = "FAILED_PRECONDITION"
    reason = "FENCED_LEADER_EPOCH"


class DeletionRefusedError(RemoteStorageError):
    """The topic's settings forbid it: a hold, a pause, or retention is somebody else's to keep. Or
    what is to be deleted is being copied under a lease."""

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


class ConcurrentUpdateError(RemoteStorageError):
    """An expected revision did not match; read again, then decide."""

    status = "ABORTED"
    reason = "CONCURRENT_UPDATE"


class CorruptSegmentError(RemoteStorageError):
    """Bytes do not match their digest; the message says which part."""

    status = "DATA_LOSS"
    reason = "CORRUPT_SEGMENT"


class ThrottledError(RemoteStorageError):
    """A quota is used up or a queue is full; the message says when to come back."""

    status = "RESOURCE_EXHAUSTED"
    reason = "THROTTLED"


class UnauthenticatedError(RemoteStorageError):
    """The caller did not say who it is."""

    status = "UNAUTHENTICATED"
    reason = "UNAUTHENTICATED"


class PermissionDeniedError(RemoteStorageError):
    """The caller may not do this."""

    status = "PERMISSION_DENIED"
    reason = "PERMISSION_DENIED"


class NotServedError(RemoteStorageError):
    """The contract has this field or call, this release does not serve it; refused by name."""

    status = "UNIMPLEMENTED"
    reason = "NOT_SERVED"


class RetriableRemoteStorageError(RemoteStorageError):
    """Store, database or service unreachable, throttled or not ready; the call may have worked.

    Kafka: RetriableRemoteStorageException.
    """

    status = "UNAVAILABLE"
    reason = "RETRIABLE_REMOTE_STORAGE_ERROR"


def every_error_class() -> list[type[RemoteStorageError]]:
    """The whole tree, the root first."""
    found: list[type[RemoteStorageError]] = []
    waiting: list[type[RemoteStorageError]] = [RemoteStorageError]
    while waiting:
        cls = waiting.pop(0)
        found.append(cls)
        waiting.extend(cls.__subclasses__())
    return found
