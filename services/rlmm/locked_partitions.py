"""Lock the partitions of a batch together, and write them together at the end."""

from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from typing import Self
from uuid import UUID

from sqlalchemy.orm import Session

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition
from services.api.topic_config import topic_config
from services.rlmm.db import PartitionKey, key_of, partition_row, run, wait_for_answers, when_needed
from services.rlmm.guards import Guards, PartitionView, check_topic_name, unknown_partition
from services.rlmm.partitions import lock_or_create, lock_topics
from services.rlmm.rows import AnyRow

# Rows are sorted before they are locked: their order is the order of the locks.
LOCK = """
    SELECT p.topic_id, p.partition, p.revision, p.highest_broker_leader_epoch, p.delete_state,
        t.name
    FROM json_to_recordset(%(rows)s) AS wanted (topic_id uuid, partition int)
    JOIN partitions AS p USING (topic_id, partition)
    JOIN topics AS t USING (topic_id)
    ORDER BY p.topic_id, p.partition
    FOR UPDATE OF p"""

LOCK_SKIP_LOCKED = f"{LOCK} SKIP LOCKED"

KNOWN = """
    SELECT topic_id, partition
    FROM json_to_recordset(%(rows)s) AS wanted (topic_id uuid, partition int)
    JOIN partitions AS p USING (topic_id, partition)"""

# Settings are read after the locks: a change of a topic's settings first locks all its partitions.
TOPICS = """
    SELECT topic_id, name, config, config_revision
    FROM json_to_recordset(%(rows)s) AS wanted (topic_id uuid)
    JOIN topics USING (topic_id)"""

CHANGE = """
    UPDATE partitions AS p SET
        revision = changed.revision,
        highest_broker_leader_epoch = changed.highest_broker_leader_epoch,
        changed_at = clock_timestamp()
    FROM json_to_recordset(%(rows)s) AS changed (
        topic_id uuid, partition int, revision bigint, highest_broker_leader_epoch int)
    WHERE p.topic_id = changed.topic_id AND p.partition = changed.partition"""

# A partition is known from its first event on, and a topic from its first partition on.
FORGET = """
    DELETE FROM partitions AS p
    USING json_to_recordset(%(rows)s) AS new (topic_id uuid, partition int)
    WHERE p.topic_id = new.topic_id AND p.partition = new.partition AND p.revision = 0"""

FORGET_TOPICS = """
    DELETE FROM topics AS t
    USING json_to_recordset(%(rows)s) AS new (topic_id uuid)
    WHERE t.topic_id = new.topic_id AND t.config_revision = 0
        AND NOT EXISTS (SELECT FROM partitions AS p WHERE p.topic_id = t.topic_id)"""


@dataclass(slots=True)
class _Partition:
    """A PartitionView that LockedPartitions.write_back writes."""

    topic_id: UUID
    partition: int
    revision: int
    highest_broker_leader_epoch: int | None
    delete_state: str | None


@dataclass(frozen=True, slots=True)
class LockedPartition:
    """A partition of the batch.

    Attributes:
        row: the state in which the batch leaves the partition.
        topic: the name that belongs to the topic id.
        revision: before the batch.
        guards: refuse changes according to the state before the batch.
    """

    row: PartitionView
    topic: str
    revision: int
    guards: Guards


class LockedPartitions:
    """The partitions of a batch, locked until the transaction ends.

    Results are read when they are first needed: in a pipeline other statements are sent first.
    """

    def __init__(
        self,
        session: Session,
        rows: Iterable[AnyRow],
        *,
        created: Collection[PartitionKey] = (),
    ) -> None:
        self._session = session
        self._rows = rows
        self._created = created
        self._by_key = when_needed(self._read_partitions)
        self._topics = when_needed(self._read_topics)
        self._config = cache(lambda topic_id: topic_config(self._topic(topic_id).config))

    @classmethod
    def lock(
        cls,
        session: Session,
        tps: Iterable[TopicIdPartition],
        created: Collection[PartitionKey] = (),
    ) -> Self:
        """Lock the existing ones of the partitions, which may be deleted already.

        Args:
            created: the result of ensure_partitions.
        """
        return cls(session, _lock(session, LOCK, {key_of(tp) for tp in tps}), created=created)

    @classmethod
    def lock_skip_locked(cls, session: Session, tps: Iterable[TopicIdPartition]) -> Self:
        """Lock those of the partitions that no other transaction has locked."""
        return cls(session, _lock(session, LOCK_SKIP_LOCKED, {key_of(tp) for tp in tps}))

    def __contains__(self, tp: TopicIdPartition) -> bool:
        return key_of(tp) in self._by_key()

    def of(self, tp: TopicIdPartition) -> LockedPartition:
        """Return a locked partition.

        Raises:
            RemoteResourceNotFoundError: the partition is not known.
            InvalidRequestError: its topic has another name.
        """
        found = self._by_key().get(key_of(tp))
        if found is None:
            raise unknown_partition(tp)
        check_topic_name(tp, found.topic)
        return found

    def _read_partitions(self) -> dict[PartitionKey, LockedPartition]:
        by_key = {}
        for row in self._rows:
            partition = _partition(row)
            guards = Guards(
                partition, partial(self._topic, row.topic_id), partial(self._config, row.topic_id)
            )
            by_key[row.topic_id, row.partition] = LockedPartition(
                partition, row.name, row.revision, guards
            )
        return by_key

    def _topic(self, topic_id: UUID) -> AnyRow:
        return self._topics()[topic_id]

    def _read_topics(self) -> dict[UUID, AnyRow]:
        """Read all topics in one statement."""
        ids = sorted({topic_id for topic_id, _ in self._by_key()})
        connection = self._session.connection()
        rows = run(connection, TOPICS, [{"topic_id": id.hex} for id in ids])
        wait_for_answers(connection)
        return {row.topic_id: row for row in rows}

    def write_back(self) -> None:
        """Write the changed partitions; delete those that were created and did not change."""
        rows = [
            {
                **partition_row(key),
                "revision": partition.row.revision,
                "highest_broker_leader_epoch": partition.row.highest_broker_leader_epoch,
            }
            for key, partition in self._by_key().items()
            if partition.row.revision != partition.revision
        ]
        connection = self._session.connection()
        if rows:
            run(connection, CHANGE, rows)
        if self._created:
            run(connection, FORGET, [partition_row(key) for key in self._created])
            topic_ids = sorted({topic_id for topic_id, _ in self._created})
            run(connection, FORGET_TOPICS, [{"topic_id": id.hex} for id in topic_ids])


def ensure_partitions(
    session: Session, tps: Iterable[TopicIdPartition]
) -> Collection[PartitionKey]:
    """Create the unknown ones of the partitions at revision 0; return which were created."""
    in_order = sorted(dict.fromkeys(tps), key=key_of)
    keys = {key_of(tp) for tp in in_order}
    rows = run(session.connection(), KNOWN, [partition_row(key) for key in keys])
    created = keys - {(row.topic_id, row.partition) for row in rows}
    if created:
        lock_topics(session, in_order)
        for tp in in_order:
            # `of` refuses a wrong name of the topic.
            with suppress(InvalidRequestError):
                lock_or_create(session, tp)
    return created


def _partition(row: AnyRow) -> _Partition:
    return _Partition(
        row.topic_id,
        row.partition,
        row.revision,
        row.highest_broker_leader_epoch,
        row.delete_state,
    )


def _lock(session: Session, statement: str, keys: Iterable[PartitionKey]) -> Iterable[AnyRow]:
    return run(session.connection(), statement, [partition_row(key) for key in keys])
