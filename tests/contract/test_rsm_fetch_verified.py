"""Test fetches from a real S3 store whose bytes have changed: `verify_reads`."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from services.api.errors import (
    CorruptSegmentError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.backends.protocol import MAX_SMALL_OBJECT_BYTES, StorageBackend
from services.rsm.digests import RunningDigest
from services.rsm.factory import build_manager
from services.rsm.layout import Manifest
from services.rsm.manager import ObjectRemoteStorageManager
from services.rsm.settings import RsmSettings
from services.rsm.verification import SAMPLE_EVERY
from tests.contract.remote_storage_manager_contract import (
    MIB,
    Files,
    copied,
    fetched,
    index,
    some_bytes,
)
from tests.harness.eventually import eventually
from tests.harness.faults import Answer
from tests.harness.http_proxy import HttpProxy

# The last chunk is a short one.
SIZE = 3 * MIB + 1000
INDEX_SIZE = 2 * MIB + 1


Verifying = Callable[[str], ObjectRemoteStorageManager]


@pytest.fixture
def rsm(proxy: HttpProxy, settings: RsmSettings) -> Iterator[Verifying]:
    """Return a function that builds RSM with a setting of verify_reads, behind the proxy."""
    with ExitStack() as cleanup:

        def build(verify_reads: str) -> ObjectRemoteStorageManager:
            changes = {"endpoint": proxy.address, "verify_reads": verify_reads}
            return cleanup.enter_context(
                closing(build_manager(settings.model_copy(update=changes)))
            )

        yield build


@pytest.fixture
def files() -> Files:
    indexes = {kind: some_bytes(1000, at) for at, kind in enumerate(IndexType)}
    return Files(some_bytes(SIZE), {**indexes, IndexType.OFFSET: some_bytes(INDEX_SIZE)})


@pytest.fixture
def segment(settings: RsmSettings, files: Files) -> Iterator[RemoteLogSegmentMetadata]:
    """Provide a segment copied without the proxy."""
    with closing(build_manager(settings)) as manager:
        yield copied(manager, files)


@pytest.fixture
def change(backend: StorageBackend, settings: RsmSettings) -> Callable[[str, int], None]:
    """Return a function that changes one byte of the only object of a kind."""

    def change(kind: str, position: int) -> None:
        (key,) = (key for key in backend.list_keys(settings.prefix) if key.endswith(kind))
        with closing(backend.fetch(key, 0, position)) as chunks:
            before = b"".join(chunks)
        whole = before[:-1] + bytes([before[-1] ^ 1])
        size = {"log": SIZE, "indexes": INDEX_SIZE + 4000}[kind]
        if position + 1 < size:
            whole += b"".join(backend.fetch(key, position + 1, size - 1))
        backend.put(key, whole)

    return change


@pytest.mark.parametrize(
    ("position", "named"),
    [
        (0, "chunk 0 of the log, bytes 0 to 1048575"),
        (MIB - 1, "chunk 0 of the log, bytes 0 to 1048575"),
        (MIB, "chunk 1 of the log, bytes 1048576 to 2097151"),
        (SIZE - 1, f"chunk 3 of the log, bytes 3145728 to {SIZE - 1}"),
    ],
)
def test_a_changed_byte_is_named_by_its_chunk_before_the_chunk_is_given_out(
    rsm: Verifying,
    segment: RemoteLogSegmentMetadata,
    files: Files,
    change: Callable[[str, int], None],
    position: int,
    named: str,
) -> None:
    change("log", position)
    given = bytearray()
    with pytest.raises(CorruptSegmentError, match=named) as caught:
        take(rsm("always").fetch_log_segment(segment, 0), given)
    assert str(segment.remote_log_segment_id) in str(caught.value)
    assert len(given) <= position // MIB * MIB
    assert files.log.startswith(given)


def test_chunks_beside_a_changed_one_are_read(
    rsm: Verifying,
    segment: RemoteLogSegmentMetadata,
    files: Files,
    change: Callable[[str, int], None],
) -> None:
    change("log", MIB + 5)
    manager = rsm("always")
    assert fetched(manager, segment, 0, MIB - 1) == files.log[:MIB]
    assert fetched(manager, segment, 2 * MIB) == files.log[2 * MIB :]
    with pytest.raises(CorruptSegmentError, match="chunk 1 of the log"):
        fetched(manager, segment, MIB, 2 * MIB - 1)


@pytest.mark.parametrize(
    ("first", "last"),
    [(MIB + 1, 2 * MIB - 1), (MIB, 2 * MIB - 2), (MIB + 6, MIB + 6), (2 * MIB - 9, 3 * MIB)],
)
def test_a_part_of_a_chunk_is_verified_with_the_chunk(
    rsm: Verifying,
    segment: RemoteLogSegmentMetadata,
    files: Files,
    change: Callable[[str, int], None],
    first: int,
    last: int,
) -> None:
    assert fetched(rsm("always"), segment, first, last) == files.log[first : last + 1]
    change("log", MIB + 5)
    given = bytearray()
    with pytest.raises(CorruptSegmentError, match="chunk 1 of the log"):
        take(rsm("always").fetch_log_segment(segment, first, last), given)
    assert not given


@pytest.mark.parametrize("position", [0, INDEX_SIZE - 1])
def test_a_changed_index_is_named_before_its_last_bytes_are_given_out(
    rsm: Verifying,
    segment: RemoteLogSegmentMetadata,
    files: Files,
    change: Callable[[str, int], None],
    position: int,
) -> None:
    change("indexes", position)
    manager, given = rsm("always"), bytearray()
    with pytest.raises(CorruptSegmentError, match=f"OFFSET index, bytes 0 to {INDEX_SIZE - 1}"):
        take(manager.fetch_index(segment, IndexType.OFFSET), given)
    assert len(given) < INDEX_SIZE
    for kind in (kind for kind in IndexType if kind is not IndexType.OFFSET):
        assert index(manager, segment, kind) == files.indexes[kind]


def test_the_manifest_is_asked_for_once(
    rsm: Verifying, proxy: HttpProxy, segment: RemoteLogSegmentMetadata, files: Files
) -> None:
    manager = rsm("always")
    for _ in range(3):
        assert fetched(manager, segment) == files.log
        for kind in IndexType:
            assert index(manager, segment, kind) == files.indexes[kind]
    assert_gets(proxy, log=3, manifest=1)


def test_of_sampled_reads_one_of_many_is_verified(
    rsm: Verifying,
    proxy: HttpProxy,
    segment: RemoteLogSegmentMetadata,
    change: Callable[[str, int], None],
) -> None:
    manager = rsm("sampled")
    change("log", SIZE - 1)
    reads = SAMPLE_EVERY - 1
    for _ in range(reads):
        fetched(manager, segment, MIB)
    assert_requests(proxy, GetObject=reads)
    with pytest.raises(CorruptSegmentError, match="chunk 3"):
        fetched(manager, segment, MIB)
    assert_requests(proxy, GetObject=reads + 2)


@pytest.mark.parametrize("verify_reads", ["off", "sampled"])
def test_index_is_verified_with_any_setting(
    rsm: Verifying,
    segment: RemoteLogSegmentMetadata,
    change: Callable[[str, int], None],
    verify_reads: str,
) -> None:
    change("indexes", 5)
    manager = rsm(verify_reads)
    for _ in range(3):
        with pytest.raises(CorruptSegmentError, match="OFFSET index"):
            index(manager, segment, IndexType.OFFSET)


def test_the_default_verifies_each_read_of_a_log(
    settings: RsmSettings,
    segment: RemoteLogSegmentMetadata,
    change: Callable[[str, int], None],
) -> None:
    change("log", MIB)
    with closing(build_manager(settings)) as manager:
        for _ in range(3):
            with pytest.raises(CorruptSegmentError, match="chunk 1 of the log"):
                fetched(manager, segment)


def test_off_verifies_no_log(
    rsm: Verifying,
    proxy: HttpProxy,
    segment: RemoteLogSegmentMetadata,
    change: Callable[[str, int], None],
) -> None:
    manager = rsm("off")
    change("log", MIB)
    for _ in range(SAMPLE_EVERY):
        fetched(manager, segment)
    assert_requests(proxy, GetObject=SAMPLE_EVERY)


def test_a_manifest_that_cannot_be_read_now_is_retriable(
    rsm: Verifying, proxy: HttpProxy, segment: RemoteLogSegmentMetadata, files: Files
) -> None:
    manager = rsm("always")
    proxy.faults.add(Answer(503), operation="GetObject", skip=1)
    with pytest.raises(RetriableRemoteStorageError):
        fetched(manager, segment)
    assert fetched(manager, segment) == files.log


def test_another_attempts_manifest_is_data_loss(
    rsm: Verifying,
    proxy: HttpProxy,
    backend: StorageBackend,
    settings: RsmSettings,
    segment: RemoteLogSegmentMetadata,
) -> None:
    """The segment may have been deleted and copied again while an old client continues to read."""
    (key,) = (key for key in backend.list_keys(settings.prefix) if key.endswith(".manifest"))
    attempt = (segment.custom_metadata or b"")[3:11].hex()
    other = backend.get(key).replace(attempt.encode(), b"00c0ffee00c0ffee")
    backend.put(key, other)
    manager = rsm("always")
    for _ in range(3):
        with pytest.raises(CorruptSegmentError, match="describes attempt 00c0ffee00c0ffee"):
            fetched(manager, segment)
    assert_requests(proxy, GetObject=4)


def test_another_segments_objects_under_this_segments_keys_are_data_loss(
    rsm: Verifying,
    backend: StorageBackend,
    settings: RsmSettings,
    segment: RemoteLogSegmentMetadata,
    files: Files,
) -> None:
    mine = {key.rpartition(".")[2]: key for key in backend.list_keys(settings.prefix)}
    with closing(build_manager(settings)) as manager:
        copied(manager, Files(some_bytes(SIZE, 99), files.indexes))
    for key in set(backend.list_keys(settings.prefix)) - set(mine.values()):
        kind = key.rpartition(".")[2]
        size = {"log": SIZE, "indexes": INDEX_SIZE + 4000}.get(kind)
        other = backend.get(key) if size is None else b"".join(backend.fetch(key, 0, size - 1))
        backend.put(mine[kind], other)
    with pytest.raises(CorruptSegmentError, match="manifest of another segment"):
        fetched(rsm("always"), segment)


def test_a_manifest_with_the_digests_of_other_bytes_is_data_loss(
    rsm: Verifying,
    backend: StorageBackend,
    settings: RsmSettings,
    segment: RemoteLogSegmentMetadata,
    change: Callable[[str, int], None],
    files: Files,
) -> None:
    """Bytes and their digests changed together: only the client's metadata reveals it."""
    (key,) = (key for key in backend.list_keys(settings.prefix) if key.endswith(".manifest"))
    change("log", 5)
    changed = bytearray(files.log)
    changed[5] ^= 1
    digest = RunningDigest()
    digest.update(bytes(changed))
    manifest = Manifest.from_bytes(backend.get(key), key)
    backend.put(key, replace(manifest, log=digest.log).to_bytes())
    with pytest.raises(CorruptSegmentError, match="not the manifest that the metadata"):
        fetched(rsm("always"), segment)


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"{",
        b"<html><body>Sign in</body></html>",
        bytes(MAX_SMALL_OBJECT_BYTES + 1),
    ],
    ids=["missing", "empty", "truncated", "a page", "too large"],
)
def test_bytes_without_their_manifest_are_data_loss(
    rsm: Verifying,
    proxy: HttpProxy,
    backend: StorageBackend,
    settings: RsmSettings,
    segment: RemoteLogSegmentMetadata,
    content: bytes | None,
) -> None:
    """All reads together request the manifest once."""
    (key,) = (key for key in backend.list_keys(settings.prefix) if key.endswith(".manifest"))
    if content is None:
        assert not backend.delete([key])
    else:
        backend.put(key, content)
    manager = rsm("always")
    for _ in range(3):
        with pytest.raises(CorruptSegmentError, match="cannot be verified"):
            fetched(manager, segment, MIB)
        with pytest.raises(CorruptSegmentError, match="cannot be verified"):
            index(manager, segment, IndexType.OFFSET)
    assert_gets(proxy, log=3, manifest=1)


def test_a_damaged_byte_names_segment_object_range_and_the_next_command(
    rsm: Verifying,
    segment: RemoteLogSegmentMetadata,
    change: Callable[[str, int], None],
    backend: StorageBackend,
    settings: RsmSettings,
) -> None:
    change("log", MIB)
    (key,) = (key for key in backend.list_keys(settings.prefix) if key.endswith(".log"))
    with pytest.raises(CorruptSegmentError) as caught:
        fetched(rsm("always"), segment, 5)
    topic = segment.topic_id_partition.topic
    for part in (
        str(segment.remote_log_segment_id),
        f"offsets {segment.start_offset} to {segment.end_offset}",
        f"bytes 5 to {SIZE - 1} of {key}",
        f"location {settings.location_id} ",
        f"bucket {settings.bucket!r}",
        f"`sediment scrub --topic {topic}`",
    ):
        assert part in str(caught.value)


@pytest.mark.parametrize("kind", ["log", "indexes"])
def test_a_missing_object_names_segment_key_and_the_next_command(
    rsm: Verifying,
    segment: RemoteLogSegmentMetadata,
    backend: StorageBackend,
    settings: RsmSettings,
    kind: str,
) -> None:
    (key,) = (key for key in backend.list_keys(settings.prefix) if key.endswith(f".{kind}"))
    assert not backend.delete([key])
    manager = rsm("always")
    read = {
        "log": lambda: fetched(manager, segment),
        "indexes": lambda: index(manager, segment, IndexType.TRANSACTION),
    }
    with pytest.raises(RemoteResourceNotFoundError) as caught:
        read[kind]()
    for part in (str(segment.remote_log_segment_id), key, "location 1 ", "`sediment scrub"):
        assert part in str(caught.value)


def test_a_segment_found_by_its_manifest_is_verified(
    rsm: Verifying, segment: RemoteLogSegmentMetadata, change: Callable[[str, int], None]
) -> None:
    change("log", SIZE - 1)
    with pytest.raises(CorruptSegmentError, match="chunk 3"):
        fetched(rsm("always"), replace(segment, custom_metadata=None))


def take(pieces: Iterator[bytes], given: bytearray) -> None:
    for piece in pieces:
        given += piece


def assert_gets(proxy: HttpProxy, **counts: int) -> None:
    """Wait for so many GETs of each kind of object; those of indexes depend on the time."""
    eventually(lambda: _gets(proxy) == Counter(counts))


def _gets(proxy: HttpProxy) -> Counter[str]:
    kinds = (request.target.partition("?")[0].rpartition(".")[2] for request in proxy.requests)
    return Counter(kind for kind in kinds if kind != "indexes")


def assert_requests(proxy: HttpProxy, **counts: int) -> None:
    """Wait, because the client may finish a request a moment before the proxy counts it."""
    eventually(lambda: proxy.counts() == Counter(counts))
