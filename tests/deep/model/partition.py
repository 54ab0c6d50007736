"""What the model keeps of a topic and of a partition, and what may refuse a change of it."""

from dataclasses import dataclass, field
from uuid import UUID

from services.api.calls import MutationContext
from services.api.errors import ConcurrentUpdateError, DeletionRefusedError, FencedLeaderEpochError
from services.api.partitions import OffsetGap, RemotePartitionDeleteState
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.api.topic_config import RetentionOwner
from tests.deep.model.kafka_cache import KafkaCache


@dataclass(frozen=True)
class Event:
    """An entry of the audit trail, but for who and when; its place in the trail is its revision."""

    kind: str
    from_state: str | None = None
    to_state: str | None = None
    segment_id: UUID | None = None


@dataclass
class Topic:
    name: str
    entries: dict[str, str] = field(default_factory=dict)
    config_revision: int = 0


@dataclass
class Partition:
    """A partition, also after its deletion.

    Attributes:
        tombstones: the segments in DELETE_SEGMENT_FINISHED.
        moved_at: the revision that brought a segment, or the partition's deletion, to its state.
        lost: the offsets of recorded gaps, each with the revision that made its gap what it is.
        requests: by request id, what was asked and the revision that carries it.
    """

    topic: Topic
    cache: KafkaCache = field(default_factory=KafkaCache)
    tombstones: dict[UUID, RemoteLogSegmentMetadata] = field(default_factory=dict)
    moved_at: dict[UUID | RemotePartitionDeleteState, int] = field(default_factory=dict)
    delete_state: RemotePartitionDeleteState | None = None
    highest_broker_leader_epoch: int | None = None
    log_start_offset: int = 0
    lost: dict[int, int] = field(default_factory=dict)
    requests: dict[str, tuple[object, int]] = field(default_factory=dict)
    trail: list[Event] = field(default_factory=list)

    @property
    def revision(self) -> int:
        return len(self.trail)

    @property
    def is_deleted(self) -> bool:
        return self.delete_state is RemotePartitionDeleteState.DELETE_PARTITION_FINISHED

    @property
    def is_known(self) -> bool:
        return self.revision > 0 and not self.is_deleted

    @property
    def end_offset(self) -> int:
        """Exclusive, of all that has ever finished."""
        highest = [epoch.highest_offset for epoch in self.cache.epochs.values()]
        return max((end + 1 for end in highest if end is not None), default=0)

    @property
    def gaps(self) -> tuple[OffsetGap, ...]:
        """The runs of lost offsets, ascending."""
        firsts = [offset for offset in sorted(self.lost) if offset - 1 not in self.lost]
        lasts = [offset for offset in sorted(self.lost) if offset + 1 not in self.lost]
        return tuple(OffsetGap(*ends) for ends in zip(firsts, lasts, strict=True))

    def lose(self, offsets: range, revision: int) -> None:
        """From now on these are lost, and their whole run is of this revision."""
        self.lost |= dict.fromkeys(offsets, revision)
        for gap in self.gaps:
            run = range(gap.start_offset, gap.end_offset + 1)
            if offsets[0] in run:
                self.lost |= dict.fromkeys(run, revision)

    def forget_lost_below(self, offset: int) -> None:
        self.lost = {lost: revision for lost, revision in self.lost.items() if lost >= offset}

    def has_finished(self, offsets: range) -> bool:
        """Whether a finished segment, of whatever epochs, has one of them."""
        return any(
            segment.state is RemoteLogSegmentState.COPY_SEGMENT_FINISHED
            and segment.start_offset <= offsets[-1]
            and offsets[0] <= segment.end_offset
            for segment in self.cache.segments.values()
        )

    def reset_leader_epoch(self, leader_epoch: int | None) -> None:
        self.highest_broker_leader_epoch = leader_epoch

    def segment(self, segment_id: UUID) -> RemoteLogSegmentMetadata | None:
        return self.cache.segments.get(segment_id) or self.tombstones.get(segment_id)

    def raise_leader_epoch(self, broker_leader_epoch: int | None) -> bool:
        """True: it rose."""
        highest = self.highest_broker_leader_epoch
        if broker_leader_epoch is None or (highest is not None and broker_leader_epoch <= highest):
            return False
        self.highest_broker_leader_epoch = broker_leader_epoch
        return True

    def fence(self, broker_leader_epoch: int | None) -> None:
        highest = self.highest_broker_leader_epoch
        if broker_leader_epoch is None or highest is None:
            return
        if broker_leader_epoch < highest:
            raise FencedLeaderEpochError(f"{broker_leader_epoch} is below {highest}")

    def require_expected(self, context: MutationContext, revision_before: int) -> None:
        if context.expected_revision not in (None, revision_before):
            raise ConcurrentUpdateError("the partition has another revision")
        if context.expected_config_revision not in (None, self.topic.config_revision):
            raise ConcurrentUpdateError("the topic's settings have another revision")

    def require_no_hold(self) -> None:
        if self.topic.entries.get("sediment.hold") == "true":
            raise DeletionRefusedError("the topic is on hold")

    def require_may_delete(self, context: MutationContext) -> None:
        """The removal of a whole partition is nobody's retention; a hold is everybody's."""
        self.require_no_hold()
        if self.delete_state not in (None, RemotePartitionDeleteState.DELETE_PARTITION_MARKED):
            return
        entries = self.topic.entries
        caller = context.retention_owner or RetentionOwner.BROKER
        if entries.get("sediment.retention.owner", caller.value) != caller.value:
            raise DeletionRefusedError("retention is another's")
        if caller is RetentionOwner.SWEEP and entries.get("sediment.sweep.paused") == "true":
            raise DeletionRefusedError("sweeps are paused")
