"""Write a Kafka log directory of incompressible batches, of any size, and batches that explode."""

import base64
import gzip
import os
import struct
import uuid
from functools import cache
from pathlib import Path
from struct import pack

import lz4.frame
import snappy
import zstandard
from crc32c import crc32c
from kafka.record import MemoryRecordsBuilder

from services.common.inflate import Codec
from tests.unit.rlm.kafka_bytes import unsigned_varint, varint

BATCH_BYTES = 64 * 1024
RECORDS_PER_BATCH = 16
_HEADER = struct.Struct(">qiibI")
_CRC_BODY = struct.Struct(">hiqqqhii")
_INDEX_INTERVAL_BYTES = 4096
_BASE_TIMESTAMP_MS = 1_760_000_000_000
_EMPTY_SNAPSHOT_BODY = struct.pack(">i", 0)
_EMPTY_SNAPSHOT = struct.pack(">hI", 1, crc32c(_EMPTY_SNAPSHOT_BODY)) + _EMPTY_SNAPSHOT_BODY


def make_log_dir(
    directory: Path, partitions: int, segments: int, segment_bytes: int, topic: str = "bench"
) -> None:
    """Write `partitions` partitions with `segments` rolled segments and an empty active one each.

    Every batch has a right header and CRC; its records are random bytes, which nothing decodes.
    """
    directory.mkdir(parents=True)
    (directory / "meta.properties").write_text("version=1\nnode.id=1\ncluster.id=bench\n")
    for partition in range(partitions):
        folder = directory / f"{topic}-{partition}"
        folder.mkdir()
        (folder / "leader-epoch-checkpoint").write_text("0\n1\n0 0\n")
        offset = 0
        (folder / f"{offset:020}.log").touch()
        for _ in range(segments):
            offset = roll_segment(folder, offset, segment_bytes)
    name_anew(directory)


def roll_segment(folder: Path, base_offset: int, size_bytes: int) -> int:
    """Fill the empty active segment and roll it; return the new active segment's base offset."""
    next_offset = _write_segment(folder, base_offset, size_bytes)
    (folder / f"{next_offset:020}.log").touch()
    return next_offset


def name_anew(directory: Path) -> None:
    """Give the topic a new id, so that the tier sees another log with the same bytes."""
    text = base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()
    for folder in directory.iterdir():
        if folder.is_dir():
            (folder / "partition.metadata").write_text(f"version: 0\ntopic_id: {text}")


def _write_segment(folder: Path, base_offset: int, size_bytes: int) -> int:
    """Write a segment and its indexes; return the next segment's base offset."""
    offset, position, since_entry = base_offset, 0, 0
    index, last_timestamp_ms = bytearray(), 0
    with (folder / f"{base_offset:020}.log").open("wb") as log:
        while position < size_bytes:
            batch = _batch(offset)
            last_offset = offset + RECORDS_PER_BATCH - 1
            last_timestamp_ms = _BASE_TIMESTAMP_MS + last_offset
            if since_entry > _INDEX_INTERVAL_BYTES:
                index += struct.pack(">ii", last_offset - base_offset, position)
                since_entry = 0
            log.write(batch)
            position += len(batch)
            since_entry += len(batch)
            offset = last_offset + 1
    (folder / f"{base_offset:020}.index").write_bytes(index)
    last_entry = struct.pack(">qi", last_timestamp_ms, offset - 1 - base_offset)
    (folder / f"{base_offset:020}.timeindex").write_bytes(last_entry)
    (folder / f"{offset:020}.snapshot").write_bytes(_EMPTY_SNAPSHOT)
    return offset


def _batch(base_offset: int) -> bytes:
    timestamp_ms = _BASE_TIMESTAMP_MS + base_offset
    body = _CRC_BODY.pack(
        0,
        RECORDS_PER_BATCH - 1,
        timestamp_ms,
        timestamp_ms + RECORDS_PER_BATCH - 1,
        -1,
        -1,
        -1,
        RECORDS_PER_BATCH,
    ) + os.urandom(BATCH_BYTES)
    return _HEADER.pack(base_offset, len(body) + 9, 0, 2, crc32c(body)) + body


GIB = 1024**3
COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]
_PART_BYTES = 16 * 1024 * 1024


@cache
def bomb(codec: Codec, size_bytes: int = 2 * GIB) -> bytes:
    """Return data that inflates to `size_bytes` zeros, a multiple of 16 MiB.

    It is one compressed part again and again: every codec joins the content of such parts. Snappy
    compresses by 21 only, so it gets a block that announces the size and ends there.
    """
    if codec is Codec.SNAPPY:
        return unsigned_varint(size_bytes) + b"\0a"
    part = _part(codec, bytes(_PART_BYTES))
    return part * (size_bytes // _PART_BYTES)


def _part(codec: Codec, data: bytes) -> bytes:
    if codec is Codec.GZIP:
        return gzip.compress(data, 6)
    if codec is Codec.LZ4:
        return bytes(lz4.frame.compress(data, block_linked=False))
    return zstandard.ZstdCompressor().compress(data)


def xerial(blocks: list[bytes]) -> bytes:
    """Return a stream of compressed blocks as xerial's library for Java writes it."""
    header = b"\x82SNAPPY\x00" + pack(">ii", 1, 1)
    return header + b"".join(pack(">i", len(block)) + block for block in blocks)


def snappy_block(data: bytes) -> bytes:
    return bytes(snappy.compress(data))


def record_of_headers(count: int) -> bytes:
    """Return an uncompressed record with that many empty headers, two bytes each."""
    after_length = b"\0\0\0\1\1" + varint(count) + bytes(2 * count)
    return varint(len(after_length)) + after_length


def batch_of(codec_number: int, compressed: bytes, base_offset: int, records: int = 1) -> bytes:
    """Return a batch with a right CRC and any bytes as its compressed records."""
    last_delta = records - 1
    covered = pack(">hiqqqhii", codec_number, last_delta, 0, 0, -1, -1, -1, records) + compressed
    length = 4 + 1 + 4 + len(covered)
    return pack(">qiibI", base_offset, length, 0, 2, crc32c(covered)) + covered


def honest_batch(
    base_offset: int, values: list[bytes], codec: Codec = Codec.NONE, key: bytes = b"k"
) -> bytes:
    """Return a batch as a producer makes it."""
    builder = MemoryRecordsBuilder(magic=2, compression_type=int(codec), batch_size=1024 * 1024)
    for value in values:
        builder.append(timestamp=1, key=key, value=value, headers=[])
    builder.close()
    # The CRC does not cover the base offset, which a broker writes.
    return pack(">q", base_offset) + bytes(builder.buffer())[8:]
