"""Test RSM over a real S3 store: the number of its requests, and their failures."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace

import pytest
from pydantic import SecretStr

from services.api.errors import (
    CorruptSegmentError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoreAccessDeniedError,
    StoreNotFoundError,
)
from services.api.remote_storage_manager import IndexType, RemoteStorageManager
from services.rsm.active_copies import Waiter
from services.rsm.backends.protocol import Part, StorageBackend
from services.rsm.deadline import ByteRate
from services.rsm.factory import build_backend, build_locations, build_manager
from services.rsm.fetch import SegmentReader
from services.rsm.index_cache import TTL_S, IndexCache
from services.rsm.layout import segment_keys
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from services.rsm.verification import ReadVerification
from tests.contract.remote_storage_manager_contract import (
    LARGE,
    MIB,
    Files,
    StoredKeys,
    a_segment,
    copied,
    fetched,
    index,
    some_bytes,
)
from tests.contract.rsm_over_s3 import PART
from tests.harness.eventually import eventually
from tests.harness.faults import Answer
from tests.harness.http_proxy import HttpProxy


@pytest.fixture
def rsm(proxy: HttpProxy, settings: RsmSettings) -> Iterator[ObjectRemoteStorageManager]:
    """Provide an RSM behind the proxy that is ready: it has probed the store once."""
    behind = settings.model_copy(update={"endpoint": proxy.address})
    with closing(build_manager(behind)) as manager:
        manager.check()
        proxy.forget_requests()
        yield manager


def test_a_copy_of_one_part_is_three_puts(rsm: RemoteStorageManager, proxy: HttpProxy) -> None:
    copied(rsm, Files(some_bytes(PART)))
    assert_requests(proxy, PutObject=3)


def test_a_copy_of_three_parts_is_seven_requests(
    rsm: RemoteStorageManager, proxy: HttpProxy
) -> None:
    copied(rsm, Files(some_bytes(LARGE)))
    assert_requests(
        proxy, CreateMultipartUpload=1, UploadPart=3, CompleteMultipartUpload=1, PutObject=2
    )


MANIFEST = 1
"""Read once for a segment, by the first read that is verified."""


def test_a_fetch_is_one_get(rsm: RemoteStorageManager, proxy: HttpProxy) -> None:
    metadata = copied(rsm, Files(some_bytes(PART)))
    fetched(rsm, metadata, 0, 99)
    assert_requests(proxy, PutObject=3, GetObject=1 + MANIFEST)
    for _ in range(2):
        fetched(rsm, metadata)
    assert_requests(proxy, PutObject=3, GetObject=3 + MANIFEST)


@pytest.fixture
def lasting(proxy: HttpProxy, settings: RsmSettings) -> SegmentReader:
    """Provide a reader whose indexes stay in memory however slow the machine is."""
    locations = build_locations(settings.model_copy(update={"endpoint": proxy.address}))
    cache = IndexCache(ttl_s=3_600)
    return SegmentReader(locations, ReadVerification("always", MIB), cache, ByteRate(0, Waiter()))


@pytest.mark.parametrize("others", [b"index", b""])
@pytest.mark.parametrize("content", [b"index", b""])
def test_all_indexes_of_a_segment_are_one_get(
    rsm: RemoteStorageManager,
    lasting: SegmentReader,
    proxy: HttpProxy,
    content: bytes,
    others: bytes,
) -> None:
    indexes = {**dict.fromkeys(IndexType, others), IndexType.TRANSACTION: content}
    metadata = copied(rsm, Files(b"log", indexes))
    for _ in range(2):
        for kind in IndexType:
            assert b"".join(lasting.fetch_index(metadata, kind)) == indexes[kind]
    # Of an empty object each read checks that it exists.
    gets = 1 + MANIFEST if content or others else 2 * len(IndexType)
    assert_requests(proxy, PutObject=3, GetObject=gets)


def test_an_index_after_another_one_is_no_request_for_some_seconds(
    rsm: RemoteStorageManager, proxy: HttpProxy
) -> None:
    def both_came_in_time() -> bool:
        proxy.forget_requests()
        metadata, began_s = copied(rsm, Files(b"log")), time.monotonic()
        index(rsm, metadata, IndexType.OFFSET)
        index(rsm, metadata, IndexType.TIMESTAMP)
        return time.monotonic() - began_s < TTL_S

    eventually(both_came_in_time)
    assert_requests(proxy, PutObject=3, GetObject=1 + MANIFEST)


def test_a_batch_of_334_segments_is_deleted_in_two_requests(
    rsm: RemoteStorageManager, proxy: HttpProxy
) -> None:
    first = copied(rsm, Files(b"log"))
    others = [
        replace(first, remote_log_segment_id=a_segment().remote_log_segment_id) for _ in range(333)
    ]
    rsm.delete_log_segment_data_batch([first, *others])
    assert_requests(proxy, PutObject=3, DeleteObjects=2)


def test_the_first_chunk_of_a_fetch_is_small(rsm: RemoteStorageManager) -> None:
    metadata = copied(rsm, Files(some_bytes(PART)))
    assert len(next(rsm.fetch_log_segment(metadata, 0))) <= 16 * 1024


@pytest.mark.parametrize(
    ("operation", "skip"),
    [
        ("CreateMultipartUpload", 0),
        ("UploadPart", 0),
        ("UploadPart", 2),
        ("CompleteMultipartUpload", 0),
        pytest.param("PutObject", 0, id="the indexes"),
        pytest.param("PutObject", 1, id="the manifest"),
    ],
)
def test_a_copy_of_which_a_request_fails_is_retriable_and_leaves_nothing(
    rsm: RemoteStorageManager, proxy: HttpProxy, stored_keys: StoredKeys, operation: str, skip: int
) -> None:
    proxy.faults.add(Answer(503), operation=operation, skip=skip)
    with pytest.raises(RetriableRemoteStorageError):
        copied(rsm, Files(some_bytes(LARGE)))
    assert not stored_keys()


def test_copy_with_a_failed_clean_up_raises_the_first_error(
    rsm: RemoteStorageManager, proxy: HttpProxy
) -> None:
    proxy.faults.add(Answer(507), operation="CompleteMultipartUpload")
    proxy.faults.add(Answer(503), operation="AbortMultipartUpload")
    proxy.faults.add(Answer(503), operation="DeleteObjects")
    with pytest.raises(RetriableRemoteStorageError, match="507"):
        copied(rsm, Files(some_bytes(LARGE)))


def test_remains_of_a_failed_clean_up_go_with_a_delete_of_the_id(
    rsm: RemoteStorageManager, proxy: HttpProxy, stored_keys: StoredKeys
) -> None:
    metadata = a_segment()
    proxy.faults.add(Answer(503), operation="CompleteMultipartUpload")
    proxy.faults.add(Answer(503), operation="AbortMultipartUpload")
    with pytest.raises(RetriableRemoteStorageError):
        copied(rsm, Files(some_bytes(LARGE)), metadata)
    assert len(stored_keys()) == 1
    rsm.delete_log_segment_data(metadata)
    assert not stored_keys()


@pytest.mark.parametrize("left", [0, 500, 999])
def test_a_log_shorter_than_it_was_is_corrupt(
    rsm: RemoteStorageManager, backend: StorageBackend, stored_keys: StoredKeys, left: int
) -> None:
    files = Files(some_bytes(1000))
    metadata = copied(rsm, files)
    (log,) = (key for key in stored_keys() if key.endswith(".log"))
    backend.put(log, files.log[:left])
    with pytest.raises(CorruptSegmentError):
        fetched(rsm, metadata, 500)


def test_a_request_that_fails_once_is_repeated(
    proxy: HttpProxy, settings: RsmSettings, stored_keys: StoredKeys
) -> None:
    patient = settings.model_copy(update={"endpoint": proxy.address, "retries": 2})
    with closing(build_manager(patient)) as rsm:
        rsm.check()
        proxy.faults.add(Answer(503), operation="UploadPart")
        proxy.faults.add(Answer(503), operation="GetObject")
        files = Files(some_bytes(LARGE))
        assert fetched(rsm, copied(rsm, files)) == files.log
    assert len(stored_keys()) == 3


def test_delete_without_custom_metadata_ends_unfinished_uploads(
    rsm: RemoteStorageManager,
    backend: StorageBackend,
    settings: RsmSettings,
    stored_keys: StoredKeys,
) -> None:
    metadata = a_segment()
    upload = backend.begin_upload(segment_keys(settings.prefix, metadata).log("00c0ffee00c0ffee"))
    backend.upload_part(upload, Part(1, 0, memoryview(b"part")))
    assert len(stored_keys()) == 1
    rsm.delete_log_segment_data(metadata)
    assert not stored_keys()


def test_check_names_the_missing_bucket_and_the_endpoint(settings: RsmSettings) -> None:
    missing = settings.model_copy(update={"bucket": "no-such-bucket"})
    with pytest.raises(StoreNotFoundError, match=rf"no-such-bucket.*{settings.endpoint}"):
        build_backend(missing).check_and_get("key")


def test_a_missing_bucket_is_never_a_missing_segment(settings: RsmSettings) -> None:
    assert_every_call_raises(
        StoreNotFoundError, settings.model_copy(update={"bucket": "no-such-bucket"})
    )


def test_refused_credentials_are_an_error_for_good(settings: RsmSettings) -> None:
    wrong = settings.model_copy(update={"secret_key": SecretStr("wrong")})
    assert_every_call_raises(StoreAccessDeniedError, wrong)


def test_a_store_that_refuses_connections_is_retriable(
    proxy: HttpProxy, settings: RsmSettings
) -> None:
    proxy.refuse_connections()
    down = settings.model_copy(update={"endpoint": proxy.address})
    assert_every_call_raises(RetriableRemoteStorageError, down)


def test_a_store_that_answers_503_is_retriable(proxy: HttpProxy, settings: RsmSettings) -> None:
    proxy.faults.fail_share(1)
    down = settings.model_copy(update={"endpoint": proxy.address})
    assert_every_call_raises(RetriableRemoteStorageError, down)


def assert_requests(proxy: HttpProxy, **counts: int) -> None:
    """Wait, because the client may finish a request a moment before the proxy counts it."""
    eventually(lambda: proxy.counts() == Counter(counts))


def assert_every_call_raises(error: type[RemoteStorageError], settings: RsmSettings) -> None:
    """Each call raises exactly `error`; above all never RemoteResourceNotFoundError."""
    metadata = a_segment()
    with closing(build_manager(settings)) as manager:
        calls: list[Callable[[], object]] = [
            manager.check,
            lambda: copied(manager, Files(b"log"), metadata),
            lambda: fetched(manager, metadata),
            lambda: index(manager, metadata, IndexType.OFFSET),
            lambda: manager.delete_log_segment_data(metadata),
        ]
        for call in calls:
            with pytest.raises(RemoteStorageError, match=settings.bucket) as caught:
                call()
            assert caught.type is error, caught.value
