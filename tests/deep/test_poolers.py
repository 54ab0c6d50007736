"""RLMM behind a real PgBouncer: its sessions work in session mode, others are refused by name."""

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from sqlalchemy import text

from services.api.errors import RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.rlmm.database.engine import DatabaseLimits, create_database_engine
from services.rlmm.database.schema import check_schema, upgrade
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.contract.rlmm.segments import FINISHED, add, move, segment
from tests.harness.local_servers import DatabaseServer
from tests.harness.postgres_servers import PgBouncer
from tests.harness.sediment_command import sediment

pytestmark = pytest.mark.deep

CALLERS, CALLS = 4, 25
NAMED = "pool_mode=session"


@pytest.fixture
def database(postgres: DatabaseServer) -> Iterator[str]:
    name = f"test_{uuid.uuid4().hex}"
    postgres.create_database(name)
    yield name
    postgres.drop_database(name)


@pytest.fixture
def directory(server_directory: Path) -> Path:
    """Provide a directory that the user of the pooler can enter."""
    made = server_directory / f"pooler-{uuid.uuid4().hex[:8]}"
    made.mkdir()
    made.chmod(0o711)
    return made


def test_session_mode_works_with_settings_and_prepared_statements(
    postgres: DatabaseServer, database: str, directory: Path
) -> None:
    with PgBouncer(postgres, directory, pool_mode="session", default_pool_size=10) as pooler:
        url = pooler.url(database)
        upgrade(url)
        assert not [each for each in check_schema(url) if "pooler" in each.what]
        engine = create_database_engine(url, DatabaseLimits(pool_size=CALLERS))
        rlmm = SqlRemoteLogMetadataManager(engine)
        rlmm.check()

        def work(number: int) -> list[int]:
            name = TopicIdPartition(uuid.uuid4(), f"t-{number}", 0)
            for start in range(0, CALLS * 10, 10):
                made = segment(name, start, start + 9)
                add(rlmm, made)
                move(rlmm, made, FINISHED)
            found = (
                rlmm.remote_log_segment_metadata(name, 0, start).value
                for start in range(0, CALLS * 10, 10)
            )
            return [each.start_offset for each in found if each is not None]

        with ThreadPoolExecutor(CALLERS) as callers:
            expected = list(range(0, CALLS * 10, 10))
            assert list(callers.map(work, range(CALLERS))) == [expected] * CALLERS
        with engine.connect() as connection:
            assert connection.execute(text("SHOW statement_timeout")).scalar_one() == "20s"
        rlmm.check()
        engine.dispose()


@pytest.mark.parametrize("settings", [{}, {"server_round_robin": 1}, {"default_pool_size": 1}])
@pytest.mark.parametrize("mode", ["transaction", "statement"])
def test_other_modes_are_refused_by_name(
    postgres: DatabaseServer,
    database: str,
    directory: Path,
    mode: str,
    settings: dict[str, object],
) -> None:
    with PgBouncer(postgres, directory, pool_mode=mode, **settings) as pooler:
        url = pooler.url(database)
        engine = create_database_engine(url)
        for _ in range(2):
            with pytest.raises(RetriableRemoteStorageError, match=NAMED):
                SqlRemoteLogMetadataManager(engine).check()
        engine.dispose()
        with pytest.raises(RetriableRemoteStorageError, match=NAMED):
            upgrade(url)
        checked = sediment("db", "check", environment={"RLMM_DATABASE_URL": url})
        assert checked.returncode == 1
        assert NAMED in " ".join(checked.stdout.split())
