"""Store how far metadata topics of other clusters have been imported, and list it."""

from dataclasses import asdict

from sqlalchemy import Connection

from services.api.errors import ConcurrentUpdateError
from services.api.segment_batches import SegmentImport, SourcePosition
from services.rlmm.database.db import execute

_COLUMNS = "cluster_id, topic_id, partition, next_offset"
_READ = f"""
    SELECT {_COLUMNS} FROM source_positions
    WHERE cluster_id = %(cluster_id)s AND partition = %(partition)s FOR UPDATE"""
_INSERT = f"""
    INSERT INTO source_positions ({_COLUMNS})
    VALUES (%(cluster_id)s, %(topic_id)s, %(partition)s, %(next_offset)s)
    ON CONFLICT DO NOTHING"""
_UPDATE = """
    UPDATE source_positions SET topic_id = %(topic_id)s, next_offset = %(next_offset)s,
        imported_at = clock_timestamp()
    WHERE cluster_id = %(cluster_id)s AND partition = %(partition)s"""
_LIST = f"""
    SELECT {_COLUMNS} FROM source_positions
    WHERE %(cluster_id)s IN ('', cluster_id) ORDER BY cluster_id, partition"""


def advance(connection: Connection, item: SegmentImport) -> bool:
    """Store the position of an item that has one; return whether its changes are still to be made.

    The row stays locked until the transaction ends: imports of one partition of a source wait for
    each other.

    Raises:
        ConcurrentUpdateError: the stored position is neither the item's nor the one before it.
    """
    position = item.position
    if position is None:
        return True
    values = asdict(position)
    row = execute(connection, _READ, values).fetchone()
    stored = None if row is None else SourcePosition(*row)
    if stored == position:
        return False
    if stored == item.previous_position:
        statement = _INSERT if stored is None else _UPDATE
        if execute(connection, statement, values).rowcount == 1:
            return True
    raise ConcurrentUpdateError(
        f"previous_position: of partition {position.partition} of the metadata of cluster "
        f"{position.cluster_id} {stored or 'no position'} is stored, not "
        f"{item.previous_position or 'none'}; another import runs, or read it again"
    )


def list_positions(connection: Connection, cluster_id: str) -> list[SourcePosition]:
    """Read the positions; see RemoteLogMetadataManager.list_source_positions."""
    rows = execute(connection, _LIST, {"cluster_id": cluster_id}).fetchall()
    return [SourcePosition(*row) for row in rows]
