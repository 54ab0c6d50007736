"""Calls of RLMM as values, which any manager can be given, and which print as Python.

They name partitions and segments by small numbers, which a Space turns into ids, so that one
sequence can be repeated in one database, each time on its own topics.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import ClassVar
from uuid import UUID, uuid4

from services.api.calls import NO_CONTEXT, MutationContext
from services.api.errors import RemoteStorageError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.operations import ObjectDeletion
from services.api.partitions import (
    LOST_BEFORE_COPY,
    OffsetGap,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from services.api.remote_log_metadata_manager import PartitionLeadership, SegmentUpdate
from services.api.segment_batches import MAX_LEASE_MS, SegmentImport
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from tests.contract.rlmm import segments as names
from tests.contract.rlmm.segments import BROKER
from tests.deep.model.reference import Manager

RENAMED = 3
"""Partition 0 of the first topic, called by a name that is not the topic's."""

_NAMES = {
    value: name
    for name, value in vars(names).items()
    if isinstance(value, RemoteLogSegmentState | RemotePartitionDeleteState)
}


class Space:
    """The topics of one run of a sequence: no other run has these ids."""

    def __init__(self) -> None:
        first, second = sorted([uuid4(), uuid4()])
        self.topic = f"model-{first.hex}"
        self.partitions = (
            TopicIdPartition(first, self.topic, 0),
            TopicIdPartition(first, self.topic, 1),
            TopicIdPartition(second, self.topic, 0),
            TopicIdPartition(first, "renamed", 0),
        )

    def segment_id(self, tp: int, number: int) -> RemoteLogSegmentId:
        return RemoteLogSegmentId(self.partitions[tp], UUID(int=number + 1))


@dataclass(frozen=True, repr=False)
class Operation:
    """A call. Its repr is Python that makes it again, without what is as the class has it."""

    is_mutation: ClassVar[bool] = False

    def answer(self, rlmm: Manager, space: Space) -> object:
        """Return the manager's answer, without what may differ between two correct managers."""
        raise NotImplementedError

    def outcome(self, rlmm: Manager, space: Space) -> object:
        """Return the answer, or the class of the error."""
        try:
            return self.answer(rlmm, space)
        except RemoteStorageError as e:
            return type(e)

    def __repr__(self) -> str:
        return as_python(self)


@dataclass(frozen=True, repr=False)
class Mutation(Operation):
    is_mutation = True


def as_python(value: object) -> str:
    """The value as Python writes it; of a dataclass, only the fields that are not as by default."""
    if isinstance(value, RemoteLogSegmentState | RemotePartitionDeleteState):
        return _NAMES[value]
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, tuple):
        inner = ", ".join(map(as_python, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if not isinstance(value, Operation | MutationContext):
        return repr(value)
    reported = [
        f"{each.name}={as_python(getattr(value, each.name))}"
        for each in fields(value)
        if getattr(value, each.name) != each.default
    ]
    return f"{type(value).__name__}({', '.join(reported)})"


# --- mutations ------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Add(Mutation):
    """A copy begins; `epochs` are (leader epoch, start offset). The model has no clock: a lease is
    long enough for the whole sequence."""

    tp: int
    id: int
    start: int
    end: int
    epochs: tuple[tuple[int, int], ...]
    size: int = 100
    custom_metadata: bytes | None = None
    txn_idx_empty: bool = True
    broker_id: int = BROKER
    broker_leader_epoch: int | None = None
    state: RemoteLogSegmentState = RemoteLogSegmentState.COPY_SEGMENT_STARTED
    lease_ms: int | None = None
    why: MutationContext = NO_CONTEXT

    def metadata(self, space: Space) -> RemoteLogSegmentMetadata:
        return RemoteLogSegmentMetadata(
            remote_log_segment_id=space.segment_id(self.tp, self.id),
            start_offset=self.start,
            end_offset=self.end,
            max_timestamp_ms=-1,
            broker_id=self.broker_id,
            event_timestamp_ms=1,
            segment_leader_epochs=segment_leader_epochs(self.epochs),
            segment_size_in_bytes=self.size,
            custom_metadata=self.custom_metadata,
            state=self.state,
            txn_idx_empty=self.txn_idx_empty,
            broker_leader_epoch=self.broker_leader_epoch,
        )

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.add_remote_log_segment_metadata(
            self.metadata(space), self.why, lease_ms=self.lease_ms
        )


@dataclass(frozen=True, repr=False)
class Renew(Mutation):
    """Leases of copies of one partition; as long as in Add."""

    tp: int
    ids: tuple[int, ...]
    lease_ms: int = MAX_LEASE_MS
    broker_id: int = BROKER

    def answer(self, rlmm: Manager, space: Space) -> object:
        segment_ids = [space.segment_id(self.tp, id) for id in self.ids]
        outcomes = rlmm.renew_copy_leases(segment_ids, self.lease_ms, self.broker_id)
        return tuple(outcome and type(outcome) for outcome in outcomes)


@dataclass(frozen=True, repr=False)
class Import(Mutation):
    """Messages of one stream, each of some segments."""

    tp: int
    messages: tuple[tuple[Add, ...], ...]
    why: MutationContext = NO_CONTEXT

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.import_remote_log_segments(
            SegmentImport(tuple(each.metadata(space) for each in message), self.why)
            for message in self.messages
        )


@dataclass(frozen=True, repr=False)
class Move(Mutation):
    """A segment goes to another state."""

    tp: int
    id: int
    state: RemoteLogSegmentState
    custom_metadata: bytes | None = None
    broker_id: int = BROKER
    event_timestamp_ms: int = 2
    why: MutationContext = NO_CONTEXT

    def update(self, space: Space) -> RemoteLogSegmentMetadataUpdate:
        return RemoteLogSegmentMetadataUpdate(
            space.segment_id(self.tp, self.id),
            self.event_timestamp_ms,
            self.state,
            self.broker_id,
            self.custom_metadata,
        )

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.update_remote_log_segment_metadata(self.update(space), self.why)


@dataclass(frozen=True, repr=False)
class MoveBatch(Mutation):
    moves: tuple[Move, ...]

    def answer(self, rlmm: Manager, space: Space) -> object:
        updates = [SegmentUpdate(move.update(space), move.why) for move in self.moves]
        outcomes = rlmm.update_remote_log_segment_metadata_batch(updates)
        return tuple(type(o) if isinstance(o, RemoteStorageError) else o for o in outcomes)


@dataclass(frozen=True, repr=False)
class PutDeletion(Mutation):
    tp: int
    state: RemotePartitionDeleteState
    why: MutationContext = NO_CONTEXT

    def answer(self, rlmm: Manager, space: Space) -> object:
        event = RemotePartitionDeleteMetadata(space.partitions[self.tp], self.state, 3, BROKER)
        return rlmm.put_remote_partition_delete_metadata(event, self.why)


@dataclass(frozen=True, repr=False)
class Lead(Mutation):
    """Both are (partition, leader epoch or None)."""

    leaders: tuple[tuple[int, int | None], ...] = ()
    followers: tuple[tuple[int, int | None], ...] = ()
    broker_id: int = BROKER

    def answer(self, rlmm: Manager, space: Space) -> object:
        leaders, followers = (
            [PartitionLeadership(space.partitions[tp], epoch) for tp, epoch in reported]
            for reported in (self.leaders, self.followers)
        )
        rlmm.on_partition_leadership_changes(leaders, followers, self.broker_id)
        return None


@dataclass(frozen=True, repr=False)
class Stop(Mutation):
    tp: int

    def answer(self, rlmm: Manager, space: Space) -> object:
        rlmm.on_stop_partitions([space.partitions[self.tp]], BROKER)
        return None


@dataclass(frozen=True, repr=False)
class RaiseLogStart(Mutation):
    tp: int
    offset: int
    why: MutationContext = NO_CONTEXT

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.raise_log_start_offset(space.partitions[self.tp], self.offset, self.why)


@dataclass(frozen=True, repr=False)
class RecordGap(Mutation):
    tp: int
    start: int
    end: int
    kind: str = LOST_BEFORE_COPY
    broker_id: int = BROKER
    why: MutationContext = NO_CONTEXT

    def answer(self, rlmm: Manager, space: Space) -> object:
        gap = OffsetGap(self.start, self.end, self.kind)
        return rlmm.record_gap(space.partitions[self.tp], gap, self.broker_id, self.why)


@dataclass(frozen=True, repr=False)
class RecordObjectDeletions(Mutation):
    """Each object is (number of its segment, key)."""

    tp: int
    objects: tuple[tuple[int, str], ...]
    why: MutationContext = NO_CONTEXT

    def answer(self, rlmm: Manager, space: Space) -> object:
        deletions = [
            ObjectDeletion(space.segment_id(self.tp, number).id, key)
            for number, key in self.objects
        ]
        return rlmm.record_object_deletions(space.partitions[self.tp], deletions, self.why)


@dataclass(frozen=True, repr=False)
class Undelete(Mutation):
    tp: int
    why: MutationContext = NO_CONTEXT

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.undelete_partition(space.partitions[self.tp], self.why)


@dataclass(frozen=True, repr=False)
class ResetLeaderEpoch(Mutation):
    tp: int
    epoch: int | None = None
    why: MutationContext = NO_CONTEXT

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.reset_leader_epoch(space.partitions[self.tp], self.epoch, self.why)


@dataclass(frozen=True, repr=False)
class PutConfig(Mutation):
    """Of the topic of the partition."""

    tp: int
    entries: tuple[tuple[str, str], ...] = ()
    expected_revision: int | None = None

    def answer(self, rlmm: Manager, space: Space) -> object:
        topic_id = space.partitions[self.tp].topic_id
        return rlmm.put_topic_config(topic_id, dict(self.entries), self.expected_revision)


# --- reads ----------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class LookUp(Operation):
    tp: int
    epoch: int
    offset: int

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.remote_log_segment_metadata(space.partitions[self.tp], self.epoch, self.offset)


@dataclass(frozen=True, repr=False)
class NextWithTxnIndex(Operation):
    tp: int
    epoch: int
    offset: int

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.next_segment_with_txn_index(space.partitions[self.tp], self.epoch, self.offset)


@dataclass(frozen=True, repr=False)
class HighestOffset(Operation):
    tp: int
    epoch: int

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.highest_offset_for_epoch(space.partitions[self.tp], self.epoch)


@dataclass(frozen=True, repr=False)
class LogSize(Operation):
    tp: int
    epoch: int

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.remote_log_size(space.partitions[self.tp], self.epoch)


@dataclass(frozen=True, repr=False)
class ListSegments(Operation):
    """All pages, one after another."""

    tp: int
    epoch: int | None = None
    states: tuple[RemoteLogSegmentState, ...] = ()
    min_offset: int | None = None
    if_revision_not: int | None = None
    page_size: int = 0

    def answer(self, rlmm: Manager, space: Space) -> object:
        return tuple(self._pages(rlmm, space.partitions[self.tp]))

    def _pages(self, rlmm: Manager, tp: TopicIdPartition) -> Iterator[object]:
        token = ""
        while True:
            page = rlmm.list_remote_log_segments(
                tp,
                self.epoch,
                states=self.states,
                min_offset=self.min_offset,
                if_revision_not=self.if_revision_not,
                page_size=self.page_size,
                page_token=token,
            )
            # Equal segments may be leased or not.
            leased = tuple(each.copy_leased for each in page.segments)
            yield page.segments, leased, page.revision, page.not_modified, page.log_start_offset
            token = page.next_page_token
            if not token:
                return


@dataclass(frozen=True, repr=False)
class ListPartitions(Operation):
    """All pages of the partitions of the space's topics, without times."""

    delete_states: tuple[RemotePartitionDeleteState, ...] = ()
    page_size: int = 0

    def answer(self, rlmm: Manager, space: Space) -> object:
        return tuple(self._pages(rlmm, space.topic))

    def _pages(self, rlmm: Manager, topic: str) -> Iterator[object]:
        token = ""
        while True:
            page = rlmm.list_partitions(
                topic=topic,
                delete_states=self.delete_states,
                page_size=self.page_size,
                page_token=token,
            )
            yield tuple(
                (each.topic_id_partition, each.delete_state, each.revision, each.totals)
                for each in page.partitions
            )
            token = page.next_page_token
            if not token:
                return


@dataclass(frozen=True, repr=False)
class LogStart(Operation):
    """And the gaps from there on."""

    tp: int

    def answer(self, rlmm: Manager, space: Space) -> object:
        state = rlmm.partition_state(space.partitions[self.tp])
        return state.value.log_start_offset, state.value.gaps, state.revision


@dataclass(frozen=True, repr=False)
class Config(Operation):
    tp: int

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.topic_config(space.partitions[self.tp].topic_id)


def script(operations: Sequence[Operation]) -> str:
    """Lines of Python to paste into a test: the list that comparison.replay takes."""
    lines = [f"            {operation!r}," for operation in operations]
    return "\n".join(["        [", *lines, "        ]"])
