"""Test the creation of the schema, and RLMM on an unknown schema."""

import shutil
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from alembic import command
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, text

from services.api.errors import InvalidRequestError, RemoteStorageError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import PartitionLeadership
from services.api.segment_batches import SegmentAddition, SegmentImport
from services.rlmm.database.engine import DatabaseLimits, create_database_engine
from services.rlmm.database.schema import current_revision, upgrade
from services.rlmm.database.schema_revision import MIGRATIONS, known_revision
from services.rlmm.database.tables import METADATA
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.contract.rlmm.segments import segment
from tests.harness.databases import schema_problems
from tests.harness.local_servers import DatabaseServer

pytestmark = pytest.mark.deep

TP = TopicIdPartition(uuid4(), "orders", 0)
FIRST = Path(__file__).parents[1] / "data" / "schemas" / "0001.sql"

CONSTRAINTS = """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> 'alembic_version'
    ORDER BY 1, 2"""
INDEXES = """
    SELECT tablename, indexname, indexdef FROM pg_indexes
    WHERE schemaname = 'public' AND tablename <> 'alembic_version' ORDER BY 1, 2"""


@pytest.fixture
def engine(empty_database_url: str) -> Iterator[Engine]:
    engine = create_database_engine(empty_database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """Yield a port of ours on which no server listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def rules(connection: Connection) -> list[tuple[str, ...]]:
    found = [*connection.execute(text(CONSTRAINTS)), *connection.execute(text(INDEXES))]
    return [tuple(row) for row in found]


def test_the_known_revision_is_that_of_the_last_migration() -> None:
    assert known_revision() == ScriptDirectory(str(MIGRATIONS)).get_current_head()


def test_an_empty_database_is_upgraded_and_an_upgraded_one_stays(empty_database_url: str) -> None:
    assert current_revision(empty_database_url) is None
    upgrade(empty_database_url)
    upgrade(empty_database_url)
    assert current_revision(empty_database_url) == known_revision()


def test_of_two_upgrades_at_once_both_succeed(empty_database_url: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(upgrade, [empty_database_url] * 2))
    assert current_revision(empty_database_url) == known_revision()


def test_an_unknown_revision_is_not_upgraded(empty_database_url: str, engine: Engine) -> None:
    upgrade(empty_database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'from_tomorrow'"))
    with pytest.raises(RemoteStorageError, match="from_tomorrow"):
        upgrade(empty_database_url)


def test_a_database_of_the_first_release_gets_the_schema_of_a_new_one(
    postgres: DatabaseServer, empty_database_url: str, engine: Engine
) -> None:
    name = f"first_{uuid4().hex}"
    first_url = postgres.create_database(name)
    with psycopg.connect(first_url.replace("+psycopg", "")) as connection:
        connection.execute(FIRST.read_bytes())
    upgrade(first_url)
    upgrade(empty_database_url)
    assert schema_problems(first_url) == schema_problems(empty_database_url) == []
    first = create_database_engine(first_url)
    with engine.connect() as created, first.connect() as upgraded:
        assert compare_metadata(MigrationContext.configure(created), METADATA) == []
        # Alembic's comparison does not see CHECK constraints, nor by what an index is partial.
        assert rules(upgraded) == rules(created)
        assert len(rules(created)) > 20
    first.dispose()
    postgres.drop_database(name)


def test_rlmm_is_ready_on_its_schema_alone(empty_database_url: str, engine: Engine) -> None:
    manager = SqlRemoteLogMetadataManager(engine)
    assert not manager.is_ready(TP)
    upgrade(empty_database_url)
    assert manager.is_ready(TP)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = 'from_tomorrow'"))
    assert not manager.is_ready(TP)
    with pytest.raises(RetriableRemoteStorageError, match="from_tomorrow"):
        manager.check()


def test_the_schema_of_a_later_release_is_good_enough_and_stays(
    empty_database_url: str, engine: Engine
) -> None:
    # While one release replaces the other both run on the later schema; a rollback stays there.
    upgrade(empty_database_url)
    later = f"{int(known_revision()) + 1:04d}"
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :v"), {"v": later})
    SqlRemoteLogMetadataManager(engine).check()
    upgrade(empty_database_url)
    assert current_revision(empty_database_url) == later


NEXT = """
from alembic import op

revision = "{next}"
down_revision = "{known}"


def upgrade() -> None:
    op.execute("ALTER TABLE partitions ADD COLUMN IF NOT EXISTS next_words text")
"""


def test_this_release_keeps_its_data_and_works_on_the_next_schema(
    empty_database_url: str, engine: Engine, tmp_path: Path
) -> None:
    upgrade(empty_database_url)
    rlmm = SqlRemoteLogMetadataManager(engine)
    rlmm.add_remote_log_segment_metadata(segment(TP, 0, 9))
    shutil.copytree(MIGRATIONS, tmp_path / "migrations")
    later = f"{int(known_revision()) + 1:04d}"
    script = NEXT.format(next=later, known=known_revision())
    (tmp_path / "migrations" / "versions" / f"{later}_next.py").write_text(script)
    config = Config()
    config.set_main_option("script_location", str(tmp_path / "migrations"))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "head")
    assert current_revision(empty_database_url) == later
    assert schema_problems(empty_database_url) == []
    rlmm.add_remote_log_segment_metadata(segment(TP, 10, 19))
    assert len(SqlRemoteLogMetadataManager(engine).list_remote_log_segments(TP).segments) == 2


def test_the_schema_of_an_earlier_release_is_upgraded_first(
    empty_database_url: str, engine: Engine
) -> None:
    upgrade(empty_database_url)
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0000'"))
    with pytest.raises(RetriableRemoteStorageError, match="0000"):
        SqlRemoteLogMetadataManager(engine).check()


CHANGES: dict[str, Callable[[SqlRemoteLogMetadataManager], object]] = {
    "add": lambda rlmm: rlmm.add_remote_log_segment_metadata(segment(TP, 10, 19)),
    "add batch": lambda rlmm: rlmm.add_remote_log_segment_metadata_batch(
        [SegmentAddition(segment(TP, 10, 19))]
    ),
    "leadership": lambda rlmm: rlmm.on_partition_leadership_changes(
        [PartitionLeadership(TP, 7)], [], 1
    ),
    "import": lambda rlmm: rlmm.import_remote_log_segments([SegmentImport((segment(TP, 10, 19),))]),
    "settings": lambda rlmm: rlmm.put_topic_config(TP.topic_id, {"retention.ms": "1"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_an_older_schema_takes_no_changes(
    empty_database_url: str, engine: Engine, change: str
) -> None:
    upgrade(empty_database_url)
    before = SqlRemoteLogMetadataManager(engine)
    before.add_remote_log_segment_metadata(segment(TP, 0, 9))
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0000'"))
    assert not before.is_ready(TP)
    for manager in (before, SqlRemoteLogMetadataManager(engine)):
        with pytest.raises(RetriableRemoteStorageError, match=r"0000.*sediment db upgrade"):
            CHANGES[change](manager)
        assert len(manager.list_remote_log_segments(TP).segments) == 1
    with engine.begin() as connection:
        version = {"v": known_revision()}
        connection.execute(text("UPDATE alembic_version SET version_num = :v"), version)
    CHANGES[change](before)


def test_a_database_without_the_schema_is_retriable(engine: Engine) -> None:
    manager = SqlRemoteLogMetadataManager(engine)
    with pytest.raises(RetriableRemoteStorageError):
        manager.list_partitions()


def test_an_unreachable_database_is_retriable_and_never_ready(closed_port: int) -> None:
    url = f"postgresql://nobody:secret@127.0.0.1:{closed_port}/nothing"
    engine = create_database_engine(url)
    manager = SqlRemoteLogMetadataManager(engine)
    assert not manager.is_ready(TP)
    change = PartitionLeadership(TP, 1)
    for call in (
        manager.list_partitions,
        lambda: manager.on_partition_leadership_changes([change], [], 1),
    ):
        with pytest.raises(RetriableRemoteStorageError) as refusal:
            call()
        assert "secret" not in str(refusal.value)
    for step in (upgrade, current_revision):
        with pytest.raises(RetriableRemoteStorageError):
            step(url)


def test_a_used_up_pool_is_retriable(database_url: str) -> None:
    engine = create_database_engine(database_url, DatabaseLimits(pool_size=1, pool_timeout_ms=50))
    manager = SqlRemoteLogMetadataManager(engine)
    with engine.connect(), pytest.raises(RetriableRemoteStorageError):
        manager.list_partitions()
    assert manager.list_partitions().partitions == ()
    engine.dispose()


@pytest.mark.parametrize("url", ["", "no url", "mysql://localhost/x", "sqlite://"])
def test_another_kind_of_database_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="database_url"):
        create_database_engine(url)
