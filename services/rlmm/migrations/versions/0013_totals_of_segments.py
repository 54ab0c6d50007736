"""Keep the totals of each partition's segments, and count those that are there.

The previous release runs on this schema: it changes partitions without their totals, which are
then counted (services/rlmm/database/rows.py). An interrupted migration starts from its beginning,
so every statement may run twice.
"""

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

TOTALS = ("finished_segments", "finished_bytes", "live_segments", "live_bytes")
COMMENT = "the revision at which the totals were kept; older: they must be counted"

PAGE = """
    SELECT topic_id, partition FROM partitions
    WHERE (topic_id, partition) > (:topic_id, :partition) AND totals_revision <> revision
    ORDER BY topic_id, partition LIMIT 1000"""

# One partition at a time, so that two locks never wait for each other. Writes nothing if the
# partition has changed since the statement began to count.
COUNT = """
    UPDATE partitions AS p SET
        finished_segments = counted.finished_segments,
        finished_bytes = counted.finished_bytes,
        live_segments = counted.live_segments,
        live_bytes = counted.live_bytes,
        totals_revision = counted.revision
    FROM (
        SELECT p.revision, totals.* FROM partitions AS p CROSS JOIN LATERAL (
            SELECT count(*) FILTER (WHERE state = 'COPY_SEGMENT_FINISHED') AS finished_segments,
                coalesce(sum(greatest(segment_size_in_bytes, 0))
                    FILTER (WHERE state = 'COPY_SEGMENT_FINISHED'), 0) AS finished_bytes,
                count(*) AS live_segments,
                coalesce(sum(greatest(segment_size_in_bytes, 0)), 0) AS live_bytes
            FROM segments
            WHERE topic_id = p.topic_id AND partition = p.partition
                AND state <> 'DELETE_SEGMENT_FINISHED'
        ) AS totals
        WHERE p.topic_id = :topic_id AND p.partition = :partition
    ) AS counted
    WHERE p.topic_id = :topic_id AND p.partition = :partition AND p.revision = counted.revision"""


def upgrade() -> None:
    # ACCESS EXCLUSIVE for a moment: changes wait. With constant defaults no row is rewritten.
    columns = [
        f"ADD COLUMN IF NOT EXISTS {name} bigint NOT NULL DEFAULT 0"
        for name in (*TOTALS, "totals_revision")
    ]
    op.execute(f"ALTER TABLE partitions {', '.join(columns)}")
    op.execute(f"COMMENT ON COLUMN partitions.totals_revision IS '{COMMENT}'")
    with op.get_context().autocommit_block():
        # A lock of one partition for as long as its segments take to be counted.
        op.execute("SET lock_timeout = '5min'")
        op.execute("SET statement_timeout = '2h'")
        _count_all()
        op.execute("SET lock_timeout = '4s'")
        op.execute("SET statement_timeout = '1min'")


def _count_all() -> None:
    key: dict[str, object] = {
        "topic_id": "00000000-0000-0000-0000-000000000000",
        "partition": -1,
    }
    connection = op.get_bind()
    while rows := connection.execute(sa.text(PAGE), key).all():
        for row in rows:
            key = {"topic_id": row.topic_id, "partition": row.partition}
            connection.execute(sa.text(COUNT), key)
