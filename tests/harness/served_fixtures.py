"""Provide fixtures for tests of commands: RLMM, and RSM on files, served in this process.

A test file takes those that it needs by assignment: `rlmm = served_fixtures.rlmm`. They are no
plugin, because other tests have other fixtures of these names.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest

from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.settings import RsmSettings
from tests.harness.processes import RlmmProcess, serving_rlmm
from tests.harness.served import ServedRsm, serving


@pytest.fixture
def rlmm(database_url: str) -> Iterator[RlmmProcess]:
    with serving_rlmm(database_url) as made:
        yield made


@pytest.fixture
def rlmm_with_rsm(database_url: str, rsm: ServedRsm) -> Iterator[RlmmProcess]:
    """An RLMM whose commands know the address of `rsm`, too."""
    with serving_rlmm(database_url) as made:
        yield made.beside(SEDIMENT_RSM=rsm.address)


@pytest.fixture
def store(tmp_path: Path) -> FilesystemStorage:
    """The store of `rsm`."""
    (tmp_path / "objects").mkdir()
    return FilesystemStorage(tmp_path / "objects")


@pytest.fixture
def rsm(store: FilesystemStorage, tmp_path: Path) -> Iterator[ServedRsm]:
    with serving(RsmSettings(backend="filesystem", directory=tmp_path / "objects")) as made:
        yield made
