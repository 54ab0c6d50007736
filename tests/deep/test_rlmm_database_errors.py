"""What the database refuses or loses under statements by psycopg itself, as batches have them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import Engine, text

from services.api.calls import AtRevision, MutationOutcome
from services.api.errors import CorruptMetadataError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import SegmentUpdate
from services.api.segment_batches import SegmentAddition, SegmentImport, SegmentLookup
from services.rlmm.database.db import ATTEMPTS
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.contract.rlmm.segments import FINISHED, finished, revision_of, segment, update_to
from tests.harness.databases import OwnRlmm, waiting
from tests.harness.eventually import PATIENT, eventually

CONNECTIONS = 3

Changes = Callable[[SqlRemoteLogMetadataManager, TopicIdPartition], list[bool]]
"""Adds a segment at offset 0 and answers whether it was applied."""


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_database_engine(database_url, replace(PATIENT, pool_size=CONNECTIONS))
    yield engine
    engine.dispose()


@pytest.fixture
def tps() -> list[TopicIdPartition]:
    topic_id = uuid4()
    return [TopicIdPartition(topic_id, "orders", partition) for partition in range(2)]


def add_in_batch(rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition) -> list[bool]:
    outcomes = rlmm.add_remote_log_segment_metadata_batch([SegmentAddition(segment(tp, 0, 9))])
    return [isinstance(outcome, MutationOutcome) and outcome.applied for outcome in outcomes]


def add_alone(rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition) -> list[bool]:
    return [rlmm.add_remote_log_segment_metadata(segment(tp, 0, 9)).applied]


def add_by_import(rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition) -> list[bool]:
    item = SegmentImport((segment(tp, 0, 9, state=FINISHED),))
    return [rlmm.import_remote_log_segments([item]).imported == 1]


def fail_inserts(engine: Engine, sqlstate: str, times: int) -> None:
    """From now on the first `times` statements that insert segments are refused. (Of a sequence
    a rollback takes nothing back.)"""
    with engine.begin() as connection:
        connection.execute(text("CREATE SEQUENCE inserts"))
        connection.execute(
            text(
                "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF nextval('inserts') <= {times} THEN "
                f"RAISE EXCEPTION 'as the test asks' USING ERRCODE = '{sqlstate}', "
                "CONSTRAINT = 'ix_of_the_test'; "
                "END IF; RETURN NULL; END $$"
            )
        )
        connection.execute(
            text(
                "CREATE TRIGGER refuse BEFORE INSERT ON segments "
                "FOR EACH STATEMENT EXECUTE FUNCTION refuse()"
            )
        )


def end_sessions(database_url: str) -> None:
    with psycopg.connect(database_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def open_all_connections(engine: Engine) -> None:
    connections = [engine.connect() for _ in range(CONNECTIONS)]
    for connection in connections:
        connection.close()


def deadlocks(engine: Engine) -> int:
    # Within a transaction statistics stay what they were.
    with engine.connect() as connection:
        count = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
        return int(connection.scalars(text(count)).one())


def test_a_batch_that_is_the_victim_of_a_deadlock_is_tried_again(
    rlmm: OwnRlmm, tps: list[TopicIdPartition]
) -> None:
    updates = [SegmentUpdate(update_to(finished(rlmm, tp, 0, 9), FINISHED)) for tp in tps]
    before = deadlocks(rlmm.engine)
    with rlmm.engine.begin() as connection:
        # The time that the other has to close the circle: PostgreSQL looks once in each wait.
        name = connection.scalar(text("SELECT current_database()"))
        connection.execute(text(f"ALTER DATABASE {name} SET deadlock_timeout = '9s'"))
    rlmm.engine.dispose()
    lock = text("SELECT FROM partitions WHERE topic_id = :id AND partition = :p FOR UPDATE")
    first, second = ({"id": tp.topic_id, "p": tp.partition} for tp in tps)
    with ThreadPoolExecutor(1) as pool:
        with rlmm.engine.begin() as other:
            other.execute(text("SET deadlock_timeout = '1h'"))  # so that the batch is the victim
            other.execute(lock, second)
            batch = pool.submit(rlmm.update_remote_log_segment_metadata_batch, updates)
            eventually(lambda: waiting(rlmm.engine) == 1)
            other.execute(lock, first)
        outcomes = batch.result(timeout=60)
    assert [isinstance(each, MutationOutcome) for each in outcomes] == [True, True]
    eventually(lambda: deadlocks(rlmm.engine) == before + 1)


@pytest.mark.parametrize("change", [add_in_batch, add_by_import])
@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "23505", "0A000", "26000", "42P05"])
def test_change_rolled_back_by_a_conflict_is_retried(
    rlmm: OwnRlmm, tps: list[TopicIdPartition], change: Changes, sqlstate: str
) -> None:
    fail_inserts(rlmm.engine, sqlstate, times=ATTEMPTS - 1)
    assert change(rlmm, tps[0]) == [True]


@pytest.mark.parametrize("change", [add_in_batch, add_by_import])
@pytest.mark.parametrize(
    "sqlstate",
    [
        "40001",  # for good
        "53100",  # disk full
        "53200",  # out of memory
        "55P03",  # lock timeout
        "57014",  # statement timeout
        "58030",  # I/O error
        "25P04",  # transaction timeout
    ],
)
def test_temporary_database_error_is_retriable_and_changes_nothing(
    rlmm: OwnRlmm, tps: list[TopicIdPartition], change: Changes, sqlstate: str
) -> None:
    finished(rlmm, tps[0], 10, 19)
    before = revision_of(rlmm, tps[0])
    fail_inserts(rlmm.engine, sqlstate, times=ATTEMPTS)
    with pytest.raises(RetriableRemoteStorageError, match=sqlstate):
        change(rlmm, tps[0])
    assert revision_of(rlmm, tps[0]) == before


@pytest.mark.parametrize("change", [add_alone, add_by_import])
def test_a_key_that_stays_taken_is_corrupt_metadata_and_its_constraint_is_logged(
    rlmm: OwnRlmm, tps: list[TopicIdPartition], change: Changes, caplog: pytest.LogCaptureFixture
) -> None:
    """No client may retry this for ever, and no legal call may be answered INTERNAL."""
    finished(rlmm, tps[0], 10, 19)
    before = revision_of(rlmm, tps[0])
    fail_inserts(rlmm.engine, "23505", times=1_000)
    with pytest.raises(CorruptMetadataError, match=r"23505 ix_of_the_test.*a retry cannot help"):
        change(rlmm, tps[0])
    assert revision_of(rlmm, tps[0]) == before
    assert "contradict a change (23505 ix_of_the_test)" in caplog.text


def test_a_full_disk_is_named(rlmm: OwnRlmm, tps: list[TopicIdPartition]) -> None:
    fail_inserts(rlmm.engine, "53100", times=ATTEMPTS)
    with pytest.raises(RetriableRemoteStorageError, match="disk is full"):
        add_in_batch(rlmm, tps[0])


def look_up_in_batch(rlmm: SqlRemoteLogMetadataManager, tp: TopicIdPartition) -> list[bool]:
    (found,) = rlmm.remote_log_segment_metadata_batch([SegmentLookup(tp, 0, 15)])
    return [isinstance(found, AtRevision) and found.value is not None]


@pytest.mark.parametrize("call", [add_in_batch, add_by_import, look_up_in_batch])
def test_when_the_database_ended_its_sessions_one_batch_fails(
    rlmm: OwnRlmm, tps: list[TopicIdPartition], call: Changes
) -> None:
    finished(rlmm, tps[0], 10, 19)
    open_all_connections(rlmm.engine)
    end_sessions(rlmm.database_url)
    with pytest.raises(RetriableRemoteStorageError):
        call(rlmm, tps[0])
    # Another call holds the connection that was opened since.
    with rlmm.engine.connect():
        assert call(rlmm, tps[0]) == [True]


def test_a_session_that_ends_within_a_batch_is_retriable(
    rlmm: OwnRlmm, tps: list[TopicIdPartition]
) -> None:
    updates = [SegmentUpdate(update_to(finished(rlmm, tp, 0, 9), FINISHED)) for tp in tps]
    holder = create_database_engine(rlmm.database_url, PATIENT)
    with ThreadPoolExecutor(1) as pool, holder.connect() as held:
        held.execute(text("SELECT FROM partitions FOR UPDATE"))
        batch = pool.submit(rlmm.update_remote_log_segment_metadata_batch, updates)
        eventually(lambda: waiting(holder) == 1)
        held.execute(
            text(
                "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity"
                " WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
        )
        with pytest.raises(RetriableRemoteStorageError):
            batch.result(timeout=60)
    holder.dispose()
    outcomes = rlmm.update_remote_log_segment_metadata_batch(updates)
    assert [isinstance(each, MutationOutcome) for each in outcomes] == [True, True]


def test_an_item_that_breaks_a_rule_of_the_schema_stops_no_other_of_its_partition(
    rlmm: OwnRlmm, tps: list[TopicIdPartition]
) -> None:
    copies = [segment(tps[0], start, start + 9) for start in (0, 10, 20)]
    for copy in copies:
        rlmm.add_remote_log_segment_metadata(copy)
    refused = copies[1].remote_log_segment_id.id
    with rlmm.engine.begin() as connection:
        connection.execute(
            text(
                "CREATE FUNCTION refuse_one() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                f"IF NEW.segment_id = '{refused}' THEN "
                "RAISE EXCEPTION 'as the test asks' USING ERRCODE = 'unique_violation'; "
                "END IF; RETURN NEW; END $$"
            )
        )
        connection.execute(
            text(
                "CREATE TRIGGER refuse_one BEFORE UPDATE ON segments "
                "FOR EACH ROW EXECUTE FUNCTION refuse_one()"
            )
        )
    updates = [SegmentUpdate(update_to(copy, FINISHED)) for copy in copies]
    outcomes = rlmm.update_remote_log_segment_metadata_batch(updates)
    assert [type(outcome) for outcome in outcomes] == [
        MutationOutcome,
        CorruptMetadataError,
        MutationOutcome,
    ]
