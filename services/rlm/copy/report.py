"""Report the results, the progress and the problems of a copy pass."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from services.api.errors import CustomMetadataTooLargeError, RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.partitions import NEVER_TRIMMED
from services.api.remote_log_manager import Problem, ProblemKind
from services.api.segments import RemoteLogSegmentMetadata
from services.common.retry import RETRIABLE_ERRORS
from services.rlm.kafka_log.local_log import LocalLog
from services.rlm.kafka_log.partition_dir import LocalSegment
from services.rlm.partition import Partition
from services.rlm.tier import Tier

Range = tuple[int, int]
"""Offsets, both ends inclusive."""


_RETRIED = "the next pass retries"

_BLOCKED = (
    "copying of this partition has stopped until RLM restarts: let RSM return less custom "
    "metadata, then restart RLM"
)


class Progress:
    """Observe copies while they run, from several threads at once; this one shows nothing."""

    def planned(self, name: TopicIdPartition, segments: int, size_bytes: int) -> None:
        """Show the segments and bytes of a partition that this pass is about to copy."""

    def sent(self, name: TopicIdPartition, size_bytes: int) -> None:
        """Count sent bytes of logs; a negative number subtracts those of a failed copy."""

    def copied(self, name: TopicIdPartition, start_offset: int, size_bytes: int) -> None:
        """Count a segment that is COPY_SEGMENT_FINISHED."""


def refused(
    error: RemoteStorageError, path: str, blocked_segments: int, offset: int | None = None
) -> Problem:
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, RETRIABLE_ERRORS):
        return Problem(ProblemKind.STORE_UNAVAILABLE, path, text, offset, blocked_segments)
    # As in Kafka: every further attempt would upload the bytes only to delete them.
    then = _BLOCKED if isinstance(error, CustomMetadataTooLargeError) else _RETRIED
    return Problem(ProblemKind.COPY_FAILED, path, f"{text}; {then}", offset, blocked_segments)


def partition_deleted(path: str, blocked_segments: int) -> Problem:
    text = "the topic id was deleted from the tier and is never tiered again"
    return Problem(ProblemKind.PARTITION_DELETED, path, text, blocked_segments=blocked_segments)


def compacted(topic: str, policy: str, path: str, blocked_segments: int) -> Problem:
    text = (
        f"topic {topic} has cleanup.policy={policy}, and compacted topics are not tiered: copying "
        "and expiry have stopped. Remove compact from its cleanup.policy, or stop tiering it with "
        f"`sediment topics set {topic}`: remote.log.copy.disable=true keeps what is in the tier, "
        "remote.storage.enable=false with remote.log.delete.on.disable=true deletes it"
    )
    return Problem(ProblemKind.TOPIC_COMPACTED, path, text, blocked_segments=blocked_segments)


def awaited_log_start(log: LocalLog) -> str:
    return (
        f"the broker deletes records below offset {log.awaited_log_start_offset} on request, and "
        "has not written that log start to log-start-offset-checkpoint yet; retrying"
    )


def deleted_at_broker(
    partition: Partition, log: LocalLog, tier: Tier, path: str = ""
) -> Problem | None:
    """Describe offsets that are still read from the tier, and were deleted at the broker.

    RLM's own trims are recorded. If the broker deletes nothing by itself, all others were
    requested.
    """
    name, trimmed = partition.topic_id_partition, partition.report.trim_offset
    is_ours = partition.trim.is_ours and trimmed != NEVER_TRIMMED
    removed = log.log_start_offset if is_ours else log.removed_before_offset
    if tier.start_offset is None or max(tier.start_offset, tier.log_start_offset) >= removed:
        return None
    # Retention deletes whole segments; that is no request.
    if removed <= (trimmed if is_ours else max(trimmed, log.segments[0].base_offset)):
        return None
    text = (
        f"records below offset {removed} were deleted at the broker (DeleteRecords), which deletes "
        f"nothing in the tier: consumers of RLM still read them from offset {tier.start_offset} "
        "on. To delete them there, run `sediment topics delete-records "
        f"{name.topic}-{name.partition} --before {removed} --yes`"
    )
    return Problem(ProblemKind.DELETED_AT_BROKER, path, text, removed)


def vanished(segment: LocalSegment, blocked_segments: int) -> Problem:
    reason = "the broker deleted it before it was copied"
    path = str(segment.log_path)
    kind = ProblemKind.LOST_BEFORE_COPY
    return Problem(kind, path, reason, segment.base_offset, blocked_segments)


def waiting_for(
    elsewhere: Sequence[RemoteLogSegmentMetadata], candidates: Sequence[LocalSegment]
) -> Sequence[LocalSegment]:
    """Return the candidates from the first one that is being copied elsewhere."""
    first = min((segment.start_offset for segment in elsewhere), default=None)
    return [c for c in candidates if first is not None and c.end_offset >= first]


def copied_elsewhere(
    segment: RemoteLogSegmentMetadata, path: str, blocked_segments: int
) -> Problem:
    latest = "its lease expires" if segment.copy_leased else "its copy is an hour old"
    reason = (
        f"another process of broker {segment.broker_id} is copying offsets {segment.start_offset} "
        f"to {segment.end_offset} (or died doing so); retrying when it finishes or {latest}"
    )
    return Problem(ProblemKind.COPY_FAILED, path, reason, segment.start_offset, blocked_segments)


@dataclass
class PassReport:
    """The result of one copy pass.

    Attributes:
        copied_tails: besides copied_segments; copied_bytes has the bytes of both.
        copy_errors, copy_retriable_errors: copies that failed permanently, and copies that may
            succeed when retried; a cancelled copy is neither.
        present_segments, present_bytes: rolled segments that were in the tier before.
        unsettled_segments: rolled segments that are not in the tier and may not be copied yet: they
            reach `settled_before_offset` (LocalLog.last_stable_offset).
        problems: causes that stop copying, losses, and repairs.
        recorded: losses among the problems that this pass found first and recorded, or perhaps
            recorded.
        known_gaps: losses that were recorded before; no longer problems.
        failure: why the pass is incomplete; empty if it is complete.
        may_pass: an early retry may succeed.
        folder_is_gone: the broker dropped the partition or moved it to another disk.
        more_after_s: when the pass runs again, because segments are left; None: it does not.
    """

    copied_segments: int = 0
    copied_tails: int = 0
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
    def blocked_segments(self) -> int:
        return sum(problem.blocked_segments for problem in self.problems)

    @property
    def found_only_tails(self) -> bool:
        """Return whether the pass had at most tails to copy, and nothing to report."""
        return not any((self.copied_segments, self.cleaned_attempts, self.problems, self.failure))
