"""Test the upgrade from schema 0005 to 0006, which adds an id, beside the previous release.

The upgrade is also interrupted.
"""

from collections.abc import Iterator

import pytest
from alembic import command
from alembic.config import Config
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError

from services.api.errors import RemoteStorageError
from services.rlmm.database.engine import create_database_engine
from services.rlmm.database.schema import deployment_id, upgrade
from services.rlmm.database.schema_revision import MIGRATIONS
from tests.harness.databases import schema_problems


@pytest.fixture
def engine(empty_database_url: str) -> Iterator[Engine]:
    """On a database with schema 0005."""
    engine = create_database_engine(empty_database_url)
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.connect() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, "0005")
    engine.dispose()
    yield engine
    engine.dispose()


def execute(engine: Engine, statement: str) -> None:
    with engine.begin() as connection:
        connection.execute(text(statement))


def test_older_schema_has_no_id_and_names_the_upgrade_command(
    engine: Engine, empty_database_url: str
) -> None:
    with pytest.raises(RemoteStorageError, match="sediment db upgrade"):
        deployment_id(empty_database_url)


@pytest.mark.deep
def test_the_id_is_made_once(engine: Engine, empty_database_url: str) -> None:
    upgrade(empty_database_url)
    made = deployment_id(empty_database_url)
    upgrade(empty_database_url)
    assert deployment_id(empty_database_url) == made
    assert schema_problems(empty_database_url) == []


def test_cut_off_after_the_id_was_made_it_starts_again_and_the_id_stays(
    engine: Engine, empty_database_url: str
) -> None:
    upgrade(empty_database_url)
    made = deployment_id(empty_database_url)
    execute(engine, "UPDATE alembic_version SET version_num = '0005'")
    upgrade(empty_database_url)
    assert deployment_id(empty_database_url) == made


def test_there_is_never_a_second_id(engine: Engine, empty_database_url: str) -> None:
    upgrade(empty_database_url)
    for values in ("true, gen_random_uuid()", "false, gen_random_uuid()"):
        with pytest.raises(IntegrityError):
            execute(
                engine, f"INSERT INTO deployment (is_only_row, deployment_id) VALUES ({values})"
            )
