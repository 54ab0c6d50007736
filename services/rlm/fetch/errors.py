"""Define why a read of a partition is refused, and name each refusal by Kafka's name."""

from services.api.errors import (
    CorruptSegmentError,
    DeletionRefusedError,
    FencedLeaderEpochError,
    InvalidRangeError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.remote_log_manager import FetchError
from services.common.retry import RETRIABLE_ERRORS
from services.rlm.kafka_log.partition_dir import (
    LogFileError,
    SegmentVanishedError,
)


class OffsetOutOfRangeError(Exception):
    """The error for an offset below the log start, beyond the log end, or deleted during the read.

    An offset between the high watermark and the log end is in range, as in Kafka (LocalLog.read),
    with no records yet.
    """


class NotServedHereError(Exception):
    """The error for an offset that the tier lacks, if this broker has the log but no role (yet).

    It is not OFFSET_OUT_OF_RANGE, after which a consumer restarts at an end of the log. Only
    offsets below the tier's log start are certainly gone.
    """


class MovedToTierError(Exception):
    """The error for a follower's offset that is in the tier, and no more in the leader's log."""


class UnknownPartitionError(Exception):
    """The error for a partition that is neither in the log directories nor in the tier."""


class DamagedLogError(Exception):
    """The error for damaged bytes in a log or an index of the broker; no error of the tier."""


class FencedReaderError(Exception):
    """The error for a reader whose leader epoch is over (KIP-320)."""


class UnknownLeaderEpochError(Exception):
    """The error for a reader whose leader epoch is not known here yet (KIP-320)."""


class RecentTierError(Exception):
    """The error if a segment is gone of a tier that was read a moment ago: read it again.

    It is not of the tree of errors that services send.
    """


class ReadTimeoutError(Exception):
    """The error if bytes do not arrive in time; their request continues.

    It is not of the tree of errors that services send: clients would take others for it.
    """


class ReadThrottledError(Exception):
    """The error of a read for which the fetch quota has no bytes left.

    Attributes:
        wait_s: until it has.
    """

    def __init__(self, wait_s: float) -> None:
        super().__init__(
            f"reads of the tier exceed RLM_REMOTE_LOG_MANAGER_FETCH_MAX_BYTES_PER_SECOND; retry in "
            f"{wait_s:.1f} s"
        )
        self.wait_s = wait_s


class LostSegmentError(Exception):
    """The error if a finished segment's objects are not in the store.

    Data is lost, which a client must not mistake for an offset that never existed.
    """


PARTITION_FAILURES = (
    UnknownPartitionError,
    OffsetOutOfRangeError,
    NotServedHereError,
    MovedToTierError,
    FencedReaderError,
    UnknownLeaderEpochError,
    RecentTierError,
    ReadTimeoutError,
    ReadThrottledError,
    LostSegmentError,
    DamagedLogError,
    LogFileError,
    SegmentVanishedError,
    RemoteStorageError,
)
"""The failures that are one partition's own; any other ends the whole request."""


_NAMES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], FetchError], ...] = (
    (UnknownPartitionError, FetchError.UNKNOWN_TOPIC_ID),
    ((OffsetOutOfRangeError, InvalidRangeError), FetchError.OFFSET_OUT_OF_RANGE),
    (NotServedHereError, FetchError.NOT_LEADER_OR_FOLLOWER),
    (MovedToTierError, FetchError.OFFSET_MOVED_TO_TIERED_STORAGE),
    ((FencedReaderError, FencedLeaderEpochError), FetchError.FENCED_LEADER_EPOCH),
    (UnknownLeaderEpochError, FetchError.UNKNOWN_LEADER_EPOCH),
    (RETRIABLE_ERRORS, FetchError.TIERED_STORAGE_NOT_AVAILABLE),
    (
        (ReadTimeoutError, ReadThrottledError, RecentTierError),
        FetchError.TIERED_STORAGE_NOT_AVAILABLE,
    ),
    ((DamagedLogError, CorruptSegmentError), FetchError.CORRUPT_MESSAGE),
    (DeletionRefusedError, FetchError.POLICY_VIOLATION),
    # A leader-epoch index: the offset exists, so the error must not be OFFSET_OUT_OF_RANGE.
    (RemoteResourceNotFoundError, FetchError.UNKNOWN_SERVER_ERROR),
)


def kafka_error(failure: Exception) -> FetchError:
    """Return Kafka's name for one of PARTITION_FAILURES."""
    names = (name for classes, name in _NAMES if isinstance(failure, classes))
    return next(names, FetchError.UNKNOWN_SERVER_ERROR)
