"""Make record batches that inflate to far more than their size."""

import gzip
from functools import cache
from struct import pack

import lz4.frame
import snappy
import zstandard
from crc32c import crc32c
from kafka.record import MemoryRecordsBuilder

from services.common.inflate import Codec
from tests.unit.rlm.kafka_bytes import unsigned_varint, varint

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
