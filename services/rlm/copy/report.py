"""Report what a copy pass did, what it left, and why."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from services.api.errors import CustomMetadataTooLargeError, RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import Problem, ProblemKind
from services.api.segments import RemoteLogSegmentMetadata
from services.common.retry import RETRIABLE_ERRORS
from services.rlm.kafka_log.partition_dir import LocalSegment

Range = tuple[int, int]
"""Offsets, both ends inclusive."""


class Progress(Protocol):
    """Told of copies as they go; called from several threads at once."""

    def planned(self, name: TopicIdPartition, segments: int, size_bytes: int) -> None:
        """So much of a partition is about to be copied; each pass tells anew."""
        ...

    def sent(self, name: TopicIdPartition, size_bytes: int) -> None:
        """Bytes of logs went out; negative: those of a copy that failed count no longer."""
        ...

    def copied(self, name: TopicIdPartition, start_offset: int, size_bytes: int) -> None:
        """A segment is COPY_SEGMENT_FINISHED."""
        ...


class NoProgress:
    """Nobody watches."""

    def planned(self, name: TopicIdPartition, segments: int, size_bytes: int) -> None:
        pass

    def sent(self, name: TopicIdPartition, size_bytes: int) -> None:
        pass

    def copied(self, name: TopicIdPartition, start_offset: int, size_bytes: int) -> None:
        pass


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


@dataclass
class PassReport:
    """What one pass did.

    Attributes:
        copied_segments, copied_bytes: COPY_SEGMENT_FINISHED by this pass.
        copy_requests: copies begun.
        copy_errors, copy_retriable_errors: those that failed; of these the latter may work the next
            time. One that was to stop is neither.
        present_segments, present_bytes: rolled segments that the tier had before.
        unsettled_segments: rolled segments that are not in the tier and that no pass may copy yet:
            they reach `settled_before_offset` (LocalLog.last_stable_offset).
        cleaned_attempts: attempts left behind that are gone now.
        problems: what is held back or found to be lost, and what was mended.
        recorded: those of the problems that are losses which this pass found first and recorded, or
            perhaps recorded.
        known_gaps: what was lost and recorded before; no problem any more.
        failure: why the pass did not do all that can be done; empty: it did.
        may_pass: the failure may be gone when the pass is repeated soon.
        folder_is_gone: the broker gave the partition up, or moved it to another disk; what has the
            folder's name now, if anything, is another topic's.
        more_after_s: the pass gave way with segments left to copy, to others or to one under a
            later leader epoch: it is to go on after so many seconds; None: it did not.
    """

    copied_segments: int = 0
    copied_bytes: int = 0
    copy_requests: int = 0
    copy_errors: int = 0
    copy_retriable_errors: int = 0
    present_segments: int = 0
    present_bytes: int = 0
    unsettled_segments: int = 0
    settled_before_offset: int = 0
    cleaned_attempts: int = 0
    problems: list[Problem] = field(default_factory=list)
    recorded: list[Problem] = field(default_factory=list)
    known_gaps: list[Range] = field(default_factory=list)
    failure: str = ""
    may_pass: bool = False
    folder_is_gone: bool = False
    more_after_s: float | None = None

    def failed(self, error: Exception | str, *, may_pass: bool) -> None:
        self.failure, self.may_pass = str(error), may_pass

    @property
    def held_segments(self) -> int:
        return sum(problem.held_segments for problem in self.problems)

    @property
    def found_nothing(self) -> bool:
        """There was nothing to be done, nor to be told."""
        found = (self.copied_segments, self.cleaned_attempts, self.problems, self.failure)
        return not any(found)
