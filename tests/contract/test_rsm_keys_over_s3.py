"""Test over a real S3 store what a rewrap needs, and a rotation while copies and reads go on."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from services.api.segment_objects import SegmentKey
from services.local.seaweedfs import S3Endpoint
from services.rsm.factory import build_backend, build_manager
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import Files, copied, fetched, some_bytes
from tests.contract.rsm_over_s3 import settings_for
from tests.unit.rsm.test_rsm_keys import write_key


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    write_key(tmp_path / "keys", "k0", current=True)
    return tmp_path / "keys"


@pytest.fixture
def settings(s3: S3Endpoint, tmp_path: Path, keys: Path) -> RsmSettings:
    file = tmp_path / "locations.toml"
    file.write_text(f'[keys]\ndirectory = "{keys}"\n')
    return settings_for(s3, {"deployment_id": "here", "locations_file": file})


@pytest.fixture
def rsm(settings: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
    with closing(build_manager(settings)) as manager:
        manager.check()
        yield manager


def test_of_several_who_replace_an_object_one_wins(settings: RsmSettings) -> None:
    store, key = build_backend(settings), f"{settings.prefix}key"
    store.put(key, b"first")
    seen = store.describe(key)
    assert seen is not None
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda n: store.put_if_match(key, b"%d" % n, seen.etag), range(8)))
    assert done.count(True) == 1
    assert store.get(key) == b"%d" % done.index(True)


def test_a_rotation_disturbs_neither_copies_nor_reads(
    settings: RsmSettings, rsm: ObjectRemoteStorageManager, keys: Path
) -> None:
    files = Files(some_bytes(50_000))
    segments = [copied(rsm, files) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for number in range(1, 4):
            write_key(keys, f"k{number}", current=True)
            copies = [pool.submit(copied, rsm, files) for _ in range(4)]
            reads = [pool.submit(fetched, rsm, each) for each in segments]
            rsm.objects.rewrap_keys(segments)
            assert {read.result() for read in reads} == {files.log}
            segments += [copy.result() for copy in copies]
    outcomes = rsm.objects.rewrap_keys(segments).outcomes
    assert [each.key_id for each in outcomes if isinstance(each, SegmentKey)] == ["k3"] * 16
    for number in range(3):
        (keys / f"k{number}").unlink()
    with closing(build_manager(settings.model_copy(update={"verify_reads": "always"}))) as later:
        later.check()
        assert {fetched(later, each) for each in segments} == {files.log}
