"""Define why a read of a partition is refused, and name each refusal by Kafka's name."""

import logging
from typing import ClassVar

from services.api.errors import (
    CorruptSegmentError,
    DeletionRefusedError,
    FencedLeaderEpochError,
    InvalidRangeError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import FetchError, ProblemKind
from services.common.retry import RETRIABLE_ERRORS
from services.rlm.kafka_log.partition_dir import LogFileError, SegmentVanishedError

_log = logging.getLogger(__name__)


class ReadRefusedError(Exception):
    """The base of the errors for which one partition of a request gets no records.

    They are not of the tree of errors that services send: clients would mistake others for them.

    Attributes:
        kafka_error: Kafka's name for it.
    """

    kafka_error: ClassVar[FetchError]


class OffsetOutOfRangeError(ReadRefusedError):
    """The error for an offset below the log start, beyond the log end, or deleted during the read.

    An offset between the high watermark and the log end is in range, as in Kafka (LocalLog.read),
    with no records yet.
    """

    kafka_error = FetchError.OFFSET_OUT_OF_RANGE


class NotServedHereError(ReadRefusedError):
    """The error for an offset that the tier lacks, if this broker has the log but no role (yet).

    It is not OFFSET_OUT_OF_RANGE, after which a consumer restarts at an end of the log. Only
    offsets below the tier's log start are certainly gone.
    """

    kafka_error = FetchError.NOT_LEADER_OR_FOLLOWER


class MovedToTierError(ReadRefusedError):
    """The error for a follower's offset that is in the tier, and no more in the leader's log."""

    kafka_error = FetchError.OFFSET_MOVED_TO_TIERED_STORAGE

    def __init__(self, offset: int) -> None:
        super().__init__(
            f"offset {offset} is in the tier only; begin the replica's log by "
            "BuildRemoteLogAuxState of the local log start (ListOffsets -4)"
        )


class UnknownPartitionError(ReadRefusedError):
    """The error for a partition that is neither in the log directories nor in the tier."""

    kafka_error = FetchError.UNKNOWN_TOPIC_ID


class DamagedLogError(ReadRefusedError):
    """The error for damaged bytes in a log or an index of the broker; no error of the tier."""

    kafka_error = FetchError.CORRUPT_MESSAGE


class FencedReaderError(ReadRefusedError):
    """The error for a reader whose leader epoch is over (KIP-320)."""

    kafka_error = FetchError.FENCED_LEADER_EPOCH


class UnknownLeaderEpochError(ReadRefusedError):
    """The error for a reader whose leader epoch is not known here yet (KIP-320)."""

    kafka_error = FetchError.UNKNOWN_LEADER_EPOCH


class RecentTierError(ReadRefusedError):
    """The error if a segment is gone of a tier that was read a moment ago: read it again."""

    kafka_error = FetchError.TIERED_STORAGE_NOT_AVAILABLE


class SegmentReplacedError(RecentTierError):
    """The error if a segment is gone that another one supersedes: read the tier again."""


class ReadTimeoutError(ReadRefusedError):
    """The error if bytes do not arrive in time; their request continues."""

    kafka_error = FetchError.TIERED_STORAGE_NOT_AVAILABLE


class ReadThrottledError(ReadRefusedError):
    """The error of a read for which the fetch quota has no bytes left.

    Attributes:
        wait_s: until it has.
    """

    kafka_error = FetchError.TIERED_STORAGE_NOT_AVAILABLE

    def __init__(self, wait_s: float) -> None:
        super().__init__(
            f"reads of the tier exceed RLM_REMOTE_LOG_MANAGER_FETCH_MAX_BYTES_PER_SECOND; retry in "
            f"{wait_s:.1f} s"
        )
        self.wait_s = wait_s


class LostSegmentError(ReadRefusedError):
    """The error if a finished segment's objects are not in the store.

    Data is lost, which a client must not mistake for an offset that never existed.
    """

    kafka_error = FetchError.UNKNOWN_SERVER_ERROR


PARTITION_FAILURES = (ReadRefusedError, LogFileError, SegmentVanishedError, RemoteStorageError)
"""The failures that are one partition's own; any other ends the whole request."""

_NAMES: tuple[tuple[type[Exception] | tuple[type[Exception], ...], FetchError], ...] = (
    (InvalidRangeError, FetchError.OFFSET_OUT_OF_RANGE),
    (FencedLeaderEpochError, FetchError.FENCED_LEADER_EPOCH),
    (RETRIABLE_ERRORS, FetchError.TIERED_STORAGE_NOT_AVAILABLE),
    (CorruptSegmentError, FetchError.CORRUPT_MESSAGE),
    (DeletionRefusedError, FetchError.POLICY_VIOLATION),
)
"""All others are UNKNOWN_SERVER_ERROR: also an index that is not in the store, whose offset exists,
so that the error must not be OFFSET_OUT_OF_RANGE.
"""


def kafka_error(partition: TopicIdPartition, failure: Exception) -> FetchError:
    """Return Kafka's name for one of PARTITION_FAILURES; log a failure without one.

    With a traceback, unless the objects of a segment are gone: that is no defect of RLM.
    """
    if isinstance(failure, ReadRefusedError):
        error = failure.kafka_error
    elif _is_nameless(failure):
        error = FetchError.NOT_LEADER_OR_FOLLOWER
    else:
        names = (name for classes, name in _NAMES if isinstance(failure, classes))
        error = next(names, FetchError.UNKNOWN_SERVER_ERROR)
    if error is FetchError.UNKNOWN_SERVER_ERROR:
        is_lost = isinstance(failure, LostSegmentError | RemoteResourceNotFoundError)
        cause = None if is_lost else failure
        _log.error("%s: the request failed: %s", partition, failure, exc_info=cause)
    return error


def _is_nameless(failure: Exception) -> bool:
    """Return whether a log has no topic id yet: its broker writes the file after the folder."""
    missing = ProblemKind.PARTITION_METADATA_MISSING
    return isinstance(failure, LogFileError) and failure.kind is missing
