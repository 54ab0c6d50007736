"""Change segments and partitions in one transaction: lock, check, write rows, events and outcomes.

What for. There is one way to change metadata. A single call is a batch of one, judged by the same
rule and written by the same statements as a thousand, so that no rule exists twice.

How to use. An item is a SegmentAddition, a SegmentUpdate, or a change of a partition. `change_all`
takes items and a `work` function that locks the partitions of some items, lets each item's rule
judge it, and writes what is left with a fixed number of statements. `change_sound` first refuses
what is malformed; `change_partition` changes one partition by one rule. A rule returns the outcome,
or raises the refusal, of its item alone.

Invariants.
* Partitions are locked in the order (topic id, partition), at most MAX_PARTITIONS at once: two
  batches never wait for each other in a circle.
* Each item is judged on the revision that the items before it left. A refused item writes nothing:
  no row, no event, no outcome under its request id.
* A move writes only rows in the state that its rule has seen; if a row is in another one, the
  transaction fails instead of skipping it.
* Each applied item has exactly one event, with the revision that it made.

Cancellation. A call that ends early stops between groups of partitions; its current transaction
commits or rolls back as a whole. Crash: before the commit nothing happened; after it the items
are stored, and a repeat with the same request ids gets the same outcomes. A dead database: the
items of the group in progress are in doubt and get a retriable error; if a statement is refused,
each partition runs alone, so that one bad partition fails alone.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeAlias, TypeVar

from sqlalchemy import Connection

from services.api.calls import Call, MutationContext, MutationOutcome, current_call
from services.api.errors import InvalidRequestError, RemoteStorageError, RetriableRemoteStorageError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_log_metadata_manager import SegmentUpdate
from services.api.segment_batches import MAX_BATCH, SegmentAddition
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentMetadataUpdate
from services.api.validation import require_count
from services.rlmm.changes.audit import Event
from services.rlmm.changes.idempotency import Records
from services.rlmm.changes.locked_partitions import LockedPartitions
from services.rlmm.database.db import (
    PartitionKey,
    Transactions,
    hex_of,
    key_of,
    pipelined,
    run,
    segment_row,
    wait_for_answers,
    when_needed,
)
from services.rlmm.database.limits import check_storable
from services.rlmm.database.rows import COPY_LEASED, AnyRow, row_values
from services.rlmm.guards import TOPIC_FIELD, LockedPartition, Partition

# Rows are found by LATERAL subqueries that the planner cannot take apart, and written by ctid: the
# planner knows too little of the keys to join by them.
STORED = f"""
    SELECT s.*
    FROM json_to_recordset(%(rows)s) AS wanted (topic_id uuid, partition int, segment_id uuid)
    CROSS JOIN LATERAL (
        SELECT *, {COPY_LEASED} AS copy_leased FROM segments
        WHERE topic_id = wanted.topic_id AND partition = wanted.partition
            AND segment_id = wanted.segment_id
        LIMIT 1
    ) AS s"""
MOVE = """
    UPDATE segments AS s SET
        state = moved.state,
        broker_id = moved.broker_id,
        event_timestamp_ms = moved.event_timestamp_ms,
        state_revision = moved.revision,
        custom_metadata = coalesce(decode(moved.custom_metadata, 'hex'), s.custom_metadata),
        plan_id = CASE WHEN starts_with(moved.state, 'DELETE')
            THEN coalesce(moved.plan_id, s.plan_id) ELSE s.plan_id END,
        finished_revision = CASE
            WHEN moved.state = 'COPY_SEGMENT_FINISHED' AND s.state <> moved.state
            THEN moved.revision ELSE s.finished_revision END,
        kept_until = timestamptz 'epoch' + moved.kept_until_ms * interval '1 millisecond',
        changed_at = clock_timestamp()
    FROM (
        SELECT moved.*, found.segment_ctid
        FROM json_to_recordset(%(rows)s) AS moved (
            topic_id uuid, partition int, segment_id uuid, state text, broker_id int,
            event_timestamp_ms bigint, revision bigint, custom_metadata text, plan_id text,
            kept_until_ms bigint, from_state text, from_custom_metadata text)
        CROSS JOIN LATERAL (
            SELECT ctid AS segment_ctid FROM segments
            WHERE topic_id = moved.topic_id AND partition = moved.partition
                AND segment_id = moved.segment_id AND state = moved.from_state
                AND (moved.from_custom_metadata IS NULL
                    OR custom_metadata = decode(moved.from_custom_metadata, 'hex'))
            LIMIT 1
        ) AS found
    ) AS moved
    WHERE s.ctid = moved.segment_ctid"""
ADD = """
    INSERT INTO segments (
        topic_id, partition, segment_id, start_offset, end_offset, max_timestamp_ms, broker_id,
        event_timestamp_ms, leader_epochs, epoch_start_offsets, segment_size_in_bytes,
        custom_metadata, state, txn_idx_empty, broker_leader_epoch, state_revision,
        finished_revision, copy_lease_until)
    SELECT
        topic_id, partition, segment_id, start_offset, end_offset, max_timestamp_ms, broker_id,
        event_timestamp_ms, leader_epochs, epoch_start_offsets, segment_size_in_bytes,
        decode(custom_metadata, 'hex'), state, txn_idx_empty, broker_leader_epoch, state_revision,
        CASE WHEN state = 'COPY_SEGMENT_FINISHED' THEN state_revision END,
        clock_timestamp() + lease_ms * interval '1 millisecond'
    FROM json_to_recordset(%(rows)s) AS added (
        topic_id uuid, partition int, segment_id uuid, start_offset bigint, end_offset bigint,
        max_timestamp_ms bigint, broker_id int, event_timestamp_ms bigint, leader_epochs int[],
        epoch_start_offsets bigint[], segment_size_in_bytes int, custom_metadata text, state text,
        txn_idx_empty boolean, broker_leader_epoch int, state_revision bigint, lease_ms bigint)"""

SegmentChange: TypeAlias = SegmentAddition | SegmentUpdate


def segment_id_of(change: SegmentChange) -> RemoteLogSegmentId:
    if isinstance(change, SegmentAddition):
        return change.metadata.remote_log_segment_id
    return change.update.remote_log_segment_id


def tp_of(change: SegmentChange) -> TopicIdPartition:
    return segment_id_of(change).topic_id_partition


def rows_of(change: SegmentChange) -> int:
    """Return the rows that a change writes into the largest table: one for each leader epoch."""
    if isinstance(change, SegmentAddition):
        return len(change.metadata.segment_leader_epochs)
    return 1


SegmentKey: TypeAlias = tuple[int, int, int]
"""Topic id, partition and segment id; as integers, because a UUID's hash is slow."""


@dataclass(frozen=True, slots=True)
class Move:
    """The move of a segment to its next state, or to other bytes in the same state.

    Attributes:
        from_state: the state that was checked.
        revision: the partition's revision after the move.
        plan_id: the plan of the sweep that marks or has deleted the segment; the segment keeps the
            plan that marked it if the move has none.
        from_custom_metadata: what was checked; None if the move does not depend on it.
        kept_until_ms: until when its objects stay after the move.
    """

    update: RemoteLogSegmentMetadataUpdate
    from_state: str
    revision: int
    plan_id: str | None
    from_custom_metadata: bytes | None = None
    kept_until_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Addition:
    """A new segment.

    Attributes:
        revision: the partition's revision after the addition.
        lease_ms: the lease of its copy; None if there is no lease.
    """

    metadata: RemoteLogSegmentMetadata
    revision: int
    lease_ms: int | None = None


def stored_segments(
    connection: Connection, segment_ids: Iterable[RemoteLogSegmentId]
) -> dict[SegmentKey, AnyRow]:
    """Read all columns of the existing ones of the segments, and copy_leased."""
    return by_segment(query_segments(connection, segment_ids))


def query_segments(
    connection: Connection, segment_ids: Iterable[RemoteLogSegmentId]
) -> Iterable[AnyRow]:
    """Send the query of stored_segments; in a pipeline its rows may be read later."""
    return run(connection, STORED, [segment_row(id) for id in segment_ids])


def by_segment(rows: Iterable[AnyRow]) -> dict[SegmentKey, AnyRow]:
    return {(row.topic_id.int, row.partition, row.segment_id.int): row for row in rows}


def segment_key(segment_id: RemoteLogSegmentId) -> SegmentKey:
    tp = segment_id.topic_id_partition
    return tp.topic_id.int, tp.partition, segment_id.id.int


def move_segments(connection: Connection, moves: Sequence[Move]) -> Callable[[], None]:
    """Write the moves into the table of segments.

    Returns:
        A check that they were written, to be called when the pipeline has ended.
    """
    rows = [
        {
            **segment_row(move.update.remote_log_segment_id),
            "state": move.update.state.value,
            "broker_id": move.update.broker_id,
            "event_timestamp_ms": move.update.event_timestamp_ms,
            "revision": move.revision,
            "custom_metadata": hex_of(move.update.custom_metadata),
            "plan_id": move.plan_id,
            "kept_until_ms": move.kept_until_ms,
            "from_state": move.from_state,
            "from_custom_metadata": hex_of(move.from_custom_metadata),
        }
        for move in moves
    ]
    written = run(connection, MOVE, rows)

    def require_all() -> None:
        moved = written.rowcount
        if moved != len(moves):
            # Every change of a segment holds its partition's lock, as this one does.
            raise RemoteStorageError(
                f"{moved} of {len(moves)} segments were in the state that was checked; retry"
            )

    return require_all


def add_segments(connection: Connection, additions: Sequence[Addition]) -> None:
    """Write new segments, in any state."""
    rows = [
        {
            **row_values(addition.metadata),
            **segment_row(addition.metadata.remote_log_segment_id),
            "custom_metadata": hex_of(addition.metadata.custom_metadata),
            "state_revision": addition.revision,
            "lease_ms": addition.lease_ms,
        }
        for addition in additions
    ]
    run(connection, ADD, rows)


MAX_PARTITIONS = 100
"""The most partitions that a batch locks at once."""

Item = TypeVar("Item", bound=SegmentChange)
Item_co = TypeVar("Item_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Requested(Generic[Item_co]):
    """An item of a batch, with the call that requested it."""

    item: Item_co
    call: Call = field(default_factory=current_call)


Outcome: TypeAlias = MutationOutcome | RemoteStorageError

Outcomes: TypeAlias = dict[int, Outcome]
"""Outcomes by the item's place in the batch."""


def require_distinct(segment_ids: Sequence[RemoteLogSegmentId], field: str) -> None:
    """Refuse a batch that is empty, too large, or contains a segment twice.

    Raises:
        InvalidRequestError: names the field and the item.
    """
    require_count(segment_ids, field, MAX_BATCH)
    places: dict[SegmentKey, int] = {}
    for place, segment_id in enumerate(segment_ids):
        first = places.setdefault(segment_key(segment_id), place)
        if first != place:
            raise InvalidRequestError(
                f"{field}[{place}]: {field}[{first}] has segment {segment_id} too; send it once"
            )


def change_sound(
    transactions: Transactions,
    items: Sequence[Item],
    check: Callable[[Item], None],
    work: Callable[[Connection, Mapping[int, Requested[Item]]], Outcomes],
) -> list[Outcome]:
    """Apply the items that pass `check`; each other item's outcome is the error of `check`."""
    outcomes, sound = Outcomes(), {}
    for place, item in enumerate(items):
        try:
            check(item)
            sound[place] = Requested(item)
        except RemoteStorageError as e:
            outcomes[place] = e
    outcomes |= change_all(transactions, sound, work)
    return [outcomes[place] for place in range(len(items))]


def change_all(
    transactions: Transactions,
    items: Mapping[int, Requested[Item]],
    work: Callable[[Connection, Mapping[int, Requested[Item]]], Outcomes],
) -> Outcomes:
    """Apply all items, some partitions at a time, in the order of (topic id, partition).

    Raises:
        RetriableRemoteStorageError: the database is unreachable or busy; the items of some
            partitions may have been applied.
    """
    by_partition: dict[PartitionKey, dict[int, Requested[Item]]] = {}
    for place, requested in items.items():
        key = key_of(tp_of(requested.item))
        by_partition.setdefault(key, {})[place] = requested
    outcomes: Outcomes = {}
    in_order = [by_partition[key] for key in sorted(by_partition)]
    for start in range(0, len(in_order), MAX_PARTITIONS):
        outcomes |= _change_some(transactions, in_order[start : start + MAX_PARTITIONS], work)
    return outcomes


def _change_some(
    transactions: Transactions,
    partitions: Sequence[Mapping[int, Requested[Item]]],
    work: Callable[[Connection, Mapping[int, Requested[Item]]], Outcomes],
) -> Outcomes:
    items = {place: requested for part in partitions for place, requested in part.items()}
    try:
        return transactions.change(work, items)
    except RetriableRemoteStorageError:
        raise  # A failure of the database would repeat for every other item.
    except RemoteStorageError as e:
        if len(items) == 1:
            return dict.fromkeys(items, e)
    # If the database refuses a group, each partition is retried alone, so that no item stops
    # another.
    parts = partitions if len(partitions) > 1 else [{place: items[place]} for place in items]
    outcomes: Outcomes = {}
    for part in parts:
        outcomes |= _change_some(transactions, [part], work)
    return outcomes


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a locked partition, for its rule: an item of a batch in its transaction."""

    connection: Connection
    locked: LockedPartition
    records: Records
    body: object
    context: MutationContext
    call: Call

    @property
    def partition(self) -> Partition:
        """Return the partition's row, which the rule changes."""
        return self.locked.row

    def record(self, event: Event) -> MutationOutcome:
        """Give the partition its next revision and record `event` with it."""
        return self.records.change(self.partition, event, self.body, self.context, self.call)

    def repeat(self, revision: int) -> MutationOutcome:
        """Count a repeat of the change whose event has `revision`."""
        return self.records.repeat(self.partition, revision)

    def unchanged(self) -> MutationOutcome:
        """Return the outcome of a repeat that repeats no event in particular."""
        return MutationOutcome(applied=False, revision=self.partition.revision)


Rule: TypeAlias = Callable[[Change], MutationOutcome]

Lock: TypeAlias = Callable[[Connection, Collection[TopicIdPartition]], LockedPartitions]


class Batch:
    """The changes of one transaction, whose partitions are locked.

    Attributes:
        partitions: the locked partitions.
        records: the events and outcomes of all changes.
        items_are_calls: whether each item is a call of its own, which expects the revision that the
            items before it left, instead of all items being of one call.
    """

    def __init__(
        self,
        connection: Connection,
        partitions: LockedPartitions,
        calls: Iterable[tuple[TopicIdPartition, MutationContext]] = (),
    ) -> None:
        """Send the query for the remembered outcomes of the calls."""
        self.items_are_calls = False
        self.connection = connection
        self.partitions = partitions
        self.records = Records(connection, [(key_of(tp), context) for tp, context in calls])

    def apply(
        self,
        tp: TopicIdPartition,
        body: object,
        context: MutationContext,
        rule: Rule,
        field: str = TOPIC_FIELD,
        call: Call | None = None,
    ) -> MutationOutcome:
        """Return the remembered outcome of the context's request id, or else that of the rule.

        Args:
            body: what the client sent, but for the context.
            field: the path of the topic's name, for messages.
            call: the call that requested the change; None for the current one.

        Raises:
            InvalidRequestError: the request id was used with another body before.
            RemoteStorageError: the rule refuses the change, or the partition is unknown.
        """
        locked = self.partitions.of(tp, field)
        if self.items_are_calls:
            locked.begin_call()
        answer = self.records.earlier_outcome(locked.row, body, context)
        if answer is not None:
            return answer
        requested_by = call or current_call()
        return rule(Change(self.connection, locked, self.records, body, context, requested_by))

    def write(self) -> None:
        """Write the events, the outcomes and the partitions, after the segments."""
        self.records.write()
        self.partitions.write_back()


class PartitionChange(Protocol):
    """What the client sent to change one partition, but for the context; an item of a batch."""

    @property
    def topic_id_partition(self) -> TopicIdPartition: ...


PartitionItem = TypeVar("PartitionItem", bound=PartitionChange)


def change_partition(
    transactions: Transactions,
    item: PartitionItem,
    context: MutationContext,
    rule: Callable[[Change, PartitionItem], MutationOutcome],
    lock: Lock = LockedPartitions.lock,
    field: str = TOPIC_FIELD,
) -> MutationOutcome:
    """Apply one change of a partition in a transaction of its own; a refusal rolls it back.

    Args:
        rule: refuses the change, or makes and records it.
        field: the path of the topic's name, for messages.
    """
    check_storable(context)
    tp = item.topic_id_partition

    def work(connection: Connection) -> MutationOutcome:
        batch = Batch(connection, lock(connection, [tp]), [(tp, context)])
        outcome = batch.apply(tp, item, context, lambda change: rule(change, item), field)
        batch.write()
        return outcome

    return transactions.change(work)


def change_in(
    connection: Connection,
    lock: Lock,
    requested: Collection[Requested[SegmentChange]],
    change: "Callable[[SegmentBatch], Outcomes]",
) -> Outcomes:
    """Apply changes, no two of the same segment, in the connection's transaction.

    Waits for the database twice: for all reads, and for all writes.

    Args:
        change: checks the changes and writes the segments.
    """
    with pipelined(connection):
        partitions = lock(connection, [tp_of(each.item) for each in requested])
        batch = SegmentBatch(connection, partitions, requested)
        wait_for_answers(connection)
        outcomes = change(batch)
        batch.write()
    batch.require_written()
    return outcomes


class SegmentBatch(Batch):
    """A batch of segment changes in the pipeline of `change_in`; the constructor sends all
    queries.
    """

    def __init__(
        self,
        connection: Connection,
        partitions: LockedPartitions,
        requested: Collection[Requested[SegmentChange]],
    ) -> None:
        rows = query_segments(connection, [segment_id_of(each.item) for each in requested])
        self._stored = when_needed(lambda: by_segment(rows))
        super().__init__(
            connection, partitions, [(tp_of(e.item), e.item.context) for e in requested]
        )
        self._checks: list[Callable[[], None]] = []

    def stored(self, segment_id: RemoteLogSegmentId) -> AnyRow | None:
        """Return all columns of the segment before the batch, and copy_leased."""
        return self._stored().get(segment_key(segment_id))

    def outcome(self, requested: Requested[SegmentChange], rule: Rule) -> Outcome:
        """Apply one item; an error refuses this item alone."""
        item = requested.item
        body, field = (
            (item.metadata, f"metadata.remote_log_segment_id.{TOPIC_FIELD}")
            if isinstance(item, SegmentAddition)
            else (item.update, f"update.remote_log_segment_id.{TOPIC_FIELD}")
        )
        try:
            return self.apply(tp_of(item), body, item.context, rule, field, requested.call)
        except RemoteStorageError as e:
            return e

    def check_at_the_end(self, check: Callable[[], None]) -> None:
        """Register `check`, which `require_written` calls."""
        self._checks.append(check)

    def require_written(self) -> None:
        """Check the written rows after the end of the pipeline.

        Raises:
            RemoteStorageError: a segment was not in the state that was checked.
        """
        for check in self._checks:
            check()
