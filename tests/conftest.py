"""The real servers that tests run against: started when a test first asks for one."""

import os
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from services.common.log import RepeatFilter
from services.local.seaweedfs import S3Endpoint, SeaweedFS
from services.rlmm.database import schema
from tests.harness.databases import Databases, Stores
from tests.harness.local_servers import DatabaseServer, remove_bucket
from tests.harness.minio import MinioServer

# Property tests try few examples in `make test`, those that are deep more in test-deep, and all
# most in test-long.
settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("deep", max_examples=100, deadline=None)
settings.register_profile("long", max_examples=1_000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "quick"))

pytest_plugins = [
    "pytester",
    "tests.budget",
    "tests.harness.fixtures",
]

_MIGRATED = "migrated"
_BUNDLED = Path(__file__).parent / "data" / "kafka-log"


@pytest.fixture(scope="session", autouse=True)
def bundled_log_stays_as_it_is() -> Iterator[None]:
    """Tests link to the bundled log's files: whoever writes through a link changes it for all."""
    before = _bundled_files()
    yield
    changed = before.items() ^ _bundled_files().items()
    assert not changed, f"written to by a test: {sorted({path for path, _ in changed})}"


def _bundled_files() -> dict[str, bytes]:
    files = (path for path in _BUNDLED.rglob("*") if path.is_file())
    return {str(path.relative_to(_BUNDLED)): path.read_bytes() for path in files}


@pytest.fixture
def limited_log(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """The captured log, with the limit of repeated lines that a service's log has."""
    repeat_filter = RepeatFilter()
    caplog.handler.addFilter(repeat_filter)
    yield caplog
    caplog.handler.removeFilter(repeat_filter)


@pytest.fixture(scope="session")
def server_directory() -> Iterator[Path]:
    """Where embedded servers keep their data: short, and open to PostgreSQL's own user."""
    with tempfile.TemporaryDirectory(prefix="sediment-tests-") as name:
        directory = Path(name)
        directory.chmod(0o711)
        yield directory


@pytest.fixture(scope="session")
def postgres(server_directory: Path) -> Iterator[DatabaseServer]:
    """One PostgreSQL for all tests; a test that stops or kills a server starts its own.

    It never waits for its disk: nothing here outlives the run.
    """
    # Statistics come from a test's own ANALYZE only: others would change plans by chance.
    hasty = {"fsync": "off", "full_page_writes": "off", "autovacuum_naptime": "1d"}
    with DatabaseServer(server_directory / "postgres", hasty) as server:
        server.hasten_logins()
        yield server


@pytest.fixture(scope="session")
def migrated_database(postgres: DatabaseServer) -> str:
    """The name of a database with RLMM's schema and no rows, to copy from."""
    schema.upgrade(postgres.create_database(_MIGRATED))
    return _MIGRATED


@pytest.fixture(scope="session")
def databases(postgres: DatabaseServer, migrated_database: str) -> Iterator[Databases]:
    lent = Databases(postgres, migrated_database)
    yield lent
    lent.drop_all()


@pytest.fixture
def database_url(databases: Databases) -> Iterator[str]:
    """A database for this test alone, with RLMM's schema and no rows."""
    url = databases.take()
    yield url
    assert databases.give_back(url) == []


@pytest.fixture
def empty_database_url(postgres: DatabaseServer) -> Iterator[str]:
    """A database of the test's own without any schema."""
    name = f"test_{uuid.uuid4().hex}"
    yield postgres.create_database(name)
    postgres.drop_database(name)


@pytest.fixture(scope="session")
def s3(server_directory: Path) -> Iterator[S3Endpoint]:
    """One S3 store for all tests: SeaweedFS, MinIO where TEST_S3 says so, or TEST_S3_ENDPOINT's."""
    external = os.environ.get("TEST_S3_ENDPOINT")
    if external:
        access_key, secret_key = os.environ["TEST_S3_ACCESS_KEY"], os.environ["TEST_S3_SECRET_KEY"]
        yield S3Endpoint(external, access_key, secret_key)
        return
    store = os.environ.get("TEST_S3", "seaweedfs")
    servers: dict[str, type[SeaweedFS | MinioServer]] = {
        "seaweedfs": SeaweedFS,
        "minio": MinioServer,
    }
    if store not in servers:
        pytest.fail(f"TEST_S3 is {store!r}: must be one of {', '.join(servers)}")
    with servers[store](server_directory / "s3") as server:
        yield server.endpoint


@pytest.fixture(scope="session")
def stores(postgres: DatabaseServer, migrated_database: str, s3: S3Endpoint) -> Stores:
    return Stores(postgres, migrated_database, s3)


@pytest.fixture
def bucket(s3: S3Endpoint) -> Iterator[str]:
    """The name of an empty bucket of the test's own."""
    name = f"test-{uuid.uuid4().hex}"
    s3.ensure_bucket(name)
    yield name
    remove_bucket(s3, name)
