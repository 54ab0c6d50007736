"""The services that tests of commands run against; a module with needs of its own has its own."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.settings import RsmSettings
from tests.harness.rlmm_process import RlmmProcess, serving_rlmm
from tests.harness.served_rsm import ServedRsm, serving


@pytest.fixture
def rlmm(database_url: str) -> Iterator[RlmmProcess]:
    with serving_rlmm(database_url) as made:
        yield made


@pytest.fixture
def store(tmp_path: Path) -> FilesystemStorage:
    (tmp_path / "objects").mkdir()
    return FilesystemStorage(tmp_path / "objects")


@pytest.fixture
def rsm(store: FilesystemStorage, tmp_path: Path) -> Iterator[ServedRsm]:
    with serving(RsmSettings(backend="filesystem", directory=tmp_path / "objects")) as made:
        yield made
