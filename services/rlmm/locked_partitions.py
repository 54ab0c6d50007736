"""The partitions of a batch: locked together, and written together at the end.

Locks are taken in the order of (topic id, partition), as by every change of several partitions:
two batches wait for each other, but never each for the other.
"""

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Self
from uuid import UUID

from sqlalchemy import ARRAY, Uuid, any_, literal, select
from sqlalchemy.orm import Session

from services.api.errors import InvalidRequestError
from services.api.ids import TopicIdPartition
from services.rlmm.json_rows import PartitionKey, key_of, partition_row, run
from services.rlmm.partition_view import PartitionView
from services.rlmm.partitions import (
    check_topic_name,
    lock_or_create,
    lock_topics,
    unknown_partition,
)
from services.rlmm.tables import TopicRow
from services.rlmm.transitions import Guards, TopicSettings

# Sorted, then locked: the order of the rows is that of the locks.
LOCK = """
    SELECT p.topic_id, p.partition, p.revision, p.highest_broker_leader_epoch, p.delete_state,
        t.name
    FROM json_to_recordset(%(rows)s) AS wanted (topic_id uuid, partition int)
    JOIN partitions AS p USING (topic_id, partition)
    JOIN topics AS t USING (topic_id)
    ORDER BY p.topic_id, p.partition
    FOR UPDATE OF p"""

KNOWN = """
    SELECT topic_id, partition
    FROM json_to_recordset(%(rows)s) AS wanted (topic_id uuid, partition int)
    JOIN partitions AS p USING (topic_id, partition)"""

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
    """PartitionView; no session writes it, LockedPartitions.write_back does."""

    topic_id: UUID
    partition: int
    revision: int
    highest_broker_leader_epoch: int | None
    delete_state: str | None


@dataclass(frozen=True, slots=True)
class LockedPartition:
    """A partition of the batch.

    Attributes:
        row: as the batch leaves it.
        topic: the name that its topic id has.
        revision: before the batch.
        guards: who may change it, by what it was before the batch.
    """

    row: PartitionView
    topic: str
    revision: int
    guards: Guards


class LockedPartitions:
    """Locked until the transaction ends."""

    def __init__(
        self,
        session: Session,
        by_key: Mapping[PartitionKey, LockedPartition],
        created: Collection[PartitionKey] = (),
    ) -> None:
        self._session = session
        self._by_key = by_key
        self._created = created
        self._topics: list[TopicRow] = []

    @classmethod
    def lock(cls, session: Session, tps: Iterable[TopicIdPartition]) -> Self:
        """Lock those that there are; they may be deleted already."""
        return cls(session, _lock(session, {key_of(tp) for tp in tps}))

    @classmethod
    def lock_or_create(cls, session: Session, tps: Iterable[TopicIdPartition]) -> Self:
        """Lock all of them, made known at revision 0 if need be."""
        in_order = sorted(dict.fromkeys(tps), key=key_of)
        keys = {key_of(tp) for tp in in_order}
        rows = run(session.connection(), KNOWN, [partition_row(key) for key in keys])
        created = keys - {(row.topic_id, row.partition) for row in rows}
        if created:
            lock_topics(session, in_order)
            for tp in in_order:
                # Who has the wrong name for the topic is told so by `of`.
                with suppress(InvalidRequestError):
                    lock_or_create(session, tp)
        return cls(session, _lock(session, keys), created)

    def of(self, tp: TopicIdPartition) -> LockedPartition:
        """
        Raises:
            RemoteResourceNotFoundError: it is not known.
            InvalidRequestError: its topic has another name.
        """
        found = self._by_key.get(key_of(tp))
        if found is None:
            raise unknown_partition(tp)
        check_topic_name(tp, found.topic)
        return found

    def read_topics(self) -> None:
        """Read the settings of all topics at once: whoever asks for one of them later finds it."""
        ids = sorted({topic_id for topic_id, _ in self._by_key})
        topics = select(TopicRow).where(TopicRow.topic_id == any_(literal(ids, ARRAY(Uuid))))
        self._topics = list(self._session.scalars(topics))

    def write_back(self) -> None:
        """Write those that changed; those that were made known for nothing are taken back."""
        rows = [
            {
                **partition_row(key),
                "revision": partition.row.revision,
                "highest_broker_leader_epoch": partition.row.highest_broker_leader_epoch,
            }
            for key, partition in self._by_key.items()
            if partition.row.revision != partition.revision
        ]
        connection = self._session.connection()
        if rows:
            run(connection, CHANGE, rows)
        if self._created:
            run(connection, FORGET, [partition_row(key) for key in self._created])
            topic_ids = sorted({topic_id for topic_id, _ in self._created})
            run(connection, FORGET_TOPICS, [{"topic_id": id.hex} for id in topic_ids])


def _lock(session: Session, keys: Iterable[PartitionKey]) -> dict[PartitionKey, LockedPartition]:
    rows = run(session.connection(), LOCK, [partition_row(key) for key in keys])
    by_key = {}
    settings: dict[UUID, TopicSettings] = {}
    for row in rows:
        partition = _Partition(
            row.topic_id,
            row.partition,
            row.revision,
            row.highest_broker_leader_epoch,
            row.delete_state,
        )
        of_topic = settings.setdefault(row.topic_id, TopicSettings(session, partition))
        by_key[row.topic_id, row.partition] = LockedPartition(
            partition, row.name, row.revision, Guards(session, partition, of_topic)
        )
    return by_key
