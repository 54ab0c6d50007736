"""Read from the database what a bucket does not know: settings, log starts, deletion marks."""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from sqlalchemy import text

from services.api.deployment_state import DeploymentState, KeptTopic
from services.rlmm.database.schema import connected, deployment_id

# One statement, so that everything is of one moment.
_ROWS = text("""
    SELECT t.topic_id, t.name, t.config, t.config_revision,
        p.partition, p.revision, p.log_start_offset, p.delete_state
    FROM topics t LEFT JOIN partitions p ON p.topic_id = t.topic_id
    ORDER BY t.topic_id, p.partition""")
_BEING_DELETED = ("DELETE_PARTITION_MARKED", "DELETE_PARTITION_STARTED")


def read_deployment_state(database_url: str, password_file: Path | None = None) -> DeploymentState:
    """Read the present state.

    Raises:
        RetriableRemoteStorageError: the database is unreachable.
    """
    name = deployment_id(database_url, password_file)
    topics, changes = list[KeptTopic](), 0
    with connected(database_url, password_file) as connection:
        rows = connection.execution_options(yield_per=10_000).execute(_ROWS)
        for _, of_topic in groupby(rows, key=lambda row: row.topic_id):
            topic, added = _kept(list(of_topic))
            changes += added
            if topic.settings_revision or topic.log_starts or topic.marked:
                topics.append(topic)
    return DeploymentState(name, changes, tuple(topics))


def _kept(rows: Sequence[Any]) -> tuple[KeptTopic, int]:
    """Return what is kept of a topic, and how many changes its rows have seen."""
    partitions = [row for row in rows if row.partition is not None]
    first = rows[0]
    topic = KeptTopic(
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
    )
    return topic, first.config_revision + sum(row.revision for row in partitions)
