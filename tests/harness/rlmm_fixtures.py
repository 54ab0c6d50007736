"""Provide RLMM on a database of its own, and a tier in process: PostgreSQL, RSM on files."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import Engine

from services.api.ids import TopicIdPartition
from services.rlmm.db import create_database_engine
from services.rlmm.manager import SqlRemoteLogMetadataManager
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.factory import build_manager
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
