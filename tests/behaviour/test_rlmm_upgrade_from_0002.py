"""Test the upgrade from schema 0002: with data, and beside services of the previous release."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import psycopg
import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, text

from services.api.ids import TopicIdPartition
from services.rlmm.database.engine import create_database_engine
from services.rlmm.database.schema import current_revision, upgrade
from services.rlmm.database.schema_revision import MIGRATIONS, known_revision
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rlmm.reads import lookups
from tests.harness import look_up_oracle
from tests.harness.databases import schema_problems

TP = TopicIdPartition(uuid4(), "orders", 0)
COUNT = 15

# What the release before writes for a finished segment.
KNOWN = """
    INSERT INTO topics (topic_id, name) VALUES (%(topic_id)s, 'orders');
    INSERT INTO partitions (topic_id, partition, revision) VALUES (%(topic_id)s, 0, 100);
    INSERT INTO highest_offsets VALUES (%(topic_id)s, 0, 0, 0, 9);"""
FINISHED = """
    INSERT INTO segments (topic_id, partition, segment_id, start_offset, end_offset,
        max_timestamp_ms, leader_epochs, epoch_start_offsets, segment_size_in_bytes, txn_idx_empty,
        state, broker_id, event_timestamp_ms, state_revision, finished_revision)
    VALUES (%(topic_id)s, 0, %(segment_id)s, %(start)s, %(start)s + 9, 1, '{0}',
        ARRAY[CAST(%(start)s AS bigint)], 1024, true, 'COPY_SEGMENT_FINISHED', 1, 1, 2, 2);
    INSERT INTO segment_epochs (topic_id, partition, segment_id, leader_epoch,
        segment_start_offset, start_offset, end_offset, referenced, overlapped)
    VALUES (%(topic_id)s, 0, %(segment_id)s, 0, %(start)s, %(start)s, %(start)s + 9, true, false);
    UPDATE highest_offsets SET highest_offset = greatest(highest_offset, %(start)s + 9)"""
# What it reads to find an offset that Kafka's map does not know.
OVERLAPPED = """
    SELECT segment_id FROM segment_epochs
    WHERE topic_id = %(topic_id)s AND partition = 0 AND leader_epoch = 0 AND overlapped
        AND start_offset <= 5 AND end_offset >= 5 AND start_offset >= 5 - (
            SELECT longest_reach FROM highest_offsets
            WHERE topic_id = %(topic_id)s AND partition = 0 AND leader_epoch = 0)"""


@pytest.fixture
def engine(empty_database_url: str) -> Iterator[Engine]:
    """On a database with schema 0002."""
    engine = create_database_engine(empty_database_url)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0002")
    engine.dispose()
    yield engine
    engine.dispose()


class ReleaseBefore:
    """The previous release's statements, on a connection that stays."""

    def __init__(self, database_url: str) -> None:
        self.connection = psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True)
        self._execute(KNOWN)

    def finish(self, start: int) -> None:
        self._execute(FINISHED, start=start, segment_id=uuid4())

    def look_up_overlapped(self) -> None:
        self._execute(OVERLAPPED)

    def _execute(self, statements: str, **values: object) -> None:
        for statement in statements.split(";"):
            self.connection.execute(statement.encode(), {"topic_id": TP.topic_id, **values})


@pytest.fixture
def before(engine: Engine, empty_database_url: str) -> Iterator[ReleaseBefore]:
    release = ReleaseBefore(empty_database_url)
    yield release
    release.connection.close()


def require_right_answers(engine: Engine) -> None:
    for statement, oracle in (
        (lookups.SEGMENT_FOR_OFFSET, look_up_oracle.SEGMENT_FOR_OFFSET),
        (lookups.NEXT_WITH_TXN_INDEX, look_up_oracle.NEXT_WITH_TXN_INDEX),
    ):
        found = look_up_oracle.answers(engine, statement, TP, 0, 10 * COUNT + 20)
        assert found == look_up_oracle.answers(engine, oracle, TP, 0, 10 * COUNT + 20)


def test_data_is_found_after_the_upgrade(
    before: ReleaseBefore, engine: Engine, empty_database_url: str
) -> None:
    for start in range(0, 10 * COUNT, 10):
        before.finish(start)
    upgrade(empty_database_url)
    assert current_revision(empty_database_url) == known_revision()
    assert schema_problems(empty_database_url) == []
    manager = SqlRemoteLogMetadataManager(engine)
    manager.check()
    assert len(manager.list_remote_log_segments(TP, 0, min_offset=55).segments) == COUNT - 5
    require_right_answers(engine)


def test_previous_release_works_during_and_after_the_upgrade(
    before: ReleaseBefore, engine: Engine, empty_database_url: str
) -> None:
    before.finish(0)
    with ThreadPoolExecutor(1) as pool:
        upgrading = pool.submit(upgrade, empty_database_url)
        for start in range(10, 10 * COUNT, 10):
            before.finish(start)
            before.look_up_overlapped()
        upgrading.result()
    before.finish(10 * COUNT)
    before.look_up_overlapped()
    require_right_answers(engine)


@pytest.mark.deep
def test_an_upgrade_that_was_cut_off_is_done_again(
    before: ReleaseBefore, engine: Engine, empty_database_url: str
) -> None:
    before.finish(0)
    upgrade(empty_database_url)
    # As it is where the last step of it did not come to its end.
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0002'"))
        connection.execute(
            text(
                "UPDATE pg_index SET indisvalid = false"
                " WHERE indexrelid = 'ix_segments_txn_index'::regclass"
            )
        )
    upgrade(empty_database_url)
    assert schema_problems(empty_database_url) == []
    require_right_answers(engine)


def test_every_session_has_its_limits(database_url: str) -> None:
    engine = create_database_engine(database_url)
    with engine.connect() as connection:
        for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
            value = connection.execute(text(f"SHOW {name}")).scalar_one()
            assert value != "0", name
        assert connection.execute(text("SHOW synchronous_commit")).scalar_one() == "on"
    engine.dispose()
