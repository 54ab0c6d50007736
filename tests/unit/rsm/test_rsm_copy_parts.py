"""Test how objects are cut into parts, and how many parts are in memory and in flight at once."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event, Lock

import pytest
from crc32c import crc32c

from services.api.calls import IN_PROCESS, Call, serving
from services.api.errors import RetriableRemoteStorageError
from services.api.validation import INT32_MAX
from services.rsm.active_copies import Waiter
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.backends.protocol import Part, Upload, UploadedPart
from services.rsm.digests import RunningDigest
from services.rsm.locations import Location, Locations
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.upload import MAX_PARTS, PartBuffers, Uploader, part_size_bytes
from tests.contract.remote_storage_manager_contract import Files, copied, some_bytes
from tests.harness.eventually import eventually
from tests.harness.gates import Gate, gated

MIB = 1024 * 1024


def parts_of(object_size: int, part_size: int) -> int:
    return -(-object_size // part_size)


@pytest.mark.parametrize(
    ("object_size", "least", "expected"),
    [
        (0, 8 * MIB, 8 * MIB),
        (INT32_MAX, 8 * MIB, 8 * MIB),
        (INT32_MAX, 5 * MIB, 5 * MIB),
        (INT32_MAX, 100_000, 214_749),
        (MAX_PARTS * 7, 7, 7),
        (MAX_PARTS * 7 + 1, 7, 8),
        (50_000 * 5 * MIB, 5 * MIB, 25 * MIB),
    ],
)
def test_parts_grow_if_there_were_too_many(object_size: int, least: int, expected: int) -> None:
    assert part_size_bytes(object_size, least) == expected
    assert parts_of(object_size, expected) <= MAX_PARTS


def test_the_largest_log_has_410_parts_of_the_least_size_that_s3_takes() -> None:
    assert parts_of(INT32_MAX, part_size_bytes(INT32_MAX, 5 * MIB)) == 410


class NotingStore(FilesystemStorage):
    """Knows the parts that it was given."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.parts: list[Part] = []

    def upload_part(self, upload: Upload, part: Part) -> UploadedPart:
        self.parts.append(part)
        return super().upload_part(upload, part)


def written(uploader: Uploader, key: str, content: bytes) -> None:
    with uploader.object(key, len(content)) as upload:
        upload.write(content)


@pytest.mark.deep
def test_an_object_of_too_many_parts_is_cut_into_larger_ones(tmp_path: Path) -> None:
    store, content = NotingStore(tmp_path), some_bytes(MAX_PARTS * 3 + 1)
    with closing(Uploader(store, PartBuffers(4, 3, 60_000), 2, Waiter())) as uploader:
        written(uploader, "key", content)
    assert len(store.parts) == parts_of(len(content), 4)
    assert store.get("key") == content


def test_a_buffer_that_was_made_for_larger_parts_does_not_stay() -> None:
    buffers = PartBuffers(1, 8, wait_timeout_ms=1)
    buffers.release(buffers.acquire(100))
    assert len(buffers.acquire()) == 8


class CountedBuffers(PartBuffers):
    """Knows how many were out at once, at most."""

    def __init__(self, count: int, size_bytes: int, wait_timeout_ms: int) -> None:
        super().__init__(count, size_bytes, wait_timeout_ms)
        self._lock = Lock()
        self._out = 0
        self.most_out = 0

    def acquire(self, size_bytes: int | None = None) -> memoryview:
        with self._lock:
            self._out += 1
            self.most_out = max(self.most_out, self._out)
        return super().acquire(size_bytes)

    def release(self, buffer: memoryview) -> None:
        with self._lock:
            self._out -= 1
        super().release(buffer)


def test_an_object_takes_no_more_buffers_than_it_can_send_at_once(tmp_path: Path) -> None:
    """One part is under way and one is filled; a third may just be on its way back."""
    buffers = CountedBuffers(100, 4, wait_timeout_ms=60_000)
    with closing(Uploader(FilesystemStorage(tmp_path), buffers, 1, Waiter())) as uploader:
        written(uploader, "key", bytes(400))
    assert buffers.most_out <= 3


def test_cancelled_call_does_not_wait_for_a_buffer() -> None:
    buffers = PartBuffers(1, 8, wait_timeout_ms=3_600_000)
    buffers.acquire()
    gone = Call("actor", "id", is_active=lambda: False)
    with serving(gone), pytest.raises(RetriableRemoteStorageError, match="stopped waiting"):
        buffers.acquire()


def test_an_uploader_that_closes_waits_for_the_part_in_progress_only(tmp_path: Path) -> None:
    gate = Gate("upload_part")
    store = NotingStore(tmp_path)
    buffers = PartBuffers(6, 4, wait_timeout_ms=60_000)
    uploader = Uploader(gated(store, gate), buffers, 1, Waiter())
    source_goes_on = Event()

    def write() -> None:
        with uploader.object("key", 400) as upload:
            upload.write(bytes(8))
            assert source_goes_on.wait(60)
            upload.write(bytes(8))

    with ThreadPoolExecutor(2) as pool:
        writing = pool.submit(write)
        assert gate.reached.wait(60)
        queued = uploader.send(IN_PROCESS, Upload("other", "id"), Part(1, 0, memoryview(b"")))
        closing_it = pool.submit(uploader.close)
        eventually(lambda: refuses(uploader))
        source_goes_on.set()
        gate.opened.set()
        closing_it.result(60)
        with pytest.raises(RetriableRemoteStorageError, match="stopping"):
            queued.result(60)
        with pytest.raises(RetriableRemoteStorageError, match="stopping"):
            writing.result(60)
    assert [part.number for part in store.parts] == [1]
    assert not list(store.list_uploads(""))


def refuses(uploader: Uploader) -> bool:
    try:
        uploader.send(IN_PROCESS, Upload("other", "id"), Part(1, 0, memoryview(b"")))
    except RetriableRemoteStorageError:
        return True
    return False


@pytest.mark.parametrize(("size", "what"), [(2 * MIB, "part 2 of key"), (MIB, "key")])
def test_bytes_changed_in_memory_are_not_written(tmp_path: Path, size: int, what: str) -> None:
    """A part, or an object of one, is held to the bytes that came, not to those that are sent."""
    content = some_bytes(size)
    digest = RunningDigest()
    digest.update(content)
    changed = bytearray(content)
    changed[-5] ^= 1
    buffers = PartBuffers(2, MIB, 60_000)
    with (
        closing(Uploader(FilesystemStorage(tmp_path), buffers, 1, Waiter())) as uploader,
        pytest.raises(RetriableRemoteStorageError, match=f"writing {what}: crc32c is"),
        uploader.object("key", len(content), digest) as upload,
    ):
        upload.write(bytes(changed))
    assert not list(tmp_path.rglob("*key*"))


def test_the_parts_of_a_log_are_held_to_the_bytes_that_came(tmp_path: Path) -> None:
    store, log = NotingStore(tmp_path), some_bytes(2 * MIB + 100)
    buffers = PartBuffers(2, MIB, 60_000)
    manager = ObjectRemoteStorageManager(
        Locations(Location(1, store, "")), buffers, upload_threads=1
    )
    with closing(manager) as rsm:
        copied(rsm, Files(log))
    assert [part.crc for part in store.parts] == [
        crc32c(log[at : at + MIB]) for at in range(0, len(log), MIB)
    ]
