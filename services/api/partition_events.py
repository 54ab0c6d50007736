"""The audit trail of a partition: each change, with who made it and why."""

from dataclasses import dataclass
from uuid import UUID

from services.api.calls import MAX_TEXT_LENGTH
from services.api.ids import TopicIdPartition
from services.api.validation import require, require_int64


@dataclass(frozen=True, slots=True)
class PartitionEvent:
    """One change of a partition.

    Attributes:
        revision: that it gave the partition.
        at_ms: when, by the database's clock.
        kind: what changed: LEADERSHIP, SEGMENT, PARTITION_DELETE, LINEAGE, LOG_START, GAP,
            LEADER_EPOCH_RESET; more may follow.
        from_state: of the segment or of the partition's deletion before; "": none.
        to_state: the same, after the change.
        segment_id: None: not of a segment.
        key: topicId:partition:endOffset:brokerLeaderEpoch of the segment, -1 where no epoch is
            known (the compaction proposal's key); "": not of a segment.
        actor: who made the call.
        call_id: of the one call, as in the logs.
        request_id: of the call's context, as are reason, rule_detail and plan_id; "": not said.
        broker_id: -1: no broker.
        broker_leader_epoch: under which it was made; None: not said.
        repeat_count: further calls that asked for what this one had done.
    """

    revision: int
    at_ms: int
    kind: str
    from_state: str = ""
    to_state: str = ""
    segment_id: UUID | None = None
    key: str = ""
    actor: str = ""
    call_id: str = ""
    request_id: str = ""
    reason: str = ""
    rule_detail: str = ""
    plan_id: str = ""
    broker_id: int = -1
    broker_leader_epoch: int | None = None
    repeat_count: int = 0


@dataclass(frozen=True, slots=True)
class EventQuery:
    """Which events of a partition.

    Attributes:
        after_revision: only those after it; 0: from the oldest one on.
        segment_id: only of this segment; None: of all, and of none.
        plan_id: only of this sweep; "": of any and of none.
    """

    topic_id_partition: TopicIdPartition
    after_revision: int = 0
    segment_id: UUID | None = None
    plan_id: str = ""

    def __post_init__(self) -> None:
        require_int64(self.after_revision, "after_revision")
        require(
            len(self.plan_id) <= MAX_TEXT_LENGTH, "plan_id", f"over {MAX_TEXT_LENGTH} characters"
        )


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some of a partition's events, ascending by revision.

    Attributes:
        next_page_token: opaque; hand it back with the same query for what follows. "": the end.
        revision: of the partition when this page was read.
    """

    events: tuple[PartitionEvent, ...]
    next_page_token: str
    revision: int
