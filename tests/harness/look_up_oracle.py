"""Look up segments by the plain rules, without an index, to verify RLMM's statements.

One step after the other, each over all segments of the epoch; for few segments only.
"""

from collections.abc import Sequence
from uuid import UUID

from sqlalchemy import Engine, text

from services.api.ids import TopicIdPartition

_OF_EPOCH = "topic_id = :topic_id AND partition = :partition AND leader_epoch = :leader_epoch"


def _segment_at(offset: str) -> str:
    return f"""
        SELECT coalesce(floor.segment_id, other.segment_id) AS segment_id
        FROM (VALUES (1)) AS one
        LEFT JOIN LATERAL (
            SELECT segment_id, end_offset FROM segment_epochs
            WHERE {_OF_EPOCH} AND referenced AND start_offset <= {offset}
            ORDER BY start_offset DESC LIMIT 1
        ) AS floor ON floor.end_offset >= {offset}
        LEFT JOIN LATERAL (
            SELECT segment_id FROM (
                SELECT e.segment_id, s.broker_leader_epoch, s.finished_revision,
                    max(s.finished_revision) FILTER (WHERE s.broker_leader_epoch IS NULL) OVER ()
                        AS last_without_epoch
                FROM segment_epochs AS e JOIN segments AS s USING (topic_id, partition, segment_id)
                WHERE {_OF_EPOCH} AND state = 'COPY_SEGMENT_FINISHED'
                    AND e.start_offset <= {offset} AND e.end_offset >= {offset}
            ) AS candidate
            WHERE finished_revision >= coalesce(last_without_epoch, 0)
            ORDER BY broker_leader_epoch DESC NULLS LAST, finished_revision DESC LIMIT 1
        ) AS other ON true
        WHERE coalesce(floor.segment_id, other.segment_id) IS NOT NULL"""


_OF_SEGMENT = "s.topic_id = :topic_id AND s.partition = :partition"

SEGMENT_FOR_OFFSET = _segment_at("probe.at")
NEXT_WITH_TXN_INDEX = f"""
    SELECT s.segment_id FROM segments AS s
    WHERE {_OF_SEGMENT} AND s.state = 'COPY_SEGMENT_FINISHED' AND NOT s.txn_idx_empty
        AND :leader_epoch = ANY(s.leader_epochs) AND s.end_offset >= probe.at
        AND s.start_offset <= (SELECT highest_offset FROM highest_offsets WHERE {_OF_EPOCH})
    ORDER BY s.start_offset, s.segment_id LIMIT 1"""

KAFKAS_NEXT_WITH_TXN_INDEX = f"""
    WITH RECURSIVE chain AS (
        SELECT s.segment_id, s.txn_idx_empty, s.end_offset
        FROM ({_segment_at("probe.at")}) AS found
        JOIN segments AS s ON {_OF_SEGMENT} AND s.segment_id = found.segment_id
        UNION ALL
        SELECT s.segment_id, s.txn_idx_empty, s.end_offset
        FROM chain
        CROSS JOIN LATERAL ({_segment_at("chain.end_offset + 1")}) AS found
        JOIN segments AS s ON {_OF_SEGMENT} AND s.segment_id = found.segment_id
        WHERE chain.txn_idx_empty
    )
    SELECT segment_id FROM chain WHERE NOT txn_idx_empty"""


def answers(
    engine: Engine, statement: str, tp: TopicIdPartition, leader_epoch: int, offsets: int
) -> Sequence[UUID | None]:
    """Return the segment that a statement finds for each offset from 0 on; None if there is none.

    Args:
        statement: of this module, or of services.rlmm.reads.lookups.
    """
    probed = statement.replace("%(offset)s", "probe.at")
    for name in ("topic_id", "partition", "leader_epoch"):
        probed = probed.replace(f"%({name})s", f":{name}")
    keys = {"topic_id": tp.topic_id, "partition": tp.partition, "leader_epoch": leader_epoch}
    with engine.connect() as connection:
        return connection.scalars(
            text(
                "SELECT answer.segment_id FROM generate_series(0, CAST(:last AS bigint)) AS "
                f"probe (at) LEFT JOIN LATERAL ({probed}) AS answer ON true ORDER BY probe.at"
            ),
            {**keys, "last": offsets - 1},
        ).all()
