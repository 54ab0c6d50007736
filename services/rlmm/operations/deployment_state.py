"""Read from the database what a bucket does not know: settings, holds, log starts, marks."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import text

from services.api.deployment_state import DeploymentState, TopicState
from services.api.holds import Hold
from services.rlmm.database.rows import HOLD, IS_LIVE_HOLD, holds_of
from services.rlmm.database.schema import connected, deployment_id

# One statement, so that everything is of one moment.
_ROWS = text("""
    SELECT t.topic_id, t.name, t.config, t.config_revision, t.purged_changes,
        p.partition, p.revision, p.log_start_offset, p.delete_state
    FROM topics t LEFT JOIN partitions p ON p.topic_id = t.topic_id
    ORDER BY t.topic_id, p.partition""")
_HOLDS = text(f"""
    SELECT h.topic_id, {HOLD} AS hold FROM holds AS h LEFT JOIN topics AS ht USING (topic_id)
    WHERE h.kind <> 'REBUILD' AND {IS_LIVE_HOLD} ORDER BY h.hold_id""")
_BEING_DELETED = ("DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED")


def read_deployment_state(database_url: str, password_file: Path | None = None) -> DeploymentState:
    """Read the present state.

    Raises:
        RetriableRemoteStorageError: the database is unreachable.
    """
    name = deployment_id(database_url, password_file)
    topics, purged, changes = list[TopicState](), set[UUID](), 0
    holds: dict[UUID | None, list[Hold]] = defaultdict(list)
    with connected(database_url, password_file) as connection:
        for row in connection.execute(_HOLDS):
            holds[row.topic_id] += holds_of([row.hold])
        rows = connection.execution_options(yield_per=10_000).execute(_ROWS)
        for id, of_topic in groupby(rows, key=lambda row: row.topic_id):
            topic, added = _topic_of(all_rows := list(of_topic), holds[id])
            changes += added
            if all_rows[0].purged_changes is not None:
                purged.add(id)
            elif topic.settings_revision or topic.log_starts or topic.marked or topic.holds:
                topics.append(topic)
    of_all = tuple(holds[None])
    return DeploymentState(name, changes, tuple(topics), frozenset(purged), of_all)


def _topic_of(rows: Sequence[Any], holds: Sequence[Hold]) -> tuple[TopicState, int]:
    """Return a topic's state, and the number of its changes."""
    partitions = [row for row in rows if row.partition is not None]
    first = rows[0]
    topic = TopicState(
        topic_id=first.topic_id,
        topic=first.name,
        settings=dict(first.config),
        settings_revision=first.config_revision,
        log_starts={
            row.partition: row.log_start_offset for row in partitions if row.log_start_offset
        },
        marked={
            row.partition: row.revision for row in partitions if row.delete_state in _BEING_DELETED
        },
        holds=tuple(holds),
    )
    changes = first.config_revision + (first.purged_changes or 0)
    return topic, changes + sum(row.revision for row in partitions)
