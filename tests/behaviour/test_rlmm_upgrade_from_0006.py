"""Test the upgrade from schema 0006 to 0007, which keeps a topic's cluster, beside the previous
release.

The upgrade is also interrupted.
"""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, text

from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import PartitionLeadership, PartitionSummary
from services.rlmm.database.engine import create_database_engine
from services.rlmm.database.schema import upgrade
from services.rlmm.database.schema_revision import MIGRATIONS
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.harness.databases import schema_problems

TP = TopicIdPartition(uuid4(), "orders", 0)


@pytest.fixture
def engine(empty_database_url: str) -> Iterator[Engine]:
    """On a database with schema 0006, and a partition in it."""
    engine = create_database_engine(empty_database_url)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0006")
    engine.dispose()
    write_topic(engine, TP)
    yield engine
    engine.dispose()


def write_topic(engine: Engine, tp: TopicIdPartition) -> None:
    """Write the topic as the previous release does."""
    values = {"id": tp.topic_id, "name": tp.topic}
    with engine.begin() as connection:
        connection.execute(text("INSERT INTO topics (topic_id, name) VALUES (:id, :name)"), values)
        statement = "INSERT INTO partitions (topic_id, partition, revision) VALUES (:id, 0, 100)"
        connection.execute(text(statement), values)


def listed(rlmm: SqlRemoteLogMetadataManager) -> list[PartitionSummary]:
    return list(rlmm.list_partitions().partitions)


def test_no_cluster_is_known_until_it_is_announced(engine: Engine, empty_database_url: str) -> None:
    upgrade(empty_database_url)
    assert schema_problems(empty_database_url) == []
    rlmm = SqlRemoteLogMetadataManager(engine)
    (before,) = listed(rlmm)
    assert (before.cluster_id, before.revision) == (None, 100)
    assert 0 < before.known_since_ms <= before.read_at_ms
    rlmm.on_partition_leadership_changes([PartitionLeadership(TP)], [], 1, "c")
    (after,) = listed(rlmm)
    assert (after.cluster_id, after.revision) == ("c", 100)


def test_previous_release_works_beside_the_new_schema(
    engine: Engine, empty_database_url: str
) -> None:
    upgrade(empty_database_url)
    write_topic(engine, TopicIdPartition(uuid4(), "later", 0))
    assert [each.cluster_id for each in listed(SqlRemoteLogMetadataManager(engine))] == [None] * 2


@pytest.mark.deep
def test_upgrade_interrupted_after_adding_the_column_can_be_repeated(
    engine: Engine, empty_database_url: str
) -> None:
    upgrade(empty_database_url)
    rlmm = SqlRemoteLogMetadataManager(engine)
    rlmm.on_partition_leadership_changes([PartitionLeadership(TP)], [], 1, "c")
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0006'"))
    upgrade(empty_database_url)
    assert [each.cluster_id for each in listed(rlmm)] == ["c"]
    assert schema_problems(empty_database_url) == []
