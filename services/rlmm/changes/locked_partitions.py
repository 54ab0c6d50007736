"""Lock the partitions of a batch together, and write them together at the end.

Every lock of a partition or a topic is acquired here, topics before partitions.
"""

from collections.abc import Collection, Iterable
from functools import cache, partial
from typing import Self
from uuid import UUID

from sqlalchemy import Connection

from services.api.holds import Hold
from services.api.ids import TopicIdPartition
from services.api.topic_config import topic_config
from services.rlmm.changes.superseded import better_copies
from services.rlmm.database.db import (
    JsonRow,
    PartitionKey,
    key_of,
    partition_row,
    run,
    wait_for_answers,
    when_needed,
)
from services.rlmm.database.rows import TOTALS, AnyRow, holds_of, live_holds, totals_of
from services.rlmm.deletion_bound import TODAY, deletion_bound
from services.rlmm.guards import (
    TOPIC_FIELD,
    LockedPartition,
    Partition,
    check_topic_name,
    unknown_partition,
)

# Rows are sorted before they are locked: their order is the order of the locks.
LOCK = """
    SELECT p.topic_id, p.partition, p.revision, p.highest_broker_leader_epoch, p.delete_state,
        p.log_start_offset, t.name, p.finished_segments, p.finished_bytes, p.live_segments,
        p.live_bytes, p.saved_bytes
    FROM json_to_recordset(%(rows)s) AS wanted (topic_id uuid, partition int)
    JOIN partitions AS p USING (topic_id, partition)
    JOIN topics AS t USING (topic_id)
    ORDER BY p.topic_id, p.partition
    FOR UPDATE OF p"""

LOCK_SKIP_LOCKED = f"{LOCK} SKIP LOCKED"

LOCK_ALL_OF_TOPIC = """
    SELECT p.partition
    FROM json_to_recordset(%(rows)s) AS wanted (topic_id uuid)
    JOIN partitions AS p USING (topic_id)
    ORDER BY p.topic_id, p.partition
    FOR UPDATE OF p"""

LOCK_TOPICS = """
    SELECT t.topic_id
    FROM json_to_recordset(%(rows)s) AS wanted (topic_id uuid)
    JOIN topics AS t USING (topic_id)
    ORDER BY t.topic_id
    FOR KEY SHARE OF t"""

KNOWN = """
    SELECT topic_id, partition
    FROM json_to_recordset(%(rows)s) AS wanted (topic_id uuid, partition int)
    JOIN partitions AS p USING (topic_id, partition)"""

CREATE_TOPICS = """
    INSERT INTO topics (topic_id, name)
    SELECT topic_id, name
    FROM json_to_recordset(%(rows)s) AS new (topic_id uuid, name text)
    ORDER BY topic_id
    ON CONFLICT DO NOTHING"""

# The conflict locks a known partition and writes nothing, so that all are locked in their order.
# A partition of a purged topic is removed: each rule answers as before the purge.
CREATE = """
    INSERT INTO partitions AS p (topic_id, partition, revision, delete_state)
    SELECT topic_id, partition, 0,
        CASE WHEN purged_changes IS NOT NULL THEN 'DELETE_PARTITION_FINISHED' END
    FROM json_to_recordset(%(rows)s) AS new (topic_id uuid, partition int)
    JOIN topics USING (topic_id)
    ORDER BY topic_id, partition
    ON CONFLICT (topic_id, partition) DO UPDATE SET revision = p.revision WHERE false"""

# Settings and holds are read after the locks: a change of either first locks all its partitions.
TOPICS = """
    SELECT topic_id, name, config, config_revision, confirmed_revision,
        clock_timestamp() AS read_at
    FROM json_to_recordset(%(rows)s) AS wanted (topic_id uuid)
    JOIN topics USING (topic_id)"""

HOLDS = f"""
    SELECT topic_id, partition, {live_holds("wanted")} AS holds
    FROM json_to_recordset(%(rows)s) AS wanted (topic_id uuid, partition int)"""

CHANGE = f"""
    UPDATE partitions AS p SET
        revision = changed.revision,
        highest_broker_leader_epoch = changed.highest_broker_leader_epoch,
        delete_state = changed.delete_state,
        marked_at = CASE
            WHEN changed.delete_state IS NULL THEN NULL
            WHEN p.delete_state IS NULL THEN clock_timestamp()
            ELSE p.marked_at END,
        log_start_offset = changed.log_start_offset,
        finished_segments = changed.finished_segments,
        finished_bytes = changed.finished_bytes,
        live_segments = changed.live_segments,
        live_bytes = changed.live_bytes,
        saved_bytes = changed.saved_bytes,
        marked_bytes = CASE
            WHEN changed.marked_bytes = 0 THEN p.marked_bytes
            WHEN p.marked_on = {TODAY} THEN p.marked_bytes + changed.marked_bytes
            ELSE changed.marked_bytes END,
        marked_on = CASE WHEN changed.marked_bytes = 0 THEN p.marked_on ELSE {TODAY} END,
        changed_at = clock_timestamp()
    FROM json_to_recordset(%(rows)s) AS changed (
        topic_id uuid, partition int, revision bigint, highest_broker_leader_epoch int,
        delete_state text, log_start_offset bigint, finished_segments bigint,
        finished_bytes bigint, live_segments bigint, live_bytes bigint, saved_bytes bigint,
        marked_bytes bigint)
    WHERE p.topic_id = changed.topic_id AND p.partition = changed.partition"""

# A partition is known from its first event on, and a topic from its first partition on.
DELETE_UNCHANGED = """
    DELETE FROM partitions AS p
    USING json_to_recordset(%(rows)s) AS new (topic_id uuid, partition int)
    WHERE p.topic_id = new.topic_id AND p.partition = new.partition AND p.revision = 0"""

DELETE_UNUSED_TOPICS = """
    DELETE FROM topics AS t
    USING json_to_recordset(%(rows)s) AS new (topic_id uuid)
    WHERE t.topic_id = new.topic_id AND t.config_revision = 0 AND t.purged_changes IS NULL
        AND NOT EXISTS (SELECT FROM partitions AS p WHERE p.topic_id = t.topic_id)"""


class LockedPartitions:
    """The partitions of a batch, locked until the transaction ends.

    Results are read when they are first needed: in a pipeline other statements are sent first.
    """

    def __init__(
        self,
        connection: Connection,
        rows: Iterable[AnyRow],
        *,
        created: Collection[PartitionKey] = (),
    ) -> None:
        self._connection = connection
        self._rows = rows
        self._created = created
        self._by_key = when_needed(self._read_partitions)
        self._topics_and_holds = when_needed(self._read_topics_and_holds)
        self._config = cache(lambda topic_id: topic_config(self._topic(topic_id).config))

    @classmethod
    def lock(
        cls,
        connection: Connection,
        tps: Iterable[TopicIdPartition],
        created: Collection[PartitionKey] = (),
    ) -> Self:
        """Lock the existing ones of the partitions, which may be deleted already.

        Args:
            created: the result of ensure_partitions.
        """
        return cls(connection, _lock(connection, LOCK, {key_of(tp) for tp in tps}), created=created)

    @classmethod
    def lock_skip_locked(cls, connection: Connection, tps: Iterable[TopicIdPartition]) -> Self:
        """Lock those of the partitions that no other transaction has locked."""
        return cls(connection, _lock(connection, LOCK_SKIP_LOCKED, {key_of(tp) for tp in tps}))

    @classmethod
    def lock_or_create(cls, connection: Connection, tps: Collection[TopicIdPartition]) -> Self:
        """Lock the partitions; create the unknown ones, and delete those that get no event."""
        if len(tps) == 1:  # There is no order to keep, and mostly nothing to create.
            locked = cls.lock(connection, tps)
            if all(tp in locked for tp in tps):
                return locked
        return cls.lock(connection, tps, ensure_partitions(connection, tps))

    def __contains__(self, tp: TopicIdPartition) -> bool:
        return key_of(tp) in self._by_key()

    def of(self, tp: TopicIdPartition, field: str = TOPIC_FIELD) -> LockedPartition:
        """Return a locked partition; `field` is the path of the topic's name, for messages.

        Raises:
            RemoteResourceNotFoundError: the partition is not known.
            InvalidRequestError: its topic has another name.
        """
        locked = self._by_key().get(key_of(tp))
        if locked is None:
            raise unknown_partition(tp)
        check_topic_name(tp, locked.topic_name, field)
        return locked

    def _read_partitions(self) -> dict[PartitionKey, LockedPartition]:
        by_key = {}
        within_bound = partial(deletion_bound(self._connection.engine).require, self._connection)
        for row in self._rows:
            partition = Partition(
                row.topic_id,
                row.partition,
                row.revision,
                row.highest_broker_leader_epoch,
                row.delete_state,
                row.log_start_offset,
                totals_of(row),
            )
            topic, config = partial(self._topic, row.topic_id), partial(self._config, row.topic_id)
            holds = partial(self._holds, partition.key)
            better = partial(better_copies, self._connection, partition.key)
            locked = LockedPartition(
                partition, row.name, topic, config, holds, within_bound, better
            )
            by_key[row.topic_id, row.partition] = locked
        return by_key

    def _topic(self, topic_id: UUID) -> AnyRow:
        return self._topics_and_holds()[0][topic_id]

    def _holds(self, key: PartitionKey) -> tuple[Hold, ...]:
        return self._topics_and_holds()[1][key]

    def _read_topics_and_holds(
        self,
    ) -> tuple[dict[UUID, AnyRow], dict[PartitionKey, tuple[Hold, ...]]]:
        """Read all topics, and the holds of all partitions, in one wait."""
        ids = sorted({topic_id for topic_id, _ in self._by_key()})
        connection = self._connection
        topics = run(connection, TOPICS, _topic_rows(ids))
        held = run(connection, HOLDS, [partition_row(key) for key in self._by_key()])
        wait_for_answers(connection)
        holds = {(row.topic_id, row.partition): holds_of(row.holds) for row in held}
        return {row.topic_id: row for row in topics}, holds

    def write_back(self) -> None:
        """Write the changed partitions; delete those that were created and did not change."""
        changed = {
            key: partition.row
            for key, partition in self._by_key().items()
            if partition.row.revision != partition.revision
        }
        connection = self._connection
        if changed:
            run(connection, CHANGE, [_changed_row(key, row) for key, row in changed.items()])
        if self._created:
            run(connection, DELETE_UNCHANGED, [partition_row(key) for key in self._created])
            topic_ids = sorted({topic_id for topic_id, _ in self._created})
            run(connection, DELETE_UNUSED_TOPICS, _topic_rows(topic_ids))


def _changed_row(key: PartitionKey, row: Partition) -> JsonRow:
    return {
        **partition_row(key),
        "revision": row.revision,
        "highest_broker_leader_epoch": row.highest_broker_leader_epoch,
        "delete_state": row.delete_state,
        "log_start_offset": row.log_start_offset,
        **{name: getattr(row.totals, name) for name in TOTALS},
        "marked_bytes": row.marked_bytes,
    }


def ensure_partitions(
    connection: Connection, tps: Iterable[TopicIdPartition]
) -> Collection[PartitionKey]:
    """Create the unknown ones of the partitions at revision 0; return which were created."""
    names: dict[UUID, str] = {}
    for tp in (tps := list(tps)):
        names.setdefault(tp.topic_id, tp.topic)  # `of` refuses another name.
    keys = {key_of(tp) for tp in tps}
    rows = [partition_row(key) for key in keys]
    known = {(row.topic_id, row.partition) for row in run(connection, KNOWN, rows)}
    if created := keys - known:
        lock_topics(connection, tps)
        topics: list[JsonRow] = [{"topic_id": id, "name": name} for id, name in names.items()]
        run(connection, CREATE_TOPICS, topics)
        run(connection, CREATE, rows)
    return created


def lock_topics(connection: Connection, tps: Iterable[TopicIdPartition]) -> None:
    """Lock topics before a transaction creates several partitions, or writes the topics.

    A new partition's foreign key locks its topic. A put of the topic's settings locks the topic,
    then its partitions: in another order the two would deadlock.
    """
    run(connection, LOCK_TOPICS, _topic_rows({tp.topic_id for tp in tps}))


def lock_all_of_topic(connection: Connection, topic_id: UUID) -> None:
    """Lock a topic's partitions in the order in which every batch locks them."""
    run(connection, LOCK_ALL_OF_TOPIC, _topic_rows([topic_id]))


def _topic_rows(topic_ids: Iterable[UUID]) -> list[JsonRow]:
    return [{"topic_id": id} for id in topic_ids]


def _lock(connection: Connection, statement: str, keys: Iterable[PartitionKey]) -> Iterable[AnyRow]:
    return run(connection, statement, [partition_row(key) for key in keys])
