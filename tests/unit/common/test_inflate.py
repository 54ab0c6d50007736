"""Test that compressed data is inflated up to a limit, and that memory stays within it."""

import gzip
import subprocess
import sys
import tracemalloc

import lz4.frame
import pytest
import zstandard

from services.common.inflate import (
    DEFAULT_LIMIT_BYTES,
    Codec,
    DamagedDataError,
    InflatedTooLargeError,
    inflate,
)
from tests.harness.synthetic_log import COMPRESSED, bomb, snappy_block, xerial

TEXT = b"some text, " * 10_000
MIB = 1024 * 1024
HONEST = {
    Codec.GZIP: gzip.compress(TEXT),
    Codec.SNAPPY: snappy_block(TEXT),
    Codec.LZ4: bytes(lz4.frame.compress(TEXT, block_linked=False)),
    Codec.ZSTD: zstandard.ZstdCompressor().compress(TEXT),
}


@pytest.mark.parametrize("codec", COMPRESSED)
def test_data_of_the_size_of_the_limit_is_inflated(codec: Codec) -> None:
    assert inflate(codec, HONEST[codec], len(TEXT)) == TEXT


@pytest.mark.parametrize("codec", COMPRESSED)
def test_one_byte_more_than_the_limit_is_refused(codec: Codec) -> None:
    with pytest.raises(InflatedTooLargeError):
        inflate(codec, HONEST[codec], len(TEXT) - 1)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_two_gibibytes_are_refused_within_the_memory_of_the_limit(codec: Codec) -> None:
    data = bomb(codec)
    tracemalloc.start()
    try:
        with pytest.raises(InflatedTooLargeError):
            inflate(codec, data, DEFAULT_LIMIT_BYTES)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < DEFAULT_LIMIT_BYTES + len(data) + 8 * MIB


# Codecs allocate in C, too, which tracemalloc does not see. The system limits all of it.
_WITHIN_ADDRESS_SPACE = """
import resource, sys
from pathlib import Path
from services.common.inflate import DEFAULT_LIMIT_BYTES, Codec, InflatedTooLargeError, inflate
from tests.harness.synthetic_log import bomb
codec = Codec(int(sys.argv[1]))
data = bomb(codec)
pages = int(Path("/proc/self/statm").read_text().split()[0])
most = pages * resource.getpagesize() + int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_AS, (most, most))
try:
    inflate(codec, data, int(sys.argv[3]) or DEFAULT_LIMIT_BYTES)
except InflatedTooLargeError:
    print("too large")
"""


def inflated_in_a_child(codec: Codec, limit_bytes: int = 0) -> subprocess.CompletedProcess[str]:
    """Inflate 2 GiB up to a limit (0: the default) in a process with little address space."""
    most = DEFAULT_LIMIT_BYTES + 32 * MIB
    return subprocess.run(
        [sys.executable, "-c", _WITHIN_ADDRESS_SPACE, *map(str, (int(codec), most, limit_bytes))],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.deep
@pytest.mark.parametrize("codec", COMPRESSED)
def test_two_gibibytes_are_refused_within_the_address_space_of_the_limit(codec: Codec) -> None:
    done = inflated_in_a_child(codec)
    assert done.stdout == "too large\n", done.stderr[-500:]


@pytest.mark.deep
def test_more_than_the_limit_does_not_fit_into_that_address_space() -> None:
    assert "MemoryError" in inflated_in_a_child(Codec.ZSTD, 1024 * MIB).stderr


def test_blocks_of_snappy_are_counted_together() -> None:
    block = snappy_block(bytes(MIB))
    assert inflate(Codec.SNAPPY, xerial([block] * 3), 3 * MIB) == bytes(3 * MIB)
    with pytest.raises(InflatedTooLargeError):
        inflate(Codec.SNAPPY, xerial([block] * 4), 3 * MIB)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_damaged_data_is_named(codec: Codec) -> None:
    with pytest.raises(DamagedDataError, match=codec.name.lower()):
        inflate(codec, b"\xff" + HONEST[codec][1:], 2 * len(TEXT))


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4])
def test_data_that_is_cut_off_is_named(codec: Codec) -> None:
    with pytest.raises(DamagedDataError, match=codec.name.lower()):
        inflate(codec, HONEST[codec][:-9], 2 * len(TEXT))


def test_zstd_that_is_cut_off_gives_no_more_than_is_there() -> None:
    assert TEXT.startswith(inflate(Codec.ZSTD, HONEST[Codec.ZSTD][:-9], 2 * len(TEXT)))


@pytest.mark.parametrize(
    "data",
    [b"", b"\xff" * 5, xerial([b""]), xerial([]) + b"\xff\xff\xff\xfc", xerial([b"\x80"])],
    ids=["empty", "endless size", "empty block", "negative length", "size cut off"],
)
def test_damaged_snappy_ends(data: bytes) -> None:
    with pytest.raises((DamagedDataError, InflatedTooLargeError)):
        inflate(Codec.SNAPPY, data, MIB)
