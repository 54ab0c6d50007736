"""Test the upgrade from schema 0009 to 0010, which gives events the ids of their transactions."""

from collections.abc import Iterator
from contextlib import closing
from uuid import uuid4

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, text

from services.api.ids import TopicIdPartition
from services.api.watches import PartitionUpdate, WatchedPartition
from services.rlmm.database.engine import create_database_engine
from services.rlmm.database.schema import upgrade
from services.rlmm.database.schema_revision import MIGRATIONS
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.harness.databases import schema_problems

TP = TopicIdPartition(uuid4(), "orders", 0)


@pytest.fixture
def engine(empty_database_url: str) -> Iterator[Engine]:
    """On a database with schema 0009, and a partition with an event in it."""
    engine = create_database_engine(empty_database_url)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0009")
    engine.dispose()
    values = {"id": TP.topic_id, "name": TP.topic}
    with engine.begin() as connection:
        for statement in (
            "INSERT INTO topics (topic_id, name) VALUES (:id, :name)",
            "INSERT INTO partitions (topic_id, partition, revision) VALUES (:id, 0, 0)",
        ):
            connection.execute(text(statement), values)
    write_event(engine, 1)
    yield engine
    engine.dispose()


def write_event(engine: Engine, revision: int) -> None:
    """Write an event as the previous release does."""
    statements = (
        "INSERT INTO events (topic_id, partition, revision, kind, actor, call_id, reason, "
        "broker_id) VALUES (:id, 0, :revision, 'LEADERSHIP', 'a', 'c', '', 1)",
        "UPDATE partitions SET revision = :revision WHERE topic_id = :id",
    )
    with engine.begin() as connection:
        for statement in statements:
            connection.execute(text(statement), {"id": TP.topic_id, "revision": revision})


def test_a_watch_sees_earlier_events_and_those_of_the_previous_release(
    engine: Engine, empty_database_url: str
) -> None:
    for _ in range(2):
        upgrade(empty_database_url)
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '0009'"))
    upgrade(empty_database_url)
    assert schema_problems(empty_database_url) == []
    rlmm = SqlRemoteLogMetadataManager(engine)
    with closing(rlmm.watch_partitions([WatchedPartition(TP, 0)])) as updates:
        assert next(updates).partitions == (PartitionUpdate(0, 1),)
        write_event(engine, 2)
        assert next(each.partitions for each in updates if each.partitions) == (
            PartitionUpdate(0, 2),
        )
