"""Provide RLMM on a database of its own, and a tier in process: PostgreSQL, RSM on files."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine

from services.api.ids import TopicIdPartition
from services.rlmm.database.engine import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.factory import build_manager
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from tests.harness.patience import PATIENT
from tests.harness.tier import SmallTier, a_topic


@pytest.fixture
def engine(database_url: str) -> Iterator[Engine]:
    engine = create_database_engine(database_url, PATIENT)
    yield engine
    engine.dispose()


@pytest.fixture
def rlmm(engine: Engine) -> SqlRemoteLogMetadataManager:
    return SqlRemoteLogMetadataManager(engine)


@pytest.fixture
def tier(database_url: str, tmp_path: Path) -> Iterator[SmallTier]:
    engine = create_database_engine(database_url, PATIENT)
    settings = RsmSettings(backend="filesystem", directory=tmp_path)
    with closing(build_manager(settings)) as rsm:
        yield SmallTier(rsm, SqlRemoteLogMetadataManager(engine))
    engine.dispose()


@pytest.fixture
def keys(tmp_path: Path) -> Callable[[], Sequence[str]]:
    """Provide a function that lists the store's keys."""
    return lambda: sorted(FilesystemStorage(tmp_path).list_keys(""))


@pytest.fixture
def tp() -> TopicIdPartition:
    return a_topic("orders")[0]


@pytest.fixture
def moved(tmp_path: Path) -> Iterator[ObjectRemoteStorageManager]:
    """Provide an RSM whose location 2 is the current one, and 1 the previous one."""
    for name in ("old", "new"):
        (tmp_path / name).mkdir()
    registry = tmp_path / "locations.toml"
    registry.write_text(
        f'[[location]]\nid = 1\nbackend = "filesystem"\ndirectory = "{tmp_path / "old"}"\n'
        'prefix = ""\n'
    )
    settings = RsmSettings(
        backend="filesystem",
        directory=tmp_path / "new",
        location_id=2,
        locations_file=registry,
    )
    with closing(build_manager(settings)) as rsm:
        yield rsm
