"""Random operations on a few partitions that collide on purpose.

Segments come from a window of numbers that moves on as a partition is used, so that clients meet at
the same few segments, and there are always new ones. What a segment is follows from its number:
two clients that add it repeat each other, but for the few that lie about its size.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from threading import Lock
from uuid import UUID, uuid4

from services.api.calls import NO_CONTEXT, MutationContext
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.partitions import RemotePartitionDeleteMetadata, RemotePartitionDeleteState
from services.api.remote_log_metadata_manager import PartitionLeadership, SegmentUpdate
from services.api.segments import (
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    segment_leader_epochs,
)
from tests.deep.linearizability.operations import (
    Add,
    Announce,
    HighestOffset,
    ListSegments,
    LogSize,
    LookUp,
    NextWithTxnIndex,
    Operation,
    PutDeletion,
    RaiseLogStart,
    ResetLeaderEpoch,
    Undelete,
    Update,
    UpdateBatch,
)
from tests.deep.model.kafka_cache import DELETE_FINISHED, DELETE_STARTED, FINISHED
from tests.deep.model.partition import MARKED, PARTITION_FINISHED, PARTITION_STARTED

WINDOW = 4
"""Segments that are in play at once."""
USES_PER_SEGMENT = 10
"""Operations of a partition after which its window moves on by one segment."""
USES_OF_A_LIFE = 150
"""Operations of a dying partition before its deletion begins."""
USES_PER_LEADER_EPOCH = 150
BROKERS = (1, 2)
LEADER_EPOCHS = (0, 1, 2)
LAST_OFFSET = 59

_WEIGHTS = {
    "add": 16,
    "update": 30,
    "update_batch": 8,
    "announce": 3,
    "raise_log_start": 2,
    "reset_leader_epoch": 1,
    "put_deletion": 0,
    "undelete": 1,
    "look_up": 14,
    "next_with_txn_index": 4,
    "highest_offset": 4,
    "log_size": 4,
    "list_segments": 15,
}
_DYING_WEIGHTS = {**_WEIGHTS, "put_deletion": 12, "undelete": 3}


class UsedPartition:
    """A partition, how often it was used, and the newest revision that any client has seen."""

    def __init__(self, tp: TopicIdPartition, *, is_dying: bool = False) -> None:
        """A dying partition is deleted after a while, with all its segments."""
        self.tp = tp
        self.is_dying = is_dying
        self.revision = 0
        self._uses = 0
        self._lock = Lock()

    @property
    def name(self) -> str:
        return str(self.tp)

    def used(self) -> int:
        """Count one more use; how many there were before."""
        with self._lock:
            self._uses += 1
            return self._uses - 1


def new_partitions(topic: str, lively: int, dying: int) -> list[UsedPartition]:
    topic_id = uuid4()
    return [
        UsedPartition(TopicIdPartition(topic_id, topic, n), is_dying=n >= lively)
        for n in range(lively + dying)
    ]


@dataclass(frozen=True)
class Draw:
    """One random operation. `uses`: of the partition before it."""

    random: Random
    partition: UsedPartition
    uses: int

    def operation(self) -> Operation:
        weights = _DYING_WEIGHTS if self.partition.is_dying else _WEIGHTS
        (kind,) = self.random.choices(list(weights), list(weights.values()))
        draws: dict[str, Callable[[], Operation]] = {
            "add": self._add,
            "update": lambda: Update(self._update(self._number())),
            "update_batch": lambda: UpdateBatch(self._updates()),
            "announce": lambda: Announce(
                PartitionLeadership(self.partition.tp, self._leader()), self._broker()
            ),
            "raise_log_start": lambda: RaiseLogStart(self._offset(), self._context()),
            "reset_leader_epoch": lambda: ResetLeaderEpoch(self._leader_or_none(), self._context()),
            "undelete": lambda: Undelete(self._context()),
            "put_deletion": lambda: PutDeletion(self._deletion(), self._context()),
            "look_up": lambda: LookUp(self._epoch(), self._offset()),
            "next_with_txn_index": lambda: NextWithTxnIndex(self._epoch(), self._offset()),
            "highest_offset": lambda: HighestOffset(self._epoch()),
            "log_size": lambda: LogSize(self._epoch()),
            "list_segments": self._list,
        }
        return draws[kind]()

    def _add(self) -> Add:
        return Add(self._segment(), self._context(), is_leased=self.random.random() < 0.4)

    def _segment(self) -> RemoteLogSegmentMetadata:
        number = self._number(lag=1)
        segment = nth_segment(self.partition.tp, number)
        if self.random.random() > 0.05:
            return segment
        return nth_segment(self.partition.tp, number, lie_bytes=1)

    def _update(self, number: int) -> SegmentUpdate:
        states = [FINISHED, FINISHED, DELETE_STARTED, DELETE_FINISHED]
        if self._is_over:
            states = [DELETE_STARTED, DELETE_FINISHED]
        state = self.random.choice(states)
        custom_metadata = self.random.choice((None, b"one", b"other"))
        update = RemoteLogSegmentMetadataUpdate(
            RemoteLogSegmentId(self.partition.tp, segment_uuid(number)),
            event_timestamp_ms=self.random.randrange(1_000_000),
            state=state,
            broker_id=self._broker(),
            custom_metadata=custom_metadata if state is FINISHED else None,
        )
        return SegmentUpdate(update, self._context())

    def _updates(self) -> tuple[SegmentUpdate, ...]:
        numbers = {self._number() for _ in range(self.random.randrange(1, 5))}
        return tuple(self._update(number) for number in sorted(numbers))

    def _deletion(self) -> RemotePartitionDeleteMetadata:
        states: tuple[RemotePartitionDeleteState, ...] = (
            (MARKED, PARTITION_STARTED, PARTITION_FINISHED)
            if self._is_over
            else (PARTITION_STARTED, PARTITION_FINISHED)
        )
        return RemotePartitionDeleteMetadata(
            self.partition.tp, self.random.choice(states), 7_000, self._broker()
        )

    def _list(self) -> ListSegments:
        chance = self.random.random
        return ListSegments(
            leader_epoch=self._epoch() if chance() < 0.4 else None,
            states=(FINISHED, DELETE_STARTED) if chance() < 0.2 else (),
            min_offset=self._offset() if chance() < 0.2 else None,
            if_revision_not=self.partition.revision if chance() < 0.3 else None,
        )

    def _context(self) -> MutationContext:
        """`reason` names the one intended change, so that the audit trail tells whose it was."""
        chance = self.random.random
        if chance() < 0.05:
            return NO_CONTEXT
        intent = f"{self.random.getrandbits(48):012x}"
        return MutationContext(
            request_id=self._request_id(intent),
            reason=intent,
            broker_leader_epoch=self._leader() if chance() < 0.4 else None,
            expected_revision=self.partition.revision if chance() < 0.15 else None,
        )

    def _request_id(self, intent: str) -> str | None:
        """Mostly one of its own, at times one that another change may have had."""
        chance = self.random.random()
        if chance < 0.25:
            return None
        return f"shared-{self.uses // 40}" if chance < 0.30 else intent

    @property
    def _is_over(self) -> bool:
        return self.partition.is_dying and self.uses > USES_OF_A_LIFE

    def _number(self, lag: int = WINDOW) -> int:
        """Of a segment in the window that begins `lag` segments before the newest."""
        if self._is_over:
            return self.random.randrange(USES_OF_A_LIFE // USES_PER_SEGMENT + WINDOW)
        newest = self.uses // USES_PER_SEGMENT
        return max(0, newest - lag) + self.random.randrange(WINDOW)

    def _leader(self) -> int:
        return self.uses // USES_PER_LEADER_EPOCH + self.random.randrange(2)

    def _leader_or_none(self) -> int | None:
        """Mostly a present one, or the one before."""
        return max(0, self._leader() - 1) if self.random.random() < 0.9 else None

    def _epoch(self) -> int:
        return self.random.choice(LEADER_EPOCHS)

    def _offset(self) -> int:
        return self.random.randrange(LAST_OFFSET + 1)

    def _broker(self) -> int:
        return self.random.choice(BROKERS)


def segment_uuid(number: int) -> UUID:
    """The same numbers in every partition: ids are the partition's own."""
    return UUID(int=number + 1)


def nth_segment(tp: TopicIdPartition, number: int, lie_bytes: int = 0) -> RemoteLogSegmentMetadata:
    """Segment `number` as it is added; with `lie_bytes`, other content under the same id."""
    random = Random(number)
    start = random.randrange(0, LAST_OFFSET - 10, 10)
    end = random.randrange(start + 9, LAST_OFFSET + 1, 10)
    epoch = random.choice(LEADER_EPOCHS)
    epochs = [(epoch, start)]
    if end - start > 10 and random.random() < 0.4:
        epochs.append((epoch + 1, random.randrange(start + 1, end)))
    leader = number * USES_PER_SEGMENT // USES_PER_LEADER_EPOCH
    return RemoteLogSegmentMetadata(
        RemoteLogSegmentId(tp, segment_uuid(number)),
        start_offset=start,
        end_offset=end,
        max_timestamp_ms=1_000,
        broker_id=random.choice(BROKERS),
        event_timestamp_ms=5_000,
        segment_leader_epochs=segment_leader_epochs(epochs),
        segment_size_in_bytes=1_000 + number + lie_bytes,
        txn_idx_empty=random.random() < 0.5,
        broker_leader_epoch=leader if random.random() < 0.5 else None,
    )
