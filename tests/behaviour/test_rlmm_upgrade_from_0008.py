"""Test the upgrade from schema 0008 to 0009, which adds a kind of events; also interrupted."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, text

from services.api.ids import TopicIdPartition
from services.api.partitions import EventQuery, ObjectDeletion
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.rlmm.database.engine import create_database_engine
from services.rlmm.database.schema import upgrade
from services.rlmm.database.schema_revision import MIGRATIONS
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.harness.databases import schema_problems

TP = TopicIdPartition(uuid4(), "orders", 0)


@pytest.fixture
def engine(empty_database_url: str) -> Iterator[Engine]:
    """On a database with schema 0008, and a partition with an event in it."""
    engine = create_database_engine(empty_database_url)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0008")
    engine.dispose()
    write_event(engine)
    yield engine
    engine.dispose()


def write_event(engine: Engine) -> None:
    """Write a topic, a partition and its event as the previous release does."""
    values = {"id": TP.topic_id, "name": TP.topic}
    with engine.begin() as connection:
        for statement in (
            "INSERT INTO topics (topic_id, name) VALUES (:id, :name)",
            "INSERT INTO partitions (topic_id, partition, revision) VALUES (:id, 0, 1)",
            "INSERT INTO events (topic_id, partition, revision, kind, actor, call_id, reason, "
            "broker_id) VALUES (:id, 0, 1, 'LEADERSHIP', 'a', 'c', '', 1)",
        ):
            connection.execute(text(statement), values)


def lead(engine: Engine, epoch: int) -> None:
    """Record an event of a kind that both releases know."""
    rlmm = SqlRemoteLogMetadataManager(engine)
    rlmm.on_partition_leadership_changes([PartitionLeadership(TP, epoch)], [], 1)


def kinds(engine: Engine) -> list[str]:
    rlmm = SqlRemoteLogMetadataManager(engine)
    return [event.kind for event in rlmm.list_events(EventQuery(TP)).events]


def test_the_new_kind_is_beside_the_old_ones(engine: Engine, empty_database_url: str) -> None:
    for _ in range(2):
        upgrade(empty_database_url)
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '0008'"))
    upgrade(empty_database_url)
    assert schema_problems(empty_database_url) == []
    deletion = ObjectDeletion(uuid4(), "1:x.log")
    SqlRemoteLogMetadataManager(engine).record_object_deletions(TP, [deletion])
    lead(engine, epoch=2)
    assert kinds(engine) == ["LEADERSHIP", "OBJECT_DELETION", "LEADERSHIP"]
