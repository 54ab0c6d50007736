"""Write a Kafka log directory of incompressible batches, of any size."""

import base64
import os
import struct
import uuid
from pathlib import Path

from crc32c import crc32c

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
