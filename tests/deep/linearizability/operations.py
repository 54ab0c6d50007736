"""Operations of RLMM's clients, their replies, and the record of one operation.

An operation is about one partition. All of it is made of RLMM's own nouns, frozen and hashable, and
crosses into JSON and back without loss.
"""

from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from enum import Enum
from typing import Annotated, Literal, TypeAlias
from uuid import UUID

from pydantic import Discriminator

from services.api.calls import NO_CONTEXT, MutationContext, MutationOutcome
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata
from services.api.remote_log_metadata_manager import PartitionLeadership, SegmentPage, SegmentUpdate
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState


@dataclass(frozen=True, slots=True)
class Add:
    """`is_leased`: for longer than any history takes."""

    metadata: RemoteLogSegmentMetadata
    context: MutationContext = NO_CONTEXT
    is_leased: bool = False
    kind: Literal["add"] = "add"


@dataclass(frozen=True, slots=True)
class Update:
    item: SegmentUpdate
    kind: Literal["update"] = "update"


@dataclass(frozen=True, slots=True)
class UpdateBatch:
    items: tuple[SegmentUpdate, ...]
    kind: Literal["update_batch"] = "update_batch"


@dataclass(frozen=True, slots=True)
class PutDeletion:
    metadata: RemotePartitionDeleteMetadata
    context: MutationContext = NO_CONTEXT
    kind: Literal["put_deletion"] = "put_deletion"


@dataclass(frozen=True, slots=True)
class Undelete:
    context: MutationContext = NO_CONTEXT
    kind: Literal["undelete"] = "undelete"


@dataclass(frozen=True, slots=True)
class ResetLeaderEpoch:
    leader_epoch: int | None
    context: MutationContext = NO_CONTEXT
    kind: Literal["reset_leader_epoch"] = "reset_leader_epoch"


@dataclass(frozen=True, slots=True)
class RaiseLogStart:
    log_start_offset: int
    context: MutationContext = NO_CONTEXT
    kind: Literal["raise_log_start"] = "raise_log_start"


@dataclass(frozen=True, slots=True)
class Announce:
    leadership: PartitionLeadership
    broker_id: int
    kind: Literal["announce"] = "announce"


@dataclass(frozen=True, slots=True)
class LookUp:
    leader_epoch: int
    offset: int
    kind: Literal["look_up"] = "look_up"


@dataclass(frozen=True, slots=True)
class NextWithTxnIndex:
    leader_epoch: int
    offset: int
    kind: Literal["next_with_txn_index"] = "next_with_txn_index"


@dataclass(frozen=True, slots=True)
class HighestOffset:
    leader_epoch: int
    kind: Literal["highest_offset"] = "highest_offset"


@dataclass(frozen=True, slots=True)
class LogSize:
    leader_epoch: int
    kind: Literal["log_size"] = "log_size"


@dataclass(frozen=True, slots=True)
class ListSegments:
    leader_epoch: int | None = None
    states: tuple[RemoteLogSegmentState, ...] = ()
    min_offset: int | None = None
    if_revision_not: int | None = None
    kind: Literal["list_segments"] = "list_segments"


Single: TypeAlias = Add | Update | PutDeletion | Undelete | RaiseLogStart | ResetLeaderEpoch
Mutation: TypeAlias = Single | UpdateBatch | Announce
Setting: TypeAlias = Undelete | RaiseLogStart | ResetLeaderEpoch
"""What leads to a state that may be there already; then no event in particular is repeated, and the
present revision is answered."""
Read: TypeAlias = LookUp | NextWithTxnIndex | HighestOffset | LogSize | ListSegments
Operation: TypeAlias = Annotated[Mutation | Read, Discriminator("kind")]


@dataclass(frozen=True, slots=True)
class Refused:
    """A refusal changes nothing. `error`: the class's name, of services.api.errors."""

    error: str
    kind: Literal["refused"] = "refused"


@dataclass(frozen=True, slots=True)
class Changed:
    """One outcome for each item of a batch; a single mutation has one."""

    outcomes: tuple[MutationOutcome | Refused, ...]
    kind: Literal["changed"] = "changed"


@dataclass(frozen=True, slots=True)
class Announced:
    """An announcement is answered with nothing, not even with a revision."""

    kind: Literal["announced"] = "announced"


@dataclass(frozen=True, slots=True)
class Answered:
    value: RemoteLogSegmentMetadata | int | None
    revision: int
    kind: Literal["answered"] = "answered"


@dataclass(frozen=True, slots=True)
class Listed:
    page: SegmentPage
    kind: Literal["listed"] = "listed"


@dataclass(frozen=True, slots=True)
class Lost:
    """No definite reply: the operation may have happened, may happen later, or never."""

    why: str
    kind: Literal["lost"] = "lost"


Reply: TypeAlias = Annotated[
    Changed | Refused | Announced | Answered | Listed | Lost, Discriminator("kind")
]


@dataclass(frozen=True, slots=True)
class Record:
    """One operation as its client saw it.

    Attributes:
        number: of this record; no two of a history have the same.
        partition: a name of the partition; operations of different ones have no common order.
        invoked_ns: before the request was sent, by the one clock of all clients.
        completed_ns: after the reply came.
    """

    number: int
    client: str
    partition: str
    operation: Operation
    reply: Reply
    invoked_ns: int
    completed_ns: int

    @property
    def is_lost(self) -> bool:
        return isinstance(self.reply, Lost)

    @property
    def is_read(self) -> bool:
        return isinstance(self.operation, Read)

    def __str__(self) -> str:
        when = f"{self.invoked_ns}-{'...' if self.is_lost else self.completed_ns}"
        return (
            f"#{self.number} {self.client} [{when}] {brief(self.operation)} -> {brief(self.reply)}"
        )


def brief(value: object) -> str:
    """Return a short `repr`: without defaults and partition; ids of segments as numbers."""
    match value:
        case RemoteLogSegmentId(id=segment_id):
            return brief(segment_id)
        case UUID(int=number):
            return f"id {number}"
        case TopicIdPartition(partition=partition):
            return f"partition {partition}"
        case MutationOutcome(applied, revision):
            return f"{'applied' if applied else 'repeated'} @{revision}"
        case RemoteLogSegmentMetadata():
            return _segment(value)
        case Enum():
            return value.name
        case tuple():
            return f"({', '.join(map(brief, value))})"
    if is_dataclass(value):
        texts = [
            f"{field.name}={brief(getattr(value, field.name))}"
            for field in fields(value)
            if field.name != "kind" and not _is_default(field, value)
        ]
        return f"{type(value).__name__}({', '.join(texts)})"
    return repr(value)


def _segment(segment: RemoteLogSegmentMetadata) -> str:
    epochs = ", ".join(
        f"{e.leader_epoch} from {e.start_offset}" for e in segment.segment_leader_epochs
    )
    texts = [
        f"{segment.start_offset}-{segment.end_offset}, epochs {epochs}, {segment.state.name}",
        f"broker {segment.broker_id} at {segment.event_timestamp_ms}",
        f"leader {segment.broker_leader_epoch}, {segment.segment_size_in_bytes} bytes",
        f"custom {segment.custom_metadata!r}, txn_idx_empty {segment.txn_idx_empty}",
    ]
    return f"[{brief(segment.remote_log_segment_id)}: {', '.join(texts)}]"


def _is_default(field: "Field[object]", value: object) -> bool:
    return field.default is not MISSING and getattr(value, field.name) == field.default
