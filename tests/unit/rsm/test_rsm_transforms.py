"""Test what is done with the chunks of a copy: that all of it is undone, and that changes show."""

import random
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from typing import Final
from uuid import UUID

import pytest
import zstandard
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from hypothesis import given, settings
from hypothesis import strategies as st

from services.api.errors import CorruptSegmentError
from services.api.ids import RemoteLogSegmentId, TopicIdPartition
from services.api.remote_storage_manager import (
    DIGEST_CHUNK_BYTES,
    IndexType,
    SegmentFile,
    SegmentFileHeader,
)
from services.api.segments import RemoteLogSegmentMetadata
from services.common.inflate import Codec
from services.rsm.digests import RunningDigest
from services.rsm.keys import DataKey, WrappedKey
from services.rsm.layout import Manifest, key_use
from services.rsm.stored_form import StoredChunks, StoredForm, chunk_sizes
from services.rsm.transforms import (
    CompressedBatches,
    CopyTransform,
    Fetch,
    TransformedCopy,
    TransformPolicy,
    joined,
)
from tests.contract.remote_storage_manager_contract import MIB, a_segment, some_bytes
from tests.harness.synthetic_log import honest_batch

KEY: Final = DataKey(WrappedKey("k1", b"wrapped"), bytes(range(32)))
OTHER_KEY: Final = DataKey(WrappedKey("k1", b"wrapped"), bytes(32))
SEGMENT = a_segment(topic_id=UUID(int=7))
INDEXES = {kind: kind.name.encode() * 40 for kind in IndexType}
ZSTD, AES, PLAIN = TransformPolicy(3), TransformPolicy(encrypts=True), TransformPolicy()
BOTH = TransformPolicy(3, encrypts=True)
WAYS = pytest.mark.parametrize("policy", [ZSTD, AES, BOTH], ids=["zstd", "aes", "both"])


def text(size: int) -> bytes:
    """Return bytes that shrink."""
    return (b'{"order": 4711, "status": "paid"}\n' * (size // 34 + 1))[:size]


@dataclass(frozen=True)
class Stored:
    """A transformed copy, in memory."""

    manifest: Manifest
    log: bytes
    indexes: bytes

    @property
    def form(self) -> StoredForm:
        assert self.manifest.stored is not None
        return self.manifest.stored

    def copy(self, key: DataKey | None = KEY) -> TransformedCopy:
        return TransformedCopy(self.manifest, self.form, key)

    def read(self, start: int = 0, last: int | None = None) -> bytes:
        last = self.manifest.log.size_bytes - 1 if last is None else last
        return b"".join(self.copy().log(of(self.log))(start, last))

    def read_indexes(self) -> bytes:
        size = sum(each.size_bytes for each in self.manifest.indexes.values())
        return b"".join(self.copy().indexes(of(self.indexes))(0, size - 1))


def of(content: bytes, piece: int = 300_000) -> Fetch:
    """Return a store that has this object, and sends it in pieces."""

    def fetch(start: int, last: int) -> Generator[bytes, None, None]:
        assert 0 <= start <= last < len(content)
        for at in range(start, last + 1, piece):
            yield content[at : min(at + piece, last + 1)]

    return fetch


def stored(
    policy: TransformPolicy,
    log: bytes,
    indexes: Mapping[IndexType, bytes] = INDEXES,
    segment: RemoteLogSegmentMetadata = SEGMENT,
    attempt: str = "00c0ffee00c0ffee",
    deployment_id: str = "shop",
) -> Stored:
    transform = CopyTransform(policy, key_use(deployment_id, segment, attempt), KEY)
    objects, digests = list[bytes](), list[RunningDigest]()
    for file in SegmentFile:
        content = log if file is SegmentFile.LOG else indexes[IndexType[file.name]]
        digest = RunningDigest()
        digest.update(content)
        digests.append(digest)
        header = SegmentFileHeader(file, len(content))
        pieces = of(content, 77_777)(0, len(content) - 1) if content else iter(())
        objects.append(b"".join(transform.stored(header, pieces)))
    of_indexes = dict(zip(IndexType, (digest.whole for digest in digests[1:]), strict=True))
    manifest = Manifest(
        segment, attempt, 1, digests[0].log, of_indexes, deployment_id, stored=transform.form
    )
    return Stored(manifest, objects[0], b"".join(objects[1:]))


@WAYS
@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), st.integers(1, 3 * MIB // 2)), max_size=3),
    st.randoms(use_true_random=False),
)
def test_every_range_is_what_was_copied(
    policy: TransformPolicy, runs: list[tuple[bool, int]], chance: random.Random
) -> None:
    log = b"".join(text(size) if shrinks else some_bytes(size) for shrinks, size in runs)
    copy = stored(policy, log)
    near = [at + by for at in range(0, len(log) + 1, MIB) for by in (-1, 0, 1)]
    for _ in range(6):
        ends = [chance.choice([*near, chance.randrange(len(log) + 1)]) for _ in range(2)]
        start, last = sorted(min(max(end, 0), len(log) - 1) for end in ends)
        if log:
            assert copy.read(start, last) == log[start : last + 1]
    assert copy.read_indexes() == b"".join(INDEXES.values())


@WAYS
def test_joined_indexes_are_read_across_files_and_chunks(policy: TransformPolicy) -> None:
    sizes = {IndexType.OFFSET: 2 * MIB + 1, IndexType.TIMESTAMP: MIB, IndexType.TRANSACTION: 0}
    indexes = {kind: some_bytes(sizes.get(kind, 10), at) for at, kind in enumerate(IndexType)}
    copy, whole = stored(policy, b"log", indexes), b"".join(indexes.values())
    read = copy.copy().indexes(of(copy.indexes))
    borders = [0, MIB, 2 * MIB, 2 * MIB + 1, 3 * MIB + 1, len(whole)]
    near = sorted({at + by for at in borders for by in (-1, 0, 1)} & set(range(len(whole))))
    for start in near:
        for last in (each for each in near if each >= start):
            assert b"".join(read(start, last)) == whole[start : last + 1]


def test_a_range_asks_for_its_own_chunks_only() -> None:
    copy = stored(BOTH, text(3 * MIB))
    asked = list[tuple[int, int]]()

    def fetch(start: int, last: int) -> Generator[bytes, None, None]:
        asked.append((start, last))
        return of(copy.log)(start, last)

    list(copy.copy().log(fetch)(MIB, 2 * MIB - 1))
    first, second, _ = copy.form.log.sizes_bytes
    assert asked == [(first, first + second - 1)]


def test_a_chunk_that_does_not_shrink_is_stored_as_it_is() -> None:
    log = text(MIB) + some_bytes(MIB)
    copy = stored(ZSTD, log)
    shrunk, same = copy.form.log.sizes_bytes
    assert shrunk < MIB // 10
    assert same == MIB
    assert copy.log.endswith(log[MIB:])


def test_without_transforms_the_manifest_says_nothing_of_them() -> None:
    copy = stored(PLAIN, text(MIB))
    assert copy.manifest.stored is None
    assert b"stored" not in copy.manifest.to_bytes()
    assert copy.log == text(MIB)


@WAYS
def test_a_manifest_with_transforms_is_read_back(policy: TransformPolicy) -> None:
    copy = stored(policy, text(2 * MIB + 1))
    form = copy.form
    both = replace(copy.manifest, replaced_indexes=copy.manifest.indexes, replaced_stored=form)
    for manifest in (copy.manifest, both):
        read = Manifest.from_bytes(manifest.to_bytes(), "key")
        assert read == manifest
        assert read.custom_metadata(1).transformed
        assert read.custom_metadata(1).replaces == (manifest is both)


def test_a_replaced_copy_is_read_as_it_is_stored() -> None:
    """The copy that replaced it may have other indexes, and other transforms."""
    before, after = stored(ZSTD, text(MIB)), stored(PLAIN, text(MIB))
    custom = before.manifest.custom_metadata(1)
    manifest = replace(
        after.manifest,
        metadata=replace(SEGMENT, custom_metadata=custom.to_bytes()),
        attempt="ff" * 8,
        replaced_indexes=before.manifest.indexes,
        replaced_stored=before.manifest.stored,
    )
    read = Manifest.from_bytes(manifest.to_bytes(), "key").of_copy(custom)
    assert read is not None
    assert (read.attempt, read.stored) == (custom.attempt, before.manifest.stored)


# What whoever can write to the store may do

Damage = Callable[[bytes], bytes]


def flipped(at: int) -> Damage:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@WAYS
@pytest.mark.parametrize("at", [0, 5, 200, -1])
def test_a_flipped_bit_is_found(policy: TransformPolicy, at: int) -> None:
    copy = stored(policy, text(MIB + 5000))
    at %= len(copy.log)
    changed = replace(copy, log=flipped(at)(copy.log))
    with pytest.raises(CorruptSegmentError, match=r"chunk [01] of the log"):
        changed.read()
    changed = replace(copy, indexes=flipped(at % len(copy.indexes))(copy.indexes))
    with pytest.raises(CorruptSegmentError, match=r"chunk 0 of the [A-Z_]+ index"):
        changed.read_indexes()


def test_chunks_of_one_size_cannot_be_swapped() -> None:
    copy = stored(AES, some_bytes(2 * MIB))
    half = len(copy.log) // 2
    swapped = replace(copy, log=copy.log[half:] + copy.log[:half])
    with pytest.raises(CorruptSegmentError, match="chunk 0 of the log fails its authentication"):
        swapped.read()


OTHER_ID = RemoteLogSegmentId(SEGMENT.topic_id_partition, UUID(int=9))
OTHER_PARTITION = RemoteLogSegmentId(
    TopicIdPartition(SEGMENT.topic_id_partition.topic_id, "orders", 4),
    SEGMENT.remote_log_segment_id.id,
)
OTHER_TOPIC = RemoteLogSegmentId(
    TopicIdPartition(UUID(int=8), "orders", 3), SEGMENT.remote_log_segment_id.id
)


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"segment": replace(SEGMENT, remote_log_segment_id=OTHER_ID)}, id="segment"),
        pytest.param(
            {"segment": replace(SEGMENT, remote_log_segment_id=OTHER_PARTITION)}, id="partition"
        ),
        pytest.param({"segment": replace(SEGMENT, remote_log_segment_id=OTHER_TOPIC)}, id="topic"),
        pytest.param({"deployment_id": "shop2"}, id="deployment"),
        pytest.param({"attempt": "00" * 8}, id="attempt"),
        pytest.param({"log": some_bytes(2 * MIB)}, id="longer"),
    ],
)
def test_chunks_of_another_copy_fail_even_with_the_same_key_and_a_forged_manifest(
    other: dict[str, object],
) -> None:
    """One key is never used for two copies: this is what holds if it is, all the same."""
    log = some_bytes(MIB)
    mine = stored(AES, log)
    theirs = stored(AES, **{"log": log, **other})  # type: ignore[arg-type]
    first = StoredChunks((MIB + 16,), theirs.form.log.crc32c[:1])
    manifest = replace(mine.manifest, stored=replace(mine.form, log=first))
    forged = Stored(manifest, theirs.log[: MIB + 16], b"")
    with pytest.raises(CorruptSegmentError, match=r"fails its authentication.* are those of"):
        forged.read()


def test_an_index_cannot_take_the_place_of_another_one() -> None:
    same = dict.fromkeys(IndexType, b"index")
    copy = stored(AES, b"log", same)
    size = len(copy.indexes) // len(IndexType)
    swapped = replace(copy, indexes=copy.indexes[size : 2 * size] + copy.indexes[size:])
    with pytest.raises(CorruptSegmentError, match="chunk 0 of the OFFSET index fails"):
        swapped.read_indexes()


def test_a_wrong_key_is_named_and_so_is_none() -> None:
    copy = stored(AES, b"log")
    with pytest.raises(CorruptSegmentError, match="fails its authentication"):
        list(copy.copy(OTHER_KEY).log(of(copy.log))(0, 2))
    with pytest.raises(CorruptSegmentError, match="its manifest has no data key"):
        copy.copy(None)


def test_chunks_are_encrypted_as_they_always_were() -> None:
    """What was stored years ago must be read: names, order and lengths of what is bound stay."""
    copy = stored(AES, b"a log", attempt="00c0ffee00c0ffee")
    id, topic_id = SEGMENT.remote_log_segment_id.id.hex, UUID(int=7).hex
    of_copy = f'["sediment data key", "shop", "{topic_id}", 3, "{id}", "00c0ffee00c0ffee"]'
    of_chunk = b"\0\0\0\0", b"\0\0\0\0", b"\0\0\0\1", b"\0\0\0\0\0\0\0\5"
    aead = AESGCM(KEY.derived("chunks"))
    assert aead.decrypt(bytes(12), copy.log, b"".join((*of_chunk, of_copy.encode()))) == b"a log"


# Frames of zstd that no copy has written


def inflated(frame: bytes, size: int) -> bytes:
    """Read a chunk of `size` bytes that is stored as this frame, by its manifest."""
    copy = stored(ZSTD, text(size))
    digest = RunningDigest()
    digest.update(frame)
    chunks = StoredChunks((len(frame),), (digest.whole.crc32c,))
    manifest = replace(copy.manifest, stored=replace(copy.form, log=chunks))
    return Stored(manifest, frame, b"").read()


def frame_of(data: bytes, **parameters: int) -> bytes:
    return zstandard.ZstdCompressor(
        compression_params=zstandard.ZstdCompressionParameters(
            **{"write_content_size": 1, **parameters}
        )
    ).compress(data)


def test_a_frame_that_a_copy_could_have_written_is_inflated() -> None:
    assert inflated(frame_of(text(MIB)), MIB) == text(MIB)


@pytest.mark.parametrize(
    ("frame", "fault"),
    [
        (frame_of(bytes(8 * MIB)), "declares 8388608 bytes"),
        (frame_of(text(MIB - 1)), "declares 1048575 bytes"),
        (frame_of(text(MIB), write_content_size=0), "declares [0-9]+ bytes"),
        (frame_of(text(MIB)) + frame_of(text(MIB)), "inflated"),
        (frame_of(text(MIB))[:-3], "inflated"),
        (b"no frame at all", "inflated"),
    ],
)
def test_other_frames_are_refused_by_name(frame: bytes, fault: str) -> None:
    with pytest.raises(CorruptSegmentError, match=f"chunk 0 of the log.*{fault}"):
        inflated(frame, MIB)


def test_a_frame_that_inflates_beyond_its_declared_size_is_refused() -> None:
    frame = bytearray(frame_of(text(MIB), write_checksum=0))
    # A frame of one segment: descriptor, then the size in 4 bytes.
    assert int.from_bytes(frame[5:9], "little") == MIB
    frame[5:9] = (MIB // 2).to_bytes(4, "little")
    with pytest.raises(CorruptSegmentError, match="cannot be inflated to 524288 bytes"):
        inflated(bytes(frame), MIB // 2)


# Batches that are compressed already


def batches(codec: Codec, count: int, first: int = 0) -> bytes:
    values = [text(500)] * 20
    return b"".join(honest_batch(first + 20 * at, values, codec) for at in range(count))


def tried(log: bytes, chunk: int = DIGEST_CHUNK_BYTES) -> list[bool]:
    """Return for each chunk of a log whether it is worth the attempt to compress it."""
    walk = CompressedBatches()
    return [not walk.fill(log[at : at + chunk]) for at in range(0, len(log), chunk)]


@pytest.mark.parametrize("codec", [codec for codec in Codec if codec is not Codec.NONE])
@pytest.mark.parametrize("chunk", [23, 61, 100, 1000, 4096])
def test_compressed_batches_are_not_compressed_again(codec: Codec, chunk: int) -> None:
    log = batches(codec, 50)
    assert not any(tried(log, chunk))


def test_from_the_first_other_batch_on_chunks_are_compressed() -> None:
    before = batches(Codec.LZ4, 40)
    log = before + batches(Codec.NONE, 40, 800) + batches(Codec.LZ4, 40, 1600)
    found = tried(log, 1000)
    assert found.index(True) in (len(before) // 1000, len(before) // 1000 + 1)
    assert all(found[found.index(True) :])
    assert all(tried(batches(Codec.NONE, 40)))


def test_bytes_that_are_no_batches_are_tried() -> None:
    assert all(tried(bytes(5000), 1000))
    assert all(tried(some_bytes(5000), 1000))


def test_an_uncompressed_log_shrinks_and_a_compressed_one_stays() -> None:
    for codec, shrinks in ((Codec.NONE, True), (Codec.GZIP, False)):
        log = batches(codec, 300)
        assert (len(stored(ZSTD, log).log) < len(log)) == shrinks


# How bytes are cut


@given(st.lists(st.binary(max_size=9)), st.integers(1, 7))
def test_pieces_are_joined_to_chunks(pieces: list[bytes], size: int) -> None:
    whole = b"".join(pieces)
    sizes = [min(size, len(whole) - at) for at in range(0, len(whole), size)]
    chunks = [bytes(chunk) for chunk in joined(iter(pieces), sizes)]
    assert [len(chunk) for chunk in chunks] == sizes
    assert b"".join(chunks) == whole


def test_what_the_source_checks_at_its_end_is_not_skipped() -> None:
    def source() -> Generator[bytes, None, None]:
        yield b"abc"
        raise CorruptSegmentError("at the end")

    with pytest.raises(CorruptSegmentError, match="at the end"):
        list(joined(source(), [2, 1]))


@given(st.integers(0, 5 * MIB))
def test_the_chunks_of_a_file_have_its_size(size: int) -> None:
    sizes = chunk_sizes(size)
    assert sum(sizes) == size
    assert set(sizes[:-1]) <= {MIB}
