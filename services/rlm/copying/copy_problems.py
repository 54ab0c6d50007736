"""What a copy pass tells people of what it could not copy."""

from collections.abc import Sequence
from dataclasses import replace

from services.api.errors import CustomMetadataTooLargeError, RemoteStorageError
from services.api.remote_log_manager import Problem, ProblemKind
from services.api.segments import RemoteLogSegmentMetadata
from services.rlm.copying.segment_copy import RETRIABLE_ERRORS
from services.rlm.kafka_log.partition_dir import LocalSegment

_TRIED_AGAIN = "the next pass tries again"
_BLOCKED = (
    "nothing more of this partition is copied before RLM is restarted: raise "
    "RLM_REMOTE_LOG_METADATA_CUSTOM_METADATA_MAX_BYTES, and RLMM_CUSTOM_METADATA_MAX_BYTES with it"
)


def refused(
    error: RemoteStorageError, path: str, held_segments: int, offset: int | None = None
) -> Problem:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, RETRIABLE_ERRORS):
        return Problem(ProblemKind.STORE_UNAVAILABLE, path, text, offset, held_segments)
    # As in Kafka: every further attempt would upload the bytes only to delete them.
    then = _BLOCKED if isinstance(error, CustomMetadataTooLargeError) else _TRIED_AGAIN
    return Problem(ProblemKind.COPY_FAILED, path, f"{text}; {then}", offset, held_segments)


def held(problem: Problem, held_segments: int) -> Problem:
    return replace(problem, held_segments=held_segments)


def partition_deleted(path: str, held_segments: int) -> Problem:
    text = "its topic id was deleted from the tier, for good"
    return Problem(ProblemKind.PARTITION_DELETED, path, text, held_segments=held_segments)


def compacted(topic: str, policy: str, path: str, held_segments: int) -> Problem:
    text = (
        f"topic {topic} has cleanup.policy={policy}: a compacted topic is not tiered; nothing more "
        "of it is copied, and what is in the tier does not expire. Take compact out of its "
        f"cleanup.policy, or end its tiering (sediment topics set {topic}): "
        "remote.log.copy.disable=true keeps what is in the tier, remote.storage.enable=false with "
        "remote.log.delete.on.disable=true gives it up"
    )
    return Problem(ProblemKind.TOPIC_COMPACTED, path, text, held_segments=held_segments)


def vanished(segment: LocalSegment, held_segments: int) -> Problem:
    reason = "deleted by the broker before it was copied"
    path = str(segment.log_path)
    kind = ProblemKind.LOST_BEFORE_COPY
    return Problem(kind, path, reason, segment.base_offset, held_segments)


def waiting_for(
    elsewhere: Sequence[RemoteLogSegmentMetadata], candidates: Sequence[LocalSegment]
) -> Sequence[LocalSegment]:
    """The candidates from the first one on that is being copied elsewhere."""
    first = min((segment.start_offset for segment in elsewhere), default=None)
    return [c for c in candidates if first is not None and c.end_offset >= first]


def copied_elsewhere(segment: RemoteLogSegmentMetadata, path: str, held_segments: int) -> Problem:
    at_the_latest = "its lease has" if segment.copy_leased else "is an hour old"
    reason = (
        f"offsets {segment.start_offset} to {segment.end_offset} are being copied by another "
        f"process of broker {segment.broker_id}, or one was killed at it: copying goes on when it "
        f"has ended, or {at_the_latest}"
    )
    return Problem(ProblemKind.COPY_FAILED, path, reason, segment.start_offset, held_segments)
