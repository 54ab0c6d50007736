"""Read fuzzed records: decompressed by each codec, and decoded for people."""

import gzip
from collections.abc import Iterator, Sequence
from typing import Any

import lz4.frame
import snappy
import zstandard

from services.api.remote_log_manager import FetchError, FetchPart, RecordSource
from services.client.records import (
    ReadFailedError,
    ReadOptions,
    UnreadableBatchError,
    decoded,
)
from services.common.inflate import Codec, DamagedDataError, InflatedTooLargeError, inflate
from services.records.batches import BatchError, walk_batches
from services.records.decode import UnreadableRecordsError, decompressed, records_of
from tests.harness.parsers.of_logs import Content, bundled_files, with_right_crcs
from tests.harness.parsers.target import Target
from tests.unit.rlm.kafka_bytes import NAME, batch

_LIMIT_BYTES = 1024 * 1024
_MAY_READ_AHEAD_BYTES = 1024 * 1024


def _inflate(data: bytes) -> None:
    codec = Codec(data[0] % len(Codec)) if data else Codec.NONE
    found = inflate(codec, data[1:], _LIMIT_BYTES)
    assert codec is Codec.NONE or len(found) <= _LIMIT_BYTES + _MAY_READ_AHEAD_BYTES


def _inflatable() -> Sequence[bytes]:
    text = b"records " * 40
    bomb = bytes(4 * _LIMIT_BYTES)
    return [
        *(bytes([Codec.GZIP]) + gzip.compress(each, mtime=0) for each in (text, bomb)),
        *(bytes([Codec.SNAPPY]) + snappy.compress(each) for each in (text,)),
        *(bytes([Codec.LZ4]) + lz4.frame.compress(each) for each in (text, bomb)),
        *(bytes([Codec.ZSTD]) + zstandard.compress(each) for each in (text, bomb)),
    ]


class _Answer:
    """Answer each fetch with the same batches."""

    def __init__(self, batches: bytes) -> None:
        self._batches = batches

    def fetch(self, request: Any) -> Iterator[FetchPart]:
        yield FetchPart(NAME, FetchError.NONE, "", 1, 1, 0, (self._batches,), RecordSource.LOCAL)


def _decode(data: bytes) -> None:
    """Decode the batches once; those that cannot be decoded are left out."""
    manager: Any = _Answer(with_right_crcs(data))
    left_out = list[UnreadableBatchError]()
    options = ReadOptions(_LIMIT_BYTES)
    for record in decoded(manager, NAME, 0, options, left_out.append):
        assert isinstance(record.offset, int)
        assert isinstance(record.timestamp_ms, int)


def _records() -> Sequence[bytes]:
    return [batch(0), *bundled_files("*/*.log")()]


def _decode_batches(data: bytes) -> None:
    """Decode the batches one by one; raise the last refusal."""
    content, refused = with_right_crcs(data), None
    for each in walk_batches(Content(content), 0, len(content), 0, verify=True):
        try:
            decompressed(each, _LIMIT_BYTES)
            offsets = [record.offset for record in records_of(each, _LIMIT_BYTES)]
        except UnreadableRecordsError as e:
            refused = e
            continue
        assert all(each.base_offset <= offset <= each.last_offset for offset in offsets)
    if refused is not None:
        raise refused


TARGETS = (
    Target("record_columns", _decode_batches, (BatchError, UnreadableRecordsError), _records),
    Target("inflate", _inflate, (InflatedTooLargeError, DamagedDataError), _inflatable),
    Target("records", _decode, (ReadFailedError,), _records),
)
