"""The largest segment that Kafka makes, 2 GiB less a byte: copied, and read back with every digest
looked at."""

import random
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest

from services.api.remote_storage_manager import (
    IndexType,
    LogSegmentData,
    SegmentChunk,
    SegmentFile,
    SegmentFileHeader,
)
from services.api.validation import INT32_MAX
from services.rsm.factory import build_manager
from services.rsm.settings import RsmSettings
from tests.contract.remote_storage_manager_contract import MIB, Files, a_segment

SIZE_BYTES = INT32_MAX


def a_log() -> Iterator[bytes]:
    """The same each time, in chunks of a MiB, no two of them alike."""
    twice = memoryview(random.Random(0).randbytes(2 * MIB))
    for number in range(-(-SIZE_BYTES // MIB)):
        start = number * 509 % MIB
        yield bytes(twice[start : start + min(MIB, SIZE_BYTES - number * MIB)])


@pytest.mark.deep
def test_the_largest_segment_is_copied_and_read_back(tmp_path: Path) -> None:
    indexes = Files(b"")
    data = LogSegmentData(
        [SegmentFileHeader(SegmentFile.LOG, SIZE_BYTES), *indexes.headers()[1:]],
        chain((SegmentChunk(SegmentFile.LOG, each) for each in a_log()), indexes.chunks()),
    )
    settings = RsmSettings(backend="filesystem", directory=tmp_path, verify_reads="always")
    with closing(build_manager(settings)) as rsm:
        rsm.check()
        segment = a_segment(SIZE_BYTES)
        segment = replace(segment, custom_metadata=rsm.copy_log_segment_data(segment, data))
        read, pending = rsm.fetch_log_segment(segment, 0), b""
        for chunk in a_log():
            while len(pending) < len(chunk):
                pending += next(read)
            assert pending[: len(chunk)] == chunk
            pending = pending[len(chunk) :]
        assert (pending, next(read, None)) == (b"", None)
        assert b"".join(rsm.fetch_log_segment(segment, SIZE_BYTES - 5)) == chunk[-5:]
        index = b"".join(rsm.fetch_index(segment, IndexType.OFFSET))
        assert index == indexes.indexes[IndexType.OFFSET]
        rsm.delete_log_segment_data(segment)
    assert not list(tmp_path.rglob("*.log"))
