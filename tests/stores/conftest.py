"""One store of the kind that TEST_STORE names, for all tests here."""

import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from services.local.emulators import StoreEmulator
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import MIB
from tests.harness.emulators import EMULATORS, OneNodeHdfs

BUCKET = "segments"
KIND = os.environ.get("TEST_STORE", "")
LISTS_UPLOADS = OneNodeHdfs.backend == KIND
# HDFS speaks no HTTP.
_OF_SOME = {
    "test_azure_sas.py": ["azure"],
    "test_hdfs_faults.py": ["hdfs"],
    "test_rsm_faults_in_store.py": ["azure", "gcs"],
    "test_store_behind_squid.py": ["azure", "gcs"],
    "test_up_over_store.py": ["azure", "gcs"],
}
collect_ignore = [file for file, kinds in _OF_SOME.items() if KIND not in kinds]
StoreSettings = Callable[..., RsmSettings]


@pytest.fixture(scope="session")
def emulator(server_directory: Path) -> Iterator[StoreEmulator]:
    if KIND not in EMULATORS:
        pytest.fail(f"TEST_STORE is {KIND!r}: must be one of {', '.join(EMULATORS)}")
    with EMULATORS[KIND](server_directory / KIND) as running:
        running.ensure_bucket(BUCKET)
        yield running


@pytest.fixture
def store_settings(emulator: StoreEmulator, tmp_path: Path) -> StoreSettings:
    """Make settings for one empty prefix, without retries."""
    prefix = f"{secrets.token_hex(8)}/"

    def make(address: str | None = None, bucket: str = BUCKET, **changes: Any) -> RsmSettings:
        registry = tmp_path / f"locations-{secrets.token_hex(4)}.toml"
        named = emulator.rsm_settings(bucket, prefix, registry, address)
        values = {name.removeprefix("RSM_").lower(): value for name, value in named.items()}
        fixed = {"part_size_bytes": 5 * MIB, "retries": 0, "read_timeout_ms": 60_000}
        return RsmSettings.model_validate({**values, **fixed, **changes})

    return make


@pytest.fixture
def settings(store_settings: StoreSettings) -> RsmSettings:
    return store_settings()
