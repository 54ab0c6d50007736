"""Run the RLMM suite in process, on a real PostgreSQL."""

from collections.abc import Iterator

import psycopg
import pytest

from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from tests.contract.remote_log_metadata_manager_contract import RemoteLogMetadataManagerContract
from tests.harness.databases import drop_role, make_row_role, wrong_totals
from tests.harness.local_servers import DatabaseServer


@pytest.fixture(scope="module")
def rlmm(postgres: DatabaseServer, migrated_database: str) -> Iterator[SqlRemoteLogMetadataManager]:
    """Provide one database for all tests: each test has a topic of its own.

    RLMM connects as a role that may only read and write rows.
    """
    name = "rlmm_in_process"
    owner_url = postgres.create_database(name, template=migrated_database)
    engine = create_database_engine(make_row_role(owner_url, name))
    yield SqlRemoteLogMetadataManager(engine)
    with engine.connect() as connection:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        wrong = wrong_totals(driver)
    engine.dispose()
    drop_role(owner_url, name)
    postgres.drop_database(name)
    assert wrong == []


class TestSqlRemoteLogMetadataManager(RemoteLogMetadataManagerContract):
    pass
