"""Define the request of a watch of partitions, and its reports."""

from dataclasses import dataclass, field
from uuid import UUID

from services.api.ids import TopicIdPartition
from services.api.segments import RemoteLogSegmentState
from services.api.validation import require_int64

MAX_WATCHED = 10_000
"""The most partitions of one watch."""

HEARTBEAT_S = 1.0
"""The longest time between two updates of a watch."""


@dataclass(frozen=True, slots=True)
class WatchedPartition:
    """A partition to watch.

    Attributes:
        after_revision: the last revision that the client knows: its first update reports the
            changes since then. None if the client knows nothing: earlier changes are not reported.
        after_changed_at_us: `changed_at_us` of the update that had it. If the change of that
            revision has another time, the database was set back. None: not compared.
    """

    topic_id_partition: TopicIdPartition
    after_revision: int | None = None
    after_changed_at_us: int | None = None

    def __post_init__(self) -> None:
        if self.after_revision is not None:
            require_int64(self.after_revision, "after_revision")
        if self.after_changed_at_us is not None:
            require_int64(self.after_changed_at_us, "after_changed_at_us")


@dataclass(frozen=True, slots=True)
class ChangedSegment:
    """A segment that look-ups find from now on, or do not find any more.

    Attributes:
        state: COPY_SEGMENT_FINISHED, also if its bytes were replaced, or DELETE_SEGMENT_STARTED.
    """

    id: UUID
    state: RemoteLogSegmentState


@dataclass(frozen=True, slots=True)
class PartitionUpdate:
    """The changes of one partition since its last update.

    Attributes:
        place: of the partition in the request.
        revision: the partition's present one; 0 if it is not known, or was deleted.
        segments: what look-ups find or do not find any more, in the order of the changes.
        everything: anything may have changed: drop all answers of this partition. For example the
            partition was deleted, or its audit trail no longer has all changes since the revision
            that the client named, or the database was set back since.
        changed_at_us: when the change of this revision was made, by the database's clock,
            microseconds since 1970; 0 if there is none. With it the revision names one history.
    """

    place: int
    revision: int
    segments: tuple[ChangedSegment, ...] = ()
    everything: bool = False
    changed_at_us: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class WatchUpdate:
    """A message of a watch; one without partitions is a heartbeat.

    Attributes:
        complete_through_ms: all changes that were committed until then have been reported, ms since
            RLMM received the call. It never falls. A client that adds it to the time of its own
            call, on its own clock, learns a time up to which it knows everything, however late the
            message is. It stands still while RLMM cannot read its database.
    """

    partitions: tuple[PartitionUpdate, ...]
    complete_through_ms: int
