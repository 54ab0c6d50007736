"""Pieces of SQL that reads have in common."""

from services.rlmm.rows import SEGMENT_COLUMNS

SEGMENT = ", ".join(f"s.{name}" for name in SEGMENT_COLUMNS)
"""What segment_from_row needs, of `segments AS s`."""

PARTITIONS = "partitions AS p JOIN topics AS t ON t.topic_id = p.topic_id"

IS_KNOWN = "p.delete_state IS DISTINCT FROM 'DELETE_PARTITION_FINISHED'"
"""Of the partitions that reads answer for."""
