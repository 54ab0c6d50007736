"""Decompress the records of a batch, up to a limit of bytes.

Every part of the product that decompresses records does it here: a small batch can inflate to
gigabytes, and what it inflates to is known only by inflating it.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator
from enum import IntEnum
from io import BytesIO
from threading import local
from typing import Any

import lz4.frame
import snappy
import zstandard

DEFAULT_LIMIT_BYTES = 64 * 1024 * 1024
_PIECE_BYTES = 256 * 1024

# A stream of blocks as xerial's library for Java writes it; other clients write one bare block.
_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER_BYTES = 16
_LENGTH_BYTES = 4
_MAX_PREAMBLE_BYTES = 5
_LEAST_WINDOW_BYTES = 1024


class Codec(IntEnum):
    """The compression of a batch: the lowest three bits of its attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class InflatedTooLargeError(Exception):
    """The error if data inflates to more bytes than the limit."""


class DamagedDataError(Exception):
    """The error if data is not what its codec writes."""


def inflate(codec: Codec, data: bytes, limit_bytes: int) -> bytes:
    """Decompress `data`; hold at most about `limit_bytes` of the result in memory.

    Raises:
        InflatedTooLargeError: more than `limit_bytes` come out.
        DamagedDataError: the data is damaged or cut off. Of zstd data that is cut off, the bytes
            before the cut are returned.
    """
    return b"".join(inflated(codec, data, limit_bytes))


def inflated(codec: Codec, data: bytes, limit_bytes: int) -> Iterator[bytes]:
    """Decompress `data` piece by piece; hold one piece in memory. Raises as `inflate`."""
    try:
        if codec is Codec.NONE:
            yield data
        elif codec is Codec.SNAPPY:
            yield from _inflate_snappy(data, limit_bytes)
        else:
            yield from _read_all(_STREAMS[codec](BytesIO(data)), limit_bytes)
    except (OSError, EOFError, RuntimeError, zlib.error, zstandard.ZstdError) as e:
        raise DamagedDataError(f"not valid {codec.name.lower()} data ({e})") from e


def compressed(data: bytes) -> bytes:
    """Compress with gzip; equal for equal data."""
    return gzip.compress(data, mtime=0)


def compressed_frame(data: bytes | memoryview, level: int) -> bytes:
    """Compress with zstd, as one frame that declares its size."""
    # Making a compressor takes longer than a small frame.
    compressor: zstandard.ZstdCompressor | None = getattr(_compressors, f"level_{level}", None)
    if compressor is None:
        compressor = zstandard.ZstdCompressor(level, write_content_size=True)
        setattr(_compressors, f"level_{level}", compressor)
    return compressor.compress(data)


def inflated_frame(data: bytes | memoryview, size_bytes: int) -> bytes:
    """Decompress a frame of compressed_frame that must have `size_bytes` bytes, and nothing else.

    Raises:
        DamagedDataError: it declares another size, has more or less, or is no such frame.
    """
    try:
        declared = zstandard.get_frame_parameters(data).content_size
        if declared != size_bytes:
            raise DamagedDataError(f"its frame declares {declared} bytes")
        inflater = zstandard.ZstdDecompressor(max_window_size=max(size_bytes, _LEAST_WINDOW_BYTES))
        inflated = inflater.decompress(data, allow_extra_data=False)
    except zstandard.ZstdError as e:
        raise DamagedDataError(str(e)) from e
    if len(inflated) != size_bytes:
        raise DamagedDataError(f"its frame has {len(inflated)} bytes")
    return inflated


_compressors = local()
_STREAMS: dict[Codec, Callable[[BytesIO], Any]] = {
    Codec.GZIP: lambda data: gzip.GzipFile(fileobj=data),
    Codec.LZ4: lz4.frame.LZ4FrameFile,
    Codec.ZSTD: lambda data: zstandard.ZstdDecompressor().stream_reader(
        data, read_across_frames=True
    ),
}


def _read_all(stream: Any, limit_bytes: int) -> Iterator[bytes]:
    size_bytes = 0
    while piece := stream.read(min(_PIECE_BYTES, limit_bytes + 1 - size_bytes)):
        size_bytes += len(piece)
        _require_within(size_bytes, limit_bytes)
        yield piece


def _inflate_snappy(data: bytes, limit_bytes: int) -> Iterator[bytes]:
    if not data.startswith(_XERIAL_MAGIC):
        _require_within(_snappy_size(data), limit_bytes)
        yield _inflate_block(data)
        return
    size_bytes = 0
    at = _XERIAL_HEADER_BYTES
    while at < len(data):
        start = at + _LENGTH_BYTES
        at = start + int.from_bytes(data[at:start], "big")
        block = data[start:at]
        if not block or at > len(data):
            raise EOFError("a block is cut off")
        size_bytes += _snappy_size(block)
        _require_within(size_bytes, limit_bytes)
        yield _inflate_block(block)


def _snappy_size(block: bytes) -> int:
    """Read the size of the result, a varint in front of the block; no block inflates to more."""
    size = 0
    for number, byte in enumerate(block[:_MAX_PREAMBLE_BYTES]):
        size |= (byte & 0x7F) << 7 * number
        if byte < 0x80:
            return size
    raise EOFError("a block without its size")


def _inflate_block(block: bytes) -> bytes:
    try:
        return bytes(snappy.decompress(block))
    except snappy.UncompressError as e:
        raise DamagedDataError(f"not valid snappy data ({e})") from e


def _require_within(size_bytes: int, limit_bytes: int) -> None:
    if size_bytes > limit_bytes:
        raise InflatedTooLargeError
