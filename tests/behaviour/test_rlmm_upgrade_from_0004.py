"""Test the upgrade from schema 0004 to 0005: with events, beside the previous release,
interrupted.
"""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError

from services.api.ids import TopicIdPartition
from services.rlmm.database.engine import create_database_engine
from services.rlmm.database.schema import upgrade
from services.rlmm.database.schema_revision import MIGRATIONS
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.contract.rlmm.anomalies import anomaly
from tests.contract.rlmm.gaps import gaps, record
from tests.harness.databases import schema_problems

TP = TopicIdPartition(uuid4(), "orders", 0)

BEFORE = """
    INSERT INTO topics (topic_id, name) VALUES (:id, 'orders');
    INSERT INTO partitions (topic_id, partition, revision) VALUES (:id, 0, 100)"""
EVENT = """
    INSERT INTO events (topic_id, partition, revision, kind, actor, call_id, reason, broker_id)
    VALUES (:id, 0, :revision, :kind, '', '', '', -1)"""


@pytest.fixture
def engine(empty_database_url: str) -> Iterator[Engine]:
    """On a database with schema 0004, and a partition in it."""
    engine = create_database_engine(empty_database_url)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0004")
    engine.dispose()
    with engine.begin() as connection:
        for statement in BEFORE.split(";"):
            connection.execute(text(statement), {"id": TP.topic_id})
    write_event(engine, 1, "LOG_START")
    yield engine
    engine.dispose()


def write_event(engine: Engine, revision: int, kind: str) -> None:
    with engine.begin() as connection:
        values = {"id": TP.topic_id, "revision": revision, "kind": kind}
        connection.execute(text(EVENT), values)


def require_whole(engine: Engine, database_url: str) -> None:
    assert schema_problems(database_url) == []
    rlmm = SqlRemoteLogMetadataManager(engine)
    record(rlmm, TP, 10, 19)
    rlmm.report_anomalies([anomaly(TP.topic_id)], "run-1")
    assert gaps(rlmm, TP) == [(10, 19)]
    with engine.connect() as connection:
        for view in ("report_gaps", "report_anomalies"):
            topics = connection.execute(text(f"SELECT topic FROM {view}")).scalars().all()
            assert topics == ["orders"]


def test_events_of_before_stay_and_new_kinds_may_be_written(
    engine: Engine, empty_database_url: str
) -> None:
    upgrade(empty_database_url)
    require_whole(engine, empty_database_url)
    write_event(engine, 2, "SEGMENT")  # as the release before does
    with pytest.raises(IntegrityError, match="ck_events_kind"):
        write_event(engine, 3, "SOMETHING")


def test_an_upgrade_that_was_cut_off_before_the_rule_was_checked_is_done_again(
    engine: Engine, empty_database_url: str
) -> None:
    upgrade(empty_database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0004'"))
        connection.execute(
            text("UPDATE pg_constraint SET convalidated = false WHERE conname = 'ck_events_kind'")
        )
    upgrade(empty_database_url)
    require_whole(engine, empty_database_url)
