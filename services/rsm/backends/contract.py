"""Test what RSM relies on of a StorageBackend: a test class of pytest for every kind of store.

A package with a kind of store of its own derives a class from StorageBackendContract in its tests
and gives it the fixture `backend`; docs/run/stores.md has an example. No service imports this.
"""

import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import ClassVar

import pytest
from crc32c import crc32c

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
    StoreNotFoundError,
)
from services.rsm.backends.protocol import (
    CHUNK_BYTES,
    FIRST_CHUNK_BYTES,
    MAX_DELETE_KEYS,
    MAX_SMALL_OBJECT_BYTES,
    Part,
    StorageBackend,
    Upload,
    UploadedPart,
    had_no_answer,
)

_CLOCKS_DIFFER_MS = 600_000


def some_bytes(size: int) -> bytes:
    """Return bytes in which every position of a range shows."""
    return (b"".join(n.to_bytes(4, "big") for n in range(size // 4 + 1)))[:size]


class StorageBackendContract:
    """Tests one store; a subclass provides the fixture `backend`, and may replace the others.

    Attributes:
        lists_uploads: False if the store or its library lists no unfinished uploads.
        part_bytes: size of every part but the last; at least the smallest that the store takes.
        listed_objects: how many objects are listed; more than the store returns in one answer.
    """

    lists_uploads: ClassVar[bool] = True
    part_bytes: ClassVar[int] = 5 * 1024 * 1024
    listed_objects: ClassVar[int] = 1_100

    @pytest.fixture
    def backend(self) -> StorageBackend:
        """Open the store under test, without retries."""
        raise NotImplementedError(f"{type(self).__name__} needs the fixture `backend`")

    @pytest.fixture
    def prefix(self) -> str:
        """Return where no object is yet; as in RSM, empty or with a slash at its end."""
        return f"contract-{secrets.token_hex(8)}/"

    @pytest.fixture
    def another(self) -> StorageBackend:
        """Open the store once more, as another process would."""
        pytest.skip("no fixture `another`: the store opened once more")

    @pytest.fixture
    def without_bucket(self) -> StorageBackend:
        """Open a bucket, container or directory that does not exist, in a store that does."""
        pytest.skip("no fixture `without_bucket`: a bucket that does not exist")

    # Whole objects

    @pytest.mark.parametrize("size", [0, 1, 100_000, MAX_SMALL_OBJECT_BYTES])
    def test_an_object_is_read_as_it_was_written(
        self, backend: StorageBackend, prefix: str, size: int
    ) -> None:
        key, data = f"{prefix}0/object", some_bytes(size)
        backend.put(key, data, crc32c(data))
        assert backend.get(key) == backend.check_and_get(key) == data
        seen = backend.describe(key)
        assert seen is not None
        assert list(backend.list_objects(prefix)) == [seen]
        assert (seen.key, seen.size_bytes) == (key, size)
        assert seen.etag
        assert abs(seen.modified_ms - time.time() * 1000) < _CLOCKS_DIFFER_MS

    def test_a_put_overwrites_and_changes_the_etag(
        self, backend: StorageBackend, prefix: str
    ) -> None:
        key = f"{prefix}0/object"
        etags = set()
        for data in (b"first", b"the second"):
            backend.put(key, memoryview(data))
            assert backend.get(key) == data
            seen = backend.describe(key)
            etags.add(seen and seen.etag)
        assert len(etags) == 2

    def test_a_missing_object_is_named_so(self, backend: StorageBackend, prefix: str) -> None:
        key = f"{prefix}0/object"
        backend.put(f"{key}-longer", b"")
        assert backend.describe(key) is None
        for call in (
            lambda: backend.get(key),
            lambda: backend.check_and_get(key),
            lambda: list(backend.fetch(key, 0, 1)),
        ):
            with pytest.raises(RemoteResourceNotFoundError):
                call()
        assert [each.key for each in backend.list_objects(prefix)] == [f"{key}-longer"]

    def test_an_object_that_is_too_large_for_rsm_is_no_small_one(
        self, backend: StorageBackend, prefix: str
    ) -> None:
        backend.put(f"{prefix}object", bytes(MAX_SMALL_OBJECT_BYTES + 1))
        with pytest.raises(CorruptSegmentError):
            backend.get(f"{prefix}object")

    def test_other_bytes_than_were_meant_are_refused(
        self, backend: StorageBackend, prefix: str
    ) -> None:
        key, other = f"{prefix}object", crc32c(b"other bytes")
        with pytest.raises(RetriableRemoteStorageError):
            backend.put(key, b"these bytes", other)
        upload = backend.begin_upload(key)
        with pytest.raises(RetriableRemoteStorageError):
            backend.upload_part(upload, Part(1, 0, memoryview(b"these bytes"), other))
        backend.abort_upload(upload)
        assert backend.describe(key) is None

    # Conditions

    def test_of_several_objects_under_a_key_the_first_stays(
        self, backend: StorageBackend, prefix: str
    ) -> None:
        key = f"{prefix}object"
        assert backend.put_if_absent(key, b"first")
        assert not backend.put_if_absent(key, b"second")
        assert backend.get(key) == b"first"
        assert list(backend.list_uploads(prefix)) == []

    def test_an_object_is_replaced_only_if_it_is_as_seen(
        self, backend: StorageBackend, prefix: str
    ) -> None:
        key = f"{prefix}object"
        assert not backend.put_if_match(key, b"none", "0" * 32)
        assert backend.describe(key) is None
        backend.put(key, b"first")
        seen = backend.describe(key)
        assert seen is not None
        assert backend.put_if_match(key, b"the second", seen.etag)
        assert not backend.put_if_match(key, b"a third", seen.etag)
        assert backend.get(key) == b"the second"
        assert [each.size_bytes for each in backend.list_objects(prefix)] == [10]
        assert list(backend.list_uploads(prefix)) == []

    # Ranges

    @pytest.mark.parametrize(
        ("start", "end"),
        [(0, 0), (0, 2_999_999), (2_999_999, 2_999_999), (1, 5), (17, 2_500_000)],
    )
    def test_a_range_has_both_its_ends(
        self, backend: StorageBackend, prefix: str, start: int, end: int
    ) -> None:
        key, data = f"{prefix}object", some_bytes(3_000_000)
        backend.put(key, data)
        chunks = list(backend.fetch(key, start, end))
        assert b"".join(chunks) == data[start : end + 1]
        assert len(chunks[0]) <= FIRST_CHUNK_BYTES
        assert max(map(len, chunks)) <= CHUNK_BYTES

    @pytest.mark.parametrize(
        ("size", "start", "end"), [(0, 0, 0), (10, 0, 10), (10, 9, 100_000), (10, 10, 10)]
    )
    def test_a_range_past_the_end_is_of_a_corrupt_object(
        self, backend: StorageBackend, prefix: str, size: int, start: int, end: int
    ) -> None:
        backend.put(f"{prefix}object", bytes(size))
        with pytest.raises(CorruptSegmentError):
            list(backend.fetch(f"{prefix}object", start, end))

    def test_a_read_begins_with_its_first_chunk_and_may_end_early(
        self, backend: StorageBackend, prefix: str
    ) -> None:
        key, data = f"{prefix}object", some_bytes(3_000_000)
        read = backend.fetch(key, 0, len(data) - 1)
        backend.put(key, data)
        assert data.startswith(next(read))
        read.close()
        assert b"".join(backend.fetch(key, 0, 9)) == data[:10]

    # Lists

    def test_a_list_has_exactly_its_prefix_in_order_of_keys(
        self, backend: StorageBackend, prefix: str
    ) -> None:
        keys = [f"{prefix}{name}" for name in ("a/1/x.i", "a/1/x.log", "a/10/x.log", "b/1/x.log")]
        for key in reversed(keys):
            backend.put(key, b"")

        def listed(below: str, after: str = "") -> list[str]:
            return [each.key for each in backend.list_objects(f"{prefix}{below}", after)]

        assert listed("") == keys
        assert listed("a/1") == keys[:3]
        assert listed("a/1/") == keys[:2]
        assert listed("a/1/x.l") == [keys[1]]
        assert listed("c") == listed("a/1/y/") == listed("", keys[3]) == []
        assert listed("", keys[0]) == keys[1:]
        assert listed("a/", keys[1]) == [keys[2]]
        assert listed("", f"{prefix}a/1/x.j") == keys[1:]

    def test_a_long_list_has_each_object_once(self, backend: StorageBackend, prefix: str) -> None:
        keys = [f"{prefix}0/{number:05}" for number in range(self.listed_objects)]
        with ThreadPoolExecutor(16) as threads:
            list(threads.map(lambda key: backend.put(key, b""), keys))
        assert [each.key for each in backend.list_objects(prefix)] == keys
        assert [each.key for each in backend.list_objects(prefix, keys[-3])] == keys[-2:]
        for at in range(0, len(keys), MAX_DELETE_KEYS):
            assert backend.delete(keys[at : at + MAX_DELETE_KEYS]) == {}
        assert list(backend.list_objects(prefix)) == []

    # Uploads

    def test_an_upload_of_parts_appears_whole(self, backend: StorageBackend, prefix: str) -> None:
        key, data = f"{prefix}0/object", some_bytes(2 * self.part_bytes + 1_000)
        backend.put(key, b"to be overwritten")
        upload = backend.begin_upload(key)
        uploaded = self._send(backend, upload, data)
        assert backend.get(key) == b"to be overwritten"
        backend.complete_upload(upload, uploaded)
        assert b"".join(backend.fetch(key, 0, len(data) - 1)) == data
        assert [each.size_bytes for each in backend.list_objects(prefix)] == [len(data)]
        assert list(backend.list_uploads(prefix)) == []

    def test_an_upload_that_has_ended_stays_as_it_is(
        self, backend: StorageBackend, prefix: str
    ) -> None:
        key = f"{prefix}0/object"
        upload = backend.begin_upload(key)
        uploaded = self._send(backend, upload, b"part")
        backend.complete_upload(upload, uploaded)
        with suppress(RetriableRemoteStorageError):  # An answer may have been lost.
            backend.complete_upload(upload, uploaded)
        backend.abort_upload(upload)
        assert backend.get(key) == b"part"

    def test_an_upload_that_was_aborted_is_gone(self, backend: StorageBackend, prefix: str) -> None:
        upload = backend.begin_upload(f"{prefix}0/object")
        uploaded = self._send(backend, upload, b"part")
        backend.abort_upload(upload)
        backend.abort_upload(upload)
        with pytest.raises(RetriableRemoteStorageError):
            backend.complete_upload(upload, uploaded)
        assert [*backend.list_objects(prefix), *backend.list_uploads(prefix)] == []

    @pytest.mark.parametrize("upload_id", ["x" * 1_024, "..", "../.."])
    def test_an_id_of_no_upload_ends_nothing(
        self, backend: StorageBackend, prefix: str, upload_id: str
    ) -> None:
        upload = backend.begin_upload(f"{prefix}0/object")
        with suppress(RemoteStorageError):  # A store may refuse an id that it would never give.
            backend.abort_upload(Upload(upload.key, upload_id))
        backend.complete_upload(upload, self._send(backend, upload, b"part"))
        assert backend.get(upload.key) == b"part"

    def test_an_unfinished_upload_is_no_object_and_is_listed(
        self, backend: StorageBackend, prefix: str
    ) -> None:
        upload = backend.begin_upload(f"{prefix}0/segment.log")
        assert list(backend.list_objects(prefix)) == []
        assert backend.describe(upload.key) is None
        listed = list(backend.list_uploads(f"{prefix}0/seg"))
        assert listed == ([upload] if self.lists_uploads else [])
        for each in listed:
            assert abs(each.begun_ms - time.time() * 1000) < _CLOCKS_DIFFER_MS
        assert list(backend.list_uploads(f"{prefix}0/other")) == []
        backend.abort_upload(upload)

    def test_an_upload_that_is_listed_is_ended_by_any_process(
        self, backend: StorageBackend, another: StorageBackend, prefix: str
    ) -> None:
        upload = backend.begin_upload(f"{prefix}0/object")
        uploaded = self._send(backend, upload, b"part")
        for each in another.list_uploads(prefix) if self.lists_uploads else [upload]:
            another.abort_upload(each)
        if not self.lists_uploads:
            backend.complete_upload(upload, uploaded)
            assert backend.get(upload.key) == b"part"
            return
        with pytest.raises(RetriableRemoteStorageError):
            backend.complete_upload(upload, uploaded)
        assert [*backend.list_objects(prefix), *backend.list_uploads(prefix)] == []

    def _send(self, backend: StorageBackend, upload: Upload, data: bytes) -> list[UploadedPart]:
        """Send parts concurrently, the last one first as far as the store lets it."""
        parts = [
            Part(number, at, memoryview(data)[at : at + self.part_bytes])
            for number, at in enumerate(range(0, len(data), self.part_bytes), 1)
        ]
        with ThreadPoolExecutor(len(parts)) as threads:
            sent = [threads.submit(backend.upload_part, upload, part) for part in reversed(parts)]
        return [each.result() for each in reversed(sent)]

    # Deletions

    def test_deleted_objects_are_gone_and_missing_ones_count_as_deleted(
        self, backend: StorageBackend, prefix: str
    ) -> None:
        keys = [f"{prefix}{number}/object" for number in range(4)]
        for key in keys[:3]:
            backend.put(key, b"object")
        for _ in range(2):
            assert backend.delete([keys[3], keys[0], keys[1]]) == {}
        assert [each.key for each in backend.list_objects(prefix)] == [keys[2]]
        with pytest.raises(RemoteResourceNotFoundError):
            backend.get(keys[0])

    # Faults

    def test_a_missing_bucket_is_never_a_missing_object(
        self, without_bucket: StorageBackend
    ) -> None:
        for call in _calls(without_bucket):
            with pytest.raises(StoreNotFoundError):
                call()
        assert isinstance(without_bucket.delete(["key"])["key"], StoreNotFoundError)


class NetworkBackendContract(StorageBackendContract):
    """Tests a store that may be away; a subclass provides the fixture `unreachable`, too."""

    @pytest.fixture
    def unreachable(self) -> StorageBackend:
        """Open a store at an address that nothing listens on."""
        raise NotImplementedError(f"{type(self).__name__} needs the fixture `unreachable`")

    def test_a_store_that_is_away_is_retriable(self, unreachable: StorageBackend) -> None:
        for call in _calls(unreachable):
            with pytest.raises(RetriableRemoteStorageError):
                call()
        with pytest.raises(RetriableRemoteStorageError) as error:
            unreachable.put_if_absent("key", b"")
        assert had_no_answer(error.value)
        assert isinstance(unreachable.delete(["key"])["key"], RetriableRemoteStorageError)


def _calls(backend: StorageBackend) -> list[Callable[[], object]]:
    return [
        lambda: backend.check_and_get("key"),
        lambda: backend.get("key"),
        lambda: backend.describe("key"),
        lambda: backend.put("key", b""),
        lambda: backend.put_if_absent("key", b""),
        lambda: backend.put_if_match("key", b"", "0" * 32),
        lambda: list(backend.list_objects("folder/")),
        lambda: list(backend.fetch("key", 0, 1)),
    ]
