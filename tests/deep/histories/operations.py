"""Operations of RLMM's clients as values: any manager can perform them, and they print as Python.

They name partitions and segments by small numbers, which a Space resolves, so that one sequence can
be repeated in one database, each time on its own topics.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from enum import Enum
from typing import ClassVar

from services.api.calls import NO_CONTEXT, AtRevision, MutationContext, MutationOutcome
from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.holds import Hold, HoldKind
from services.api.operations import ObjectDeletion
from services.api.partitions import (
    LOST_BEFORE_COPY,
    OffsetGap,
    RemotePartitionDeleteMetadata,
    RemotePartitionDeleteState,
)
from services.api.remote_log_metadata_manager import (
    PartitionLeadership,
    SegmentUpdate,
    UpdateOutcome,
)
from services.api.segment_batches import MAX_LEASE_MS, SegmentImport
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    segment_leader_epochs,
)
from services.api.topic_config import StoredTopicConfig
from tests.contract.rlmm import segments as names
from tests.contract.rlmm.segments import BROKER
from tests.deep.histories.model import Manager
from tests.deep.histories.partition import KEPT
from tests.deep.histories.space import Space

_NAMES = {
    value: name
    for name, value in vars(names).items()
    if isinstance(value, RemoteLogSegmentState | RemotePartitionDeleteState)
}


@dataclass(frozen=True)
class Lost:
    """No definite reply: the operation may have happened, may happen later, or never."""

    why: str


@dataclass(frozen=True)
class Page:
    """A page of segments. `leased` and `kept`: of each; equal segments may be so or not."""

    segments: tuple[RemoteLogSegmentMetadata, ...]
    leased: tuple[bool, ...]
    kept: tuple[bool, ...]
    revision: int
    not_modified: bool = False
    log_start_offset: int = 0


def timeless(outcome: UpdateOutcome) -> UpdateOutcome:
    """Return the outcome of an update as the model has it, which has no clock."""
    if isinstance(outcome, RemoteStorageError) or outcome.kept_until_ms is None:
        return outcome
    return replace(outcome, kept_until_ms=KEPT)


def outcomes_in(reply: object) -> tuple[object, ...]:
    """Return the outcome of a change, or of each item of a batch; refusals too."""
    return reply if isinstance(reply, tuple) else (reply,)


def changes_in(reply: object) -> list[MutationOutcome]:
    """Return the outcomes that are no refusals."""
    return [each for each in outcomes_in(reply) if isinstance(each, MutationOutcome)]


def revision_read(reply: object) -> int | None:
    """Return the revision of the partition that a read answered; None of any other reply."""
    match reply:
        case AtRevision(revision=revision) | (Page(revision=revision), *_):
            return revision
    return None


@dataclass(frozen=True, repr=False)
class Operation:
    """A call. Its repr is Python that makes it again, without the values that are defaults."""

    is_mutation: ClassVar[bool] = True

    @property
    def tps(self) -> tuple[int, ...]:
        """Return the numbers of the partitions that the call changes or reads."""
        raise NotImplementedError

    def answer(self, rlmm: Manager, space: Space) -> object:
        """Return the manager's answer, without what may differ between two correct managers."""
        raise NotImplementedError

    def reply(self, rlmm: Manager, space: Space) -> object:
        """Return the answer, the class of the refusal, or Lost after a retriable error."""
        try:
            return self.answer(rlmm, space)
        except RetriableRemoteStorageError as e:
            return Lost(str(e))
        except RemoteStorageError as e:
            return type(e)

    def __repr__(self) -> str:
        return as_python(self)


@dataclass(frozen=True, repr=False)
class OfPartition(Operation):
    tp: int

    @property
    def tps(self) -> tuple[int, ...]:
        return (self.tp,)


@dataclass(frozen=True, repr=False)
class Change(OfPartition):
    why: MutationContext = field(default=NO_CONTEXT, kw_only=True)


@dataclass(frozen=True, repr=False)
class Read(OfPartition):
    is_mutation = False


def as_python(value: object) -> str:
    """Return the value as Python writes it; of a dataclass, the fields that are not defaults."""
    if isinstance(value, RemoteLogSegmentState | RemotePartitionDeleteState):
        return _NAMES[value]
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, tuple):
        inner = ", ".join(map(as_python, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, type):
        return value.__name__
    if not is_dataclass(value):
        return repr(value)
    given = [
        f"{each.name}={as_python(getattr(value, each.name))}"
        for each in fields(value)
        if getattr(value, each.name) != each.default
    ]
    return f"{type(value).__name__}({', '.join(given)})"


# --- mutations ------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Add(Change):
    """Begin a copy; `epochs` are (leader epoch, start offset). The model has no clock: a lease
    outlasts the whole sequence."""

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
class Renew(OfPartition):
    """Renew leases of copies; for as long as in Add."""

    ids: tuple[int, ...]
    lease_ms: int = MAX_LEASE_MS
    broker_id: int = BROKER

    def answer(self, rlmm: Manager, space: Space) -> object:
        segment_ids = [space.segment_id(self.tp, id) for id in self.ids]
        outcomes = rlmm.renew_copy_leases(segment_ids, self.lease_ms, self.broker_id)
        return tuple(outcome and type(outcome) for outcome in outcomes)


@dataclass(frozen=True, repr=False)
class Import(Change):
    """Import the messages of one stream, each of some segments."""

    messages: tuple[tuple[Add, ...], ...]

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.import_remote_log_segments(
            SegmentImport(tuple(each.metadata(space) for each in message), self.why)
            for message in self.messages
        )


@dataclass(frozen=True, repr=False)
class Move(Change):
    """Move a segment to another state."""

    id: int
    state: RemoteLogSegmentState
    custom_metadata: bytes | None = None
    broker_id: int = BROKER
    event_timestamp_ms: int = 2

    def update(self, space: Space) -> RemoteLogSegmentMetadataUpdate:
        return RemoteLogSegmentMetadataUpdate(
            space.segment_id(self.tp, self.id),
            self.event_timestamp_ms,
            self.state,
            self.broker_id,
            self.custom_metadata,
        )

    def answer(self, rlmm: Manager, space: Space) -> object:
        return timeless(rlmm.update_remote_log_segment_metadata(self.update(space), self.why))


@dataclass(frozen=True, repr=False)
class MoveBatch(Operation):
    moves: tuple[Move, ...]

    @property
    def tps(self) -> tuple[int, ...]:
        return tuple(move.tp for move in self.moves)

    def answer(self, rlmm: Manager, space: Space) -> object:
        updates = [SegmentUpdate(move.update(space), move.why) for move in self.moves]
        outcomes = rlmm.update_remote_log_segment_metadata_batch(updates)
        return tuple(
            type(o) if isinstance(o, RemoteStorageError) else timeless(o) for o in outcomes
        )


@dataclass(frozen=True, repr=False)
class ReplaceData(Change):
    """Give a finished segment other custom metadata."""

    id: int
    expected: bytes
    new: bytes

    def answer(self, rlmm: Manager, space: Space) -> object:
        segment_id = space.segment_id(self.tp, self.id)
        return rlmm.replace_segment_data(segment_id, self.expected, self.new, self.why)


@dataclass(frozen=True, repr=False)
class PutDeletion(Change):
    state: RemotePartitionDeleteState

    def answer(self, rlmm: Manager, space: Space) -> object:
        event = RemotePartitionDeleteMetadata(space.partitions[self.tp], self.state, 3, BROKER)
        return rlmm.put_remote_partition_delete_metadata(event, self.why)


@dataclass(frozen=True, repr=False)
class Lead(Operation):
    """Announce leaders and followers, both as (partition, leader epoch or None)."""

    leaders: tuple[tuple[int, int | None], ...] = ()
    followers: tuple[tuple[int, int | None], ...] = ()
    broker_id: int = BROKER

    @property
    def tps(self) -> tuple[int, ...]:
        return tuple(tp for tp, _ in (*self.leaders, *self.followers))

    def answer(self, rlmm: Manager, space: Space) -> object:
        leaders, followers = (
            [PartitionLeadership(space.partitions[tp], epoch) for tp, epoch in announced]
            for announced in (self.leaders, self.followers)
        )
        rlmm.on_partition_leadership_changes(leaders, followers, self.broker_id)
        return None


@dataclass(frozen=True, repr=False)
class Stop(OfPartition):
    def answer(self, rlmm: Manager, space: Space) -> object:
        rlmm.on_stop_partitions([space.partitions[self.tp]], BROKER)
        return None


@dataclass(frozen=True, repr=False)
class RaiseLogStart(Change):
    offset: int

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.raise_log_start_offset(space.partitions[self.tp], self.offset, self.why)


@dataclass(frozen=True, repr=False)
class RecordGap(Change):
    start: int
    end: int
    kind: str = LOST_BEFORE_COPY
    broker_id: int = BROKER

    def answer(self, rlmm: Manager, space: Space) -> object:
        gap = OffsetGap(self.start, self.end, self.kind)
        return rlmm.record_gap(space.partitions[self.tp], gap, self.broker_id, self.why)


@dataclass(frozen=True, repr=False)
class RecordObjectDeletions(Change):
    """Record the deletion of objects, each (number of its segment, key)."""

    objects: tuple[tuple[int, str], ...]

    def answer(self, rlmm: Manager, space: Space) -> object:
        deletions = [
            ObjectDeletion(space.segment_id(self.tp, number).id, key)
            for number, key in self.objects
        ]
        return rlmm.record_object_deletions(space.partitions[self.tp], deletions, self.why)


@dataclass(frozen=True, repr=False)
class Undelete(Change):
    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.undelete_partition(space.partitions[self.tp], self.why)


@dataclass(frozen=True, repr=False)
class ResetLeaderEpoch(Change):
    epoch: int | None = None

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.reset_leader_epoch(space.partitions[self.tp], self.epoch, self.why)


@dataclass(frozen=True, repr=False)
class PutConfig(OfPartition):
    """Put the settings of the partition's topic."""

    entries: tuple[tuple[str, str], ...] = ()
    expected_revision: int | None = None
    now: bool = False

    def answer(self, rlmm: Manager, space: Space) -> object:
        topic_id = space.partitions[self.tp].topic_id
        entries = dict(self.entries)
        return _untimed(
            rlmm.put_topic_config(topic_id, entries, self.expected_revision, now=self.now)
        )


@dataclass(frozen=True, repr=False)
class ConfirmDeletions(OfPartition):
    """Confirm the deletions of the partition's topic."""

    config_revision: int = 0

    def answer(self, rlmm: Manager, space: Space) -> object:
        topic_id = space.partitions[self.tp].topic_id
        return _untimed(rlmm.confirm_deletions(topic_id, self.config_revision))


def _untimed(stored: StoredTopicConfig) -> StoredTopicConfig:
    """Return settings without the time until which they wait, and without names."""
    until_ms = None if stored.waits_until_ms is None else 0
    who = stored.deletions_confirmed_by and "somebody"
    return replace(stored, waits_until_ms=until_ms, deletions_confirmed_by=who)


@dataclass(frozen=True, repr=False)
class SetHold(OfPartition):
    """Keep offsets of the partition, or of its whole topic."""

    name: str = "audit"
    first_offset: int = 0
    last_offset: int | None = None
    of_topic: bool = False

    def hold(self, space: Space) -> Hold:
        tp = space.partitions[self.tp]
        partition = None if self.of_topic else tp.partition
        offsets = self.first_offset, self.last_offset
        of = tp.topic_id, tp.topic, partition
        return Hold(self.name, HoldKind.OPERATOR, *of, *offsets, reason="r")

    def answer(self, rlmm: Manager, space: Space) -> object:
        return str(rlmm.set_hold(self.hold(space)))


@dataclass(frozen=True, repr=False)
class EndHold(OfPartition):
    name: str = "audit"
    of_topic: bool = False

    def answer(self, rlmm: Manager, space: Space) -> object:
        ended = SetHold(self.tp, self.name, of_topic=self.of_topic).hold(space)
        return str(rlmm.end_hold(ended))


# --- reads ----------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class LookUp(Read):
    epoch: int
    offset: int

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.remote_log_segment_metadata(space.partitions[self.tp], self.epoch, self.offset)


@dataclass(frozen=True, repr=False)
class NextWithTxnIndex(Read):
    epoch: int
    offset: int

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.next_segment_with_txn_index(space.partitions[self.tp], self.epoch, self.offset)


@dataclass(frozen=True, repr=False)
class HighestOffset(Read):
    epoch: int

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.highest_offset_for_epoch(space.partitions[self.tp], self.epoch)


@dataclass(frozen=True, repr=False)
class LogSize(Read):
    epoch: int

    def answer(self, rlmm: Manager, space: Space) -> object:
        return rlmm.remote_log_size(space.partitions[self.tp], self.epoch)


@dataclass(frozen=True, repr=False)
class ListSegments(Read):
    """List segments, all pages one after another; with one page it is one read."""

    epoch: int | None = None
    states: tuple[RemoteLogSegmentState, ...] = ()
    min_offset: int | None = None
    if_revision_not: int | None = None
    page_size: int = 0

    def answer(self, rlmm: Manager, space: Space) -> object:
        return tuple(self._pages(rlmm, space))

    def _pages(self, rlmm: Manager, space: Space) -> Iterator[Page]:
        token: str | None = ""
        while token is not None:
            page = rlmm.list_remote_log_segments(
                space.partitions[self.tp],
                self.epoch,
                states=self.states,
                min_offset=self.min_offset,
                if_revision_not=self.if_revision_not,
                page_size=self.page_size,
                page_token=token,
            )
            leased = tuple(each.copy_leased for each in page.segments)
            kept = tuple(each.kept_until_ms is not None for each in page.segments)
            yield Page(
                page.segments, leased, kept, page.revision, page.not_modified, page.log_start_offset
            )
            token = page.next_page_token or None


@dataclass(frozen=True, repr=False)
class ListPartitions(Operation):
    """List the partitions of the space's topics, all pages, without times."""

    delete_states: tuple[RemotePartitionDeleteState, ...] = ()
    page_size: int = 0
    is_mutation = False

    @property
    def tps(self) -> tuple[int, ...]:
        return ()

    def answer(self, rlmm: Manager, space: Space) -> object:
        return tuple(self._pages(rlmm, space.partitions[0].topic))

    def _pages(self, rlmm: Manager, topic: str) -> Iterator[object]:
        token: str | None = ""
        while token is not None:
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
            token = page.next_page_token or None


@dataclass(frozen=True, repr=False)
class LogStart(Read):
    """Read the log start offset, and the gaps from there on."""

    def answer(self, rlmm: Manager, space: Space) -> object:
        state = rlmm.partition_state(space.partitions[self.tp])
        return AtRevision((state.value.log_start_offset, state.value.gaps), state.revision)


@dataclass(frozen=True, repr=False)
class Config(Read):
    def answer(self, rlmm: Manager, space: Space) -> object:
        return _untimed(rlmm.topic_config(space.partitions[self.tp].topic_id))


def script(operations: Sequence[Operation]) -> str:
    """Return lines of Python to paste into a test: the list that comparison.replay takes."""
    lines = [f"            {operation!r}," for operation in operations]
    return "\n".join(["        [", *lines, "        ]"])
