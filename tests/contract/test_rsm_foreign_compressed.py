"""Read segments that Aiven's plugin compressed."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from services.api.errors import CorruptSegmentError, NotServedError
from services.api.remote_storage_manager import IndexType
from services.api.segments import RemoteLogSegmentMetadata
from services.rsm.factory import build_manager
from tests.contract.remote_storage_manager_contract import MIB, Files, fetched, index, some_bytes
from tests.harness.foreign_tiers import (
    ForeignTier,
    aiven_files,
    compressed_log,
    compressed_manifest,
    imported,
    packed_sizes,
)

FILES = Files(some_bytes(1_000))


def compressed_tier(
    directory: Path, files: Files, chunk_bytes: int
) -> tuple[ForeignTier, RemoteLogSegmentMetadata, list[bytes]]:
    """Store one segment in a directory as Aiven's plugin does with compression."""
    tier, row = aiven_files(directory), imported(files)
    frames = compressed_log(files.log, chunk_bytes)
    stored = replace(files, log=b"".join(frames))
    tier.store(row, stored, compressed_manifest(files, chunk_bytes, [len(f) for f in frames]))
    return tier, row, frames


@pytest.mark.parametrize("chunk_bytes", [1, 100, 4_095, 4_096, 1_000_000])
def test_a_compressed_segment_is_read_as_it_was(tmp_path: Path, chunk_bytes: int) -> None:
    log = b"".join(number.to_bytes(2) for number in range(2_048))
    files = replace(FILES, log=log)
    tier, row, _ = compressed_tier(tmp_path, files, chunk_bytes)
    with closing(build_manager(tier.settings)) as rsm:
        assert fetched(rsm, row) == log
        for start, last in [(0, 0), (99, 100), (100, 199), (150, 1_234), (4_095, 4_095)]:
            assert fetched(rsm, row, start, last) == log[start : last + 1]
        assert index(rsm, row, IndexType.LEADER_EPOCH) == FILES.indexes[IndexType.LEADER_EPOCH]


def test_a_large_compressed_chunk_is_sent_in_pieces(tmp_path: Path) -> None:
    files = replace(FILES, log=some_bytes(5 * MIB + 1))
    tier, row, _ = compressed_tier(tmp_path, files, 4 * MIB)
    with closing(build_manager(tier.settings)) as rsm:
        pieces = list(rsm.fetch_log_segment(row, 1))
    assert b"".join(pieces) == files.log[1:]
    assert max(len(piece) for piece in pieces) <= MIB


def test_a_compressed_chunk_that_is_damaged_is_named(tmp_path: Path) -> None:
    files = replace(FILES, log=some_bytes(1_000))
    tier, row, frames = compressed_tier(tmp_path, files, 400)
    damaged = bytes([frames[1][0] ^ 1]) + frames[1][1:]
    tier.backend.put(f"{tier.stem(row)}.log", frames[0] + damaged + frames[2])
    with closing(build_manager(tier.settings)) as rsm:
        assert fetched(rsm, row, 0, 399) == files.log[:400]
        with pytest.raises(CorruptSegmentError, match="bytes 400 to 799"):
            fetched(rsm, row, 400, 500)


@pytest.mark.parametrize(
    ("changes", "error", "said"),
    [
        ({"transformedChunks": "***"}, CorruptSegmentError, "its list of chunks"),
        ({"transformedChunks": "AAAA"}, CorruptSegmentError, "its list of chunks"),
        ({"transformedChunks": packed_sizes([20, 20])}, CorruptSegmentError, "its list of chunks"),
        ({"transformedChunks": packed_sizes([1] * 9_999)}, CorruptSegmentError, "list of chunks"),
        ({"transformedChunks": packed_sizes([20, 0, 20])}, CorruptSegmentError, "list of chunks"),
        ({"transformedChunks": packed_sizes([9, 9, 9])}, CorruptSegmentError, "bytes 0 to 399"),
        ({"originalChunkSize": 65 * MIB}, NotServedError, "1 compressed chunks of 68157440"),
    ],
)
def test_a_list_of_compressed_chunks_that_cannot_be_read_is_named(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], said: str
) -> None:
    files = replace(FILES, log=bytes(1_000))
    tier, row, frames = compressed_tier(tmp_path, files, 400)
    manifest = compressed_manifest(files, 400, [len(frame) for frame in frames])
    manifest["chunkIndex"] |= changes
    tier.store(row, replace(files, log=b"".join(frames)), manifest)
    with closing(build_manager(tier.settings)) as rsm, pytest.raises(error, match=said):
        fetched(rsm, row)
