"""Test how long a missing manifest is cached."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from services.api.errors import RemoteResourceNotFoundError
from services.common.log import RepeatFilter
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.digests import MAX_MISSING, MISSING_S, DigestCache
from services.rsm.factory import build_manager
from services.rsm.layout import CustomMetadata
from services.rsm.locations import Location
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from services.rsm.upload import PartBuffers
from tests.contract.remote_storage_manager_contract import (
    Files,
    copied,
    fetched,
    of_an_older_release,
)


class CountingStore(FilesystemStorage):
    """Knows how often it was asked for a small object."""

    gets = 0

    def get(self, key: str) -> bytes:
        self.gets += 1
        return super().get(key)


def test_a_missing_manifest_is_asked_for_once_in_a_while(tmp_path: Path) -> None:
    store, now_s = CountingStore(tmp_path), 1000.0
    location = Location(1, store, "tier/")
    rsm = ObjectRemoteStorageManager(location, PartBuffers(2, 64 * 1024, 60_000), upload_threads=1)
    segment = copied(rsm, Files(b"log"))
    rsm.close()
    keys, found = location.keys(segment), CustomMetadata.from_bytes(segment.custom_metadata or b"")
    cache = DigestCache(1 << 20, now=lambda: now_s)
    manifest = store.get(keys.manifest)
    store.delete([keys.manifest])
    store.gets = 0
    for _ in range(10):
        with pytest.raises(RemoteResourceNotFoundError):
            cache.get(location, keys, found)
    assert store.gets == 1
    store.put(keys.manifest, manifest)
    now_s += MISSING_S + 1
    assert cache.get(location, keys, found) is not None
    assert store.gets == 2


@pytest.mark.deep
def test_number_of_cached_missing_manifests_is_limited(tmp_path: Path) -> None:
    store = CountingStore(tmp_path)
    location = Location(1, store, "tier/")
    rsm = ObjectRemoteStorageManager(location, PartBuffers(2, 64 * 1024, 60_000), upload_threads=1)
    segment = copied(rsm, Files(b"log"))
    rsm.close()
    keys, found = location.keys(segment), CustomMetadata.from_bytes(segment.custom_metadata or b"")
    store.delete([keys.manifest])
    cache = DigestCache(1 << 20, now=lambda: 1000.0)
    for number in (*range(MAX_MISSING + 1), 0):
        with pytest.raises(RemoteResourceNotFoundError):
            cache.get(location, keys, replace(found, attempt=f"{number:016x}"))
    assert store.gets == MAX_MISSING + 2


def test_reads_without_a_manifest_do_not_fill_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = RsmSettings(backend="filesystem", directory=tmp_path, verify_reads="always")
    with caplog.filtering(RepeatFilter()), closing(build_manager(settings)) as rsm:
        rsm.check()
        segment = of_an_older_release(copied(rsm, Files(b"log")))
        next(tmp_path.rglob("*.manifest")).unlink()
        for _ in range(1000):
            assert fetched(rsm, segment) == b"log"
    lines = [line for line in caplog.messages if "read unverified" in line]
    assert 0 < len(lines) < 100
