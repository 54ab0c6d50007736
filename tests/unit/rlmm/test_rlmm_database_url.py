"""Test that no part of a database's password is in an error about its URL."""

from pathlib import Path

import pytest

from services.api.errors import InvalidRequestError
from services.rlmm.database.engine import create_database_engine, endpoint

ONE_AT_TOO_MANY = [
    "postgresql://rlmm:first@tail@db:5432/tier",
    "postgresql://rlmm:first@tail/rest@db:5432/tier",
    "postgresql://rlmm:first@tail?rest@db:5432/tier",
    "postgresql://rl@tail:first@db/tier",
]


@pytest.mark.parametrize("url", ONE_AT_TOO_MANY)
def test_an_unescaped_at_is_refused_without_the_rest_of_the_password(url: str) -> None:
    with pytest.raises(InvalidRequestError, match="write %40 for an @") as caught:
        create_database_engine(url)
    assert not any(part in str(caught.value) for part in ("first", "tail", "rest"))


@pytest.mark.parametrize(
    "url", ["postgresql:/rlmm:tail@db/tier", "tail", "mysql://rlmm:tail@db/tier", "a:tail@db:x/t"]
)
def test_invalid_url_is_refused_without_showing_it(url: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        create_database_engine(url)
    assert "tail" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_an_escaped_at_is_part_of_the_password() -> None:
    engine = create_database_engine("postgresql://rlmm:first%40tail@db/tier")
    assert engine.url.password == "first@tail"
    assert endpoint(engine.url) == "db:5432/tier"


def test_every_host_of_the_url_is_named() -> None:
    url = "postgresql://rlmm:tail@/tier?host=a:5432&host=b:5433&target_session_attrs=read-write"
    assert endpoint(create_database_engine(url).url) == "a:5432,b:5433/tier"


def test_a_password_in_the_url_and_in_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="RLMM_DATABASE_PASSWORD_FILE") as caught:
        create_database_engine("postgresql://rlmm:tail@db/tier", password_file=tmp_path / "none")
    assert "tail" not in str(caught.value)


def test_a_password_file_that_is_missing_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "password"
    with pytest.raises(InvalidRequestError, match=f"{missing}: cannot be read: No such file"):
        create_database_engine("postgresql://rlmm@db/tier", password_file=missing)
