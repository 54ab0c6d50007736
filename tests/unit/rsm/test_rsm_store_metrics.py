"""Test the metrics of RSM's stores: requests by result, part buffers, the last success."""

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
    StoreNotFoundError,
)
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.factory import build_backend
from services.rsm.metrics import LAST_SUCCESS, MeasuredStorage, publish_part_buffers
from services.rsm.settings import RsmSettings
from services.rsm.upload import PartBuffers
from tests.harness.eventually import eventually
from tests.harness.published import published
from tests.harness.small_limits import small_disk
from tests.harness.stores import keys_in

COUNT = "sediment_rsm_store_seconds_count"
SUCCESS = "sediment_rsm_store_last_success_timestamp_seconds"


def requests(operation: str, result: str) -> float:
    return published(COUNT, {"operation": operation, "result": result})


@pytest.fixture
def store(tmp_path: Path) -> MeasuredStorage:
    return MeasuredStorage(FilesystemStorage(tmp_path))


def test_each_operation_is_counted_once_by_its_result(store: MeasuredStorage) -> None:
    expected = {
        ("put", "ok"): 2,
        ("get", "ok"): 2,
        ("get", "not_found"): 1,
        ("fetch", "ok"): 1,
        ("fetch", "corrupt"): 1,
        ("list", "ok"): 3,
        ("upload", "ok"): 2,
        ("check", "ok"): 2,
        ("delete", "ok"): 1,
    }
    before = {key: requests(*key) for key in expected}
    store.put("key", b"content")
    store.put_if_absent("other", b"content")
    store.get("key")
    store.describe("key")
    with pytest.raises(RemoteResourceNotFoundError):
        store.get("missing")
    assert b"".join(store.fetch("key", 0, 6)) == b"content"
    with pytest.raises(CorruptSegmentError):
        list(store.fetch("key", 0, 7))
    assert list(keys_in(store, "")) == ["key", "other"]
    assert len(list(store.list_objects("", ""))) == 2
    store.abort_upload(store.begin_upload("third"))
    assert list(store.list_uploads("")) == []
    store.check_and_get("key")
    store.check_and_get("key")
    assert store.delete(["key", "other"]) == {}
    assert {key: requests(*key) - count for key, count in before.items()} == expected


def test_a_reader_that_leaves_has_no_error_and_its_own_time_does_not_count(
    store: MeasuredStorage,
) -> None:
    store.put("key", bytes(1024 * 1024))
    spent = "sediment_rsm_store_seconds_sum"
    labels = {"operation": "fetch", "result": "ok"}
    count, before_s = requests("fetch", "ok"), published(spent, labels)
    with closing(store.fetch("key", 0, 1024 * 1024 - 1)) as pieces:
        next(pieces)
        slept_from_s = time.monotonic()
        eventually(lambda: time.monotonic() - slept_from_s > 0.2)
    assert requests("fetch", "ok") == count + 1
    assert published(spent, labels) - before_s < time.monotonic() - slept_from_s


def test_a_store_that_is_gone_is_an_error_and_no_success(tmp_path: Path) -> None:
    store = MeasuredStorage(FilesystemStorage(tmp_path / "gone"))
    LAST_SUCCESS.set(1_000)
    counts = requests("check", "no_store"), requests("delete", "no_store")
    with pytest.raises(StoreNotFoundError):
        store.check_and_get("key")
    assert len(store.delete(["key"])) == 1
    assert (requests("check", "no_store"), requests("delete", "no_store")) == (
        counts[0] + 1,
        counts[1] + 1,
    )
    assert published(SUCCESS) == 1_000
    (tmp_path / "gone").mkdir()
    with pytest.raises(RemoteResourceNotFoundError):
        store.check_and_get("key")
    assert published(SUCCESS) > 1_000


def test_an_answer_that_nothing_is_there_is_a_success(store: MeasuredStorage) -> None:
    LAST_SUCCESS.set(1_000)
    with pytest.raises(RemoteResourceNotFoundError):
        store.get("missing")
    assert published(SUCCESS) > 1_000


def test_a_store_that_does_not_answer_is_named() -> None:
    keys = {"access_key": "key", "secret_key": "secret", "region": "here", "bucket": "bucket"}
    endpoint = {"backend": "s3", "endpoint": "127.0.0.1:1", "secure": False, "retries": 0}
    store = MeasuredStorage(build_backend(RsmSettings.model_validate({**endpoint, **keys})))
    before = requests("put", "no_answer")
    with pytest.raises(RetriableRemoteStorageError):
        store.put("key", b"content")
    assert requests("put", "no_answer") == before + 1


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 * 1024) as disk:
        store = MeasuredStorage(FilesystemStorage(disk.path))
        before = requests("put", "full")
        with pytest.raises(RetriableRemoteStorageError, match="ENOSPC"):
            store.put("key", bytes(1024 * 1024))
        assert requests("put", "full") == before + 1


def test_the_part_buffers_in_use_and_the_copies_that_wait_are_published() -> None:
    buffers = PartBuffers(2, 1024, wait_timeout_ms=60_000)
    publish_part_buffers(buffers)

    def state() -> list[float]:
        return [
            published(f"sediment_rsm_part_buffers_{name}")
            for name in ("in_use", "limit", "waiting")
        ]

    assert state() == [0, 2, 0]
    taken = [buffers.acquire(), buffers.acquire()]
    with ThreadPoolExecutor(1) as pool:
        third = pool.submit(buffers.acquire)
        eventually(lambda: state() == [2, 2, 1])
        buffers.release(taken.pop())
        assert len(third.result(timeout=30)) == 1024
    assert state() == [2, 2, 0]
