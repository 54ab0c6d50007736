"""Test the verification of reads however they are cut, and the digests that are kept for it."""

import random
from array import array
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from threading import Event

import pytest

from services.api.calls import Call, current_call, serving
from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.backends.filesystem import FilesystemStorage
from services.rsm.digests import ENTRY_OVERHEAD_BYTES, MANIFEST_THREADS, MISSING_S, DigestCache
from services.rsm.factory import build_manager
from services.rsm.layout import CustomMetadata
from services.rsm.locations import Location
from services.rsm.settings import RsmSettings
from services.rsm.verification import ReadVerification
from tests.contract.remote_storage_manager_contract import (
    MIB,
    Files,
    copied,
    some_bytes,
)
from tests.harness.eventually import eventually
from tests.harness.published import published

SIZE = 3 * MIB + 1000


class CountingStore(FilesystemStorage):
    """Counts what is read whole; waits for `gate`, fails once where told to."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.gets = 0
        self.calls: list[Call] = []
        self.fails = False
        self.gate = Event()
        self.gate.set()

    def get(self, key: str) -> bytes:
        self.gets += 1
        self.calls.append(current_call())
        assert self.gate.wait(60)
        if self.fails:
            self.fails = False
            raise RetriableRemoteStorageError("the store is not well")
        return super().get(key)


@pytest.fixture
def store(tmp_path: Path) -> CountingStore:
    return CountingStore(tmp_path)


@pytest.fixture
def location(store: CountingStore) -> Location:
    return Location(1, store, "")


def a_copy(root: Path, log: bytes) -> RemoteLogSegmentMetadata:
    settings = RsmSettings(backend="filesystem", directory=root)
    with closing(build_manager(settings)) as manager:
        return copied(manager, Files(log))


def found(segment: RemoteLogSegmentMetadata) -> CustomMetadata:
    return CustomMetadata.from_bytes(segment.custom_metadata or b"")


def cut(data: bytes, at: list[int]) -> Generator[bytes, None, None]:
    for start, end in pairwise([0, *sorted(at), len(data)]):
        yield data[start:end]


@pytest.mark.parametrize("seed", range(20))
def test_however_a_read_is_cut_it_is_verified_and_comes_out_unchanged(
    tmp_path: Path, location: Location, seed: int
) -> None:
    chance = random.Random(seed)
    log = some_bytes(SIZE)
    segment = a_copy(tmp_path, log)
    verification = ReadVerification("always", MIB)
    start = chance.choice([0, 1, MIB - 1, MIB, MIB + 1, 2 * MIB])
    end = chance.choice([SIZE - 1, SIZE - 2, 3 * MIB - 1])
    first, behind = start // MIB * MIB, min((end // MIB + 1) * MIB, SIZE)
    cuts = [chance.randrange(behind - first) for _ in range(chance.randrange(12))]

    def read(data: bytes, into: bytearray) -> None:
        def fetch(start: int, last: int) -> Generator[bytes, None, None]:
            return cut(data[start : last + 1], cuts)

        for piece in verification.of(location, segment, found(segment)).log(fetch, start, end):
            into += piece

    whole, given = bytearray(), bytearray()
    read(log, whole)
    assert whole == log[start : end + 1]
    position = chance.randrange(first, behind)
    changed = log[:position] + bytes([log[position] ^ 64]) + log[position + 1 :]
    with pytest.raises(CorruptSegmentError, match=f"chunk {position // MIB} of the log"):
        read(changed, given)
    assert whole.startswith(given)


def test_closing_a_read_closes_its_source(tmp_path: Path, location: Location) -> None:
    segment = a_copy(tmp_path, some_bytes(SIZE))
    pieces = cut(some_bytes(SIZE), [MIB])
    one = ReadVerification("always", MIB).of(location, segment, found(segment))
    stream = one.log(lambda *_: pieces, 0, SIZE - 1)
    next(stream)
    stream.close()
    assert next(pieces, None) is None


def test_a_cold_read_asks_for_its_bytes_and_its_manifest_at_once(
    tmp_path: Path, store: CountingStore, location: Location
) -> None:
    log = some_bytes(SIZE)
    segment = a_copy(tmp_path, log)
    verification = ReadVerification("always", MIB)
    asked = Event()

    def fetch(start: int, last: int) -> Generator[bytes, None, None]:
        eventually(lambda: store.gets == 1)
        asked.set()
        yield log[start : last + 1]

    store.gate.clear()
    with ThreadPoolExecutor(1) as pool:
        read = verification.of(location, segment, found(segment)).log(fetch, 0, SIZE - 1)
        first = pool.submit(next, read)
        assert asked.wait(60)
        assert not first.done()
        store.gate.set()
        assert first.result(timeout=60) == log
    assert store.gets == 1


def test_readers_without_an_idle_thread_read_the_manifest_themselves(
    tmp_path: Path, store: CountingStore, location: Location
) -> None:
    segments = [a_copy(tmp_path, b"log") for _ in range(MANIFEST_THREADS + 1)]
    cache = DigestCache(ENTRY_OVERHEAD_BYTES)  # Keeps none.
    store.gate.clear()
    waiting = [cache.begin(location, location.keys(each), found(each)) for each in segments]
    eventually(lambda: store.gets == MANIFEST_THREADS)
    store.gate.set()
    assert all(get() for get in waiting)
    assert store.gets == len(segments)
    one, keys = found(segments[0]), location.keys(segments[0])

    def idle_threads_have_begun_more() -> bool:
        cache.begin(location, keys, one)
        return store.gets > len(segments) + MANIFEST_THREADS

    eventually(idle_threads_have_begun_more)


def test_a_manifest_is_read_on_behalf_of_the_reader_that_needs_it(
    tmp_path: Path, store: CountingStore, location: Location
) -> None:
    segment = a_copy(tmp_path, b"log")
    call = Call(actor="a reader", request_id="r1")
    with serving(call):
        DigestCache(MIB).begin(location, location.keys(segment), found(segment))()
    assert store.calls == [call]


def test_readers_that_miss_at_once_cause_one_read_of_the_manifest(
    tmp_path: Path, store: CountingStore, location: Location
) -> None:
    segment = a_copy(tmp_path, some_bytes(SIZE))
    cache, keys = DigestCache(MIB), location.keys(segment)
    store.gate.clear()
    with ThreadPoolExecutor(8) as pool:
        answers = [pool.submit(cache.get, location, keys, found(segment)) for _ in range(8)]
        eventually(lambda: store.gets == 1)
        store.gate.set()
        assert len({id(answer.result(timeout=60)) for answer in answers}) == 1
    assert store.gets == 1


def test_a_manifest_that_could_not_be_read_is_asked_for_again(
    tmp_path: Path, store: CountingStore, location: Location
) -> None:
    segment = a_copy(tmp_path, some_bytes(SIZE))
    cache, keys = DigestCache(MIB), location.keys(segment)
    store.fails = True
    with pytest.raises(RetriableRemoteStorageError):
        cache.get(location, keys, found(segment))
    assert cache.get(location, keys, found(segment)) is not None


def test_the_cache_keeps_as_many_bytes_as_it_may(
    tmp_path: Path, store: CountingStore, location: Location
) -> None:
    segments = [a_copy(tmp_path, b"log") for _ in range(3)]
    entry = ENTRY_OVERHEAD_BYTES + array("I").itemsize
    cache = DigestCache(2 * entry)
    for segment in (*segments, *segments[1:]):
        cache.get(location, location.keys(segment), found(segment))
    assert store.gets == 3
    cache.get(location, location.keys(segments[0]), found(segments[0]))
    assert store.gets == 4


def test_digests_that_are_larger_than_the_cache_are_not_kept(
    tmp_path: Path, store: CountingStore, location: Location
) -> None:
    segment = a_copy(tmp_path, some_bytes(SIZE))
    cache = DigestCache(ENTRY_OVERHEAD_BYTES)
    for _ in range(2):
        assert cache.get(location, location.keys(segment), found(segment)) is not None
    assert store.gets == 2


def test_a_missing_manifest_is_requested_once_in_a_while(
    tmp_path: Path, store: CountingStore, location: Location
) -> None:
    segment, now_s = a_copy(tmp_path, b"log"), 1000.0
    cache, keys = DigestCache(MIB, clock=lambda: now_s), location.keys(segment)
    manifest = store.get(keys.manifest)
    store.delete([keys.manifest])
    for _ in range(10):
        with pytest.raises(RemoteResourceNotFoundError):
            cache.get(location, keys, found(segment))
    assert store.gets == 1 + 1
    store.put(keys.manifest, manifest)
    now_s += MISSING_S
    assert cache.get(location, keys, found(segment)) is not None
    assert store.gets == 1 + 2


def test_cached_missing_manifests_count_towards_the_limit(
    tmp_path: Path, store: CountingStore, location: Location
) -> None:
    segment = a_copy(tmp_path, b"log")
    cache, keys = DigestCache(2 * ENTRY_OVERHEAD_BYTES), location.keys(segment)
    store.delete([keys.manifest])
    for number in (0, 1, 2, 0):
        with pytest.raises(RemoteResourceNotFoundError):
            cache.get(location, keys, replace(found(segment), attempt=f"{number:016x}"))
    assert store.gets == 4


def test_digests_must_match_the_attempt_and_its_metadata(
    tmp_path: Path, location: Location
) -> None:
    segment = a_copy(tmp_path, some_bytes(SIZE))
    cache, keys, right = DigestCache(MIB), location.keys(segment), found(segment)
    for wrong in (
        replace(right, attempt="00c0ffee00c0ffee"),
        replace(right, log_size_bytes=SIZE - 1000),
        replace(right, manifest_digest=bytes(16)),
    ):
        with pytest.raises(CorruptSegmentError, match="not the manifest that the metadata"):
            cache.get(location, keys, wrong)
    assert cache.get(location, keys, right) is not None


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(b'"chunk_crc32c":[', b'"chunk_crc32c":[1,', id="one too many"),
        pytest.param(b'"chunk_crc32c":[', b'"chunk_crc32c":[99999', id="a number too large"),
    ],
)
def test_a_manifest_without_a_digest_for_each_chunk_is_none(
    tmp_path: Path, location: Location, before: bytes, after: bytes
) -> None:
    segment = a_copy(tmp_path, some_bytes(SIZE))
    (manifest,) = tmp_path.rglob("*.manifest")
    manifest.write_bytes(manifest.read_bytes().replace(before, after))
    with pytest.raises(CorruptSegmentError, match="not a manifest"):
        DigestCache(MIB).get(location, location.keys(segment), found(segment))


def test_equal_and_corrupt_parts_are_counted(tmp_path: Path) -> None:
    def parts() -> list[float]:
        name = "sediment_rsm_verified_parts_total"
        return [published(name, {"result": r}) for r in ("equal", "corrupt")]

    def moved(read: Callable[[], object]) -> list[float]:
        before = parts()
        read()
        return [now - then for now, then in zip(parts(), before, strict=True)]

    settings = RsmSettings(backend="filesystem", directory=tmp_path, verify_reads="always")
    with closing(build_manager(settings)) as rsm:
        metadata = copied(rsm, Files(some_bytes(SIZE)))
        assert moved(lambda: list(rsm.fetch_log_segment(metadata, 0))) == [4, 0]
        (log,) = tmp_path.rglob("*.log")
        content = bytearray(log.read_bytes())
        content[MIB] ^= 1
        log.write_bytes(content)

        def read_changed() -> None:
            with pytest.raises(CorruptSegmentError):
                list(rsm.fetch_log_segment(metadata, 0))

        assert moved(read_changed) == [1, 1]
