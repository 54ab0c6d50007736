"""Which segments a search for a transaction index may pass over, found anew from all rows.

services.rlmm.visibility keeps it as segments come and go. What a release wrote that did not know
of it has to be looked at once: before that searches are right, but go from segment to segment.
"""

from collections.abc import Iterator
from functools import partial
from typing import TypeAlias
from uuid import UUID

from sqlalchemy import Connection, text

from services.rlmm.rows import AnyRow
from services.rlmm.transactions import again_where_rolled_back

Keys: TypeAlias = dict[str, UUID | int]

BATCH = 2_000
EPOCHS_PER_STATEMENT = 1_000

_EPOCHS = f"""
    SELECT topic_id, partition, leader_epoch FROM highest_offsets
    WHERE (topic_id, partition, leader_epoch) > (:topic_id, :partition, :leader_epoch)
    ORDER BY topic_id, partition, leader_epoch LIMIT {EPOCHS_PER_STATEMENT}"""
_BEFORE_ALL: Keys = {"topic_id": UUID(int=0), "partition": -1, "leader_epoch": -1}

_LOCK = """
    SELECT 1 FROM partitions WHERE topic_id = :topic_id AND partition = :partition FOR UPDATE"""

# As services.rlmm.visibility has it.
_FIND = f"""
    WITH page AS MATERIALIZED (
        SELECT segment_id, start_offset, end_offset, passable FROM segment_epochs
        WHERE topic_id = :topic_id AND partition = :partition AND leader_epoch = :leader_epoch
            AND referenced AND start_offset > :after
        ORDER BY start_offset LIMIT {BATCH}
    ), found AS (
        SELECT page.segment_id, page.passable AS was_passable,
            s.txn_idx_empty AND s.end_offset = page.end_offset
                AND page.start_offset <= page.end_offset
                AND coalesce(page.start_offset - 1 = (
                    SELECT end_offset FROM segment_epochs
                    WHERE topic_id = :topic_id AND partition = :partition
                        AND leader_epoch = :leader_epoch AND referenced
                        AND start_offset < page.start_offset
                    ORDER BY start_offset DESC LIMIT 1), false) AS passable
        FROM page
        CROSS JOIN LATERAL (
            SELECT txn_idx_empty, end_offset FROM segments
            WHERE topic_id = :topic_id AND partition = :partition AND segment_id = page.segment_id
            LIMIT 1
        ) AS s
    ), changed AS (
        UPDATE segment_epochs AS e SET passable = found.passable
        FROM found
        WHERE e.topic_id = :topic_id AND e.partition = :partition
            AND e.segment_id = found.segment_id AND e.leader_epoch = :leader_epoch
            AND found.passable <> found.was_passable
        RETURNING 1
    )
    SELECT (SELECT count(*) FROM changed) AS changed,
        (SELECT max(start_offset) FROM page) AS last"""


def find_passable_segments(connection: Connection) -> Iterator[int]:
    """Set segment_epochs.passable to what it should be; yields how many rows each batch changed.

    Each batch holds the lock of its partition, as every change of the partition does.
    """
    for keys in _epochs(connection):
        after: int | None = -1
        while after is not None:
            done = again_where_rolled_back(partial(_find, connection, {**keys, "after": after}))
            yield done.changed
            after = done.last


def _find(connection: Connection, keys: Keys) -> AnyRow:
    with connection.begin():
        connection.execute(text(_LOCK), keys)
        return connection.execute(text(_FIND), keys).one()


def _epochs(connection: Connection) -> Iterator[Keys]:
    """The leader epochs of all partitions, in the order of their keys."""
    last = _BEFORE_ALL
    while True:
        with connection.begin():
            epochs = connection.execute(text(_EPOCHS), last).all()
        for epoch in epochs:
            last = dict(epoch._mapping)
            yield last
        if len(epochs) < EPOCHS_PER_STATEMENT:
            return
