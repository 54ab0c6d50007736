"""Test the upgrade from schema 0012, which counts the segments of each partition."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, text

from services.api.ids import TopicIdPartition
from services.api.partitions import SegmentTotals
from services.api.remote_log_metadata_manager import all_partitions
from services.rlmm.database.engine import create_database_engine
from services.rlmm.database.schema import upgrade
from services.rlmm.database.schema_revision import MIGRATIONS
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.harness.databases import schema_problems

TP = TopicIdPartition(uuid4(), "orders", 0)
STATES = ("COPY_SEGMENT_STARTED", "COPY_SEGMENT_FINISHED", "DELETE_SEGMENT_FINISHED")
KEPT = "SELECT totals_revision, live_segments FROM partitions ORDER BY partition"


@pytest.fixture
def engine(empty_database_url: str) -> Iterator[Engine]:
    """On a database with schema 0012, two partitions, and three segments of the first."""
    engine = create_database_engine(empty_database_url)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0012")
    engine.dispose()
    with engine.begin() as connection:
        values = {"id": TP.topic_id}
        for statement in (
            "INSERT INTO topics (topic_id, name) VALUES (:id, 'orders')",
            "INSERT INTO partitions (topic_id, partition, revision) "
            "VALUES (:id, 0, 5), (:id, 1, 1)",
        ):
            connection.execute(text(statement), values)
        for place, state in enumerate(STATES):
            connection.execute(
                text(
                    "INSERT INTO segments (topic_id, partition, segment_id, start_offset, "
                    "end_offset, max_timestamp_ms, leader_epochs, epoch_start_offsets, "
                    "segment_size_in_bytes, txn_idx_empty, state, broker_id, event_timestamp_ms, "
                    "state_revision) VALUES (:id, 0, gen_random_uuid(), :place, :place, 0, '{0}', "
                    "'{0}', :size, true, :state, 1, 0, :place)"
                ),
                {**values, "place": place, "size": 10**place, "state": state},
            )
    yield engine
    engine.dispose()


def test_segments_are_counted_once(engine: Engine, empty_database_url: str) -> None:
    for _ in range(2):
        upgrade(empty_database_url)
        with engine.begin() as connection:
            assert [tuple(row) for row in connection.execute(text(KEPT))] == [(5, 2), (1, 0)]
            connection.execute(text("UPDATE alembic_version SET version_num = '0012'"))
    upgrade(empty_database_url)
    assert schema_problems(empty_database_url) == []
    rlmm = SqlRemoteLogMetadataManager(engine)
    assert [each.totals for each in all_partitions(rlmm)] == [
        SegmentTotals(1, 10, 2, 11),
        SegmentTotals(),
    ]
