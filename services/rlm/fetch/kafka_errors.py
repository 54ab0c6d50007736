"""Name a failure of one partition by Kafka's name."""

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
from services.rlm.fetch.partition_view import (
    DamagedLogError,
    FencedReaderError,
    MovedToTierError,
    NotServedHereError,
    OffsetOutOfRangeError,
    RecentTierError,
    UnknownLeaderEpochError,
    UnknownPartitionError,
)
from services.rlm.fetch.read_ahead import ReadTimeoutError
from services.rlm.fetch.segment_reader import LostSegmentError, ReadThrottledError
from services.rlm.kafka_log.partition_dir import LogFileError, SegmentVanishedError

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
