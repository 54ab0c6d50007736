"""Test RLMM as a role that may only read and write rows; the contract's suite runs as one, too."""

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.errors import InsufficientPrivilege

from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import all_segments
from tests.contract.rlmm.segments import segment
from tests.harness.databases import drop_role, make_row_role
from tests.harness.processes import running_rlmm

ROLE = "rows_only"


@pytest.fixture
def row_url(database_url: str) -> Iterator[str]:
    yield make_row_role(database_url, ROLE)
    drop_role(database_url, ROLE)


def test_it_changes_no_table_and_gets_those_of_later_upgrades(
    database_url: str, row_url: str
) -> None:
    plain = row_url.replace("+psycopg", "")
    with psycopg.connect(plain, autocommit=True) as connection:
        for statement in (
            "CREATE TABLE mine (a int)",
            "DROP TABLE events",
            "ALTER TABLE segments ADD COLUMN a int",
            "TRUNCATE segments",
        ):
            with pytest.raises(InsufficientPrivilege):
                connection.execute(statement.encode())
    owner = database_url.replace("+psycopg", "")
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute("CREATE TABLE added_later (a int)")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute("INSERT INTO added_later VALUES (1)")
        assert connection.execute("SELECT a FROM added_later").fetchall() == [(1,)]
    with psycopg.connect(owner, autocommit=True) as connection:
        connection.execute("DROP TABLE added_later")


def test_a_service_runs_as_it(row_url: str, tp: TopicIdPartition, tmp_path: Path) -> None:
    with running_rlmm(row_url, tmp_path) as rlmm:
        added = segment(tp, 0, 9)
        rlmm.client.add_remote_log_segment_metadata(added)
        assert [each.remote_log_segment_id for each in all_segments(rlmm.client, tp)] == [
            added.remote_log_segment_id
        ]
