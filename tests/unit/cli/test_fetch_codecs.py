"""Test that records of every compression of Kafka are decoded."""

from collections.abc import Iterator
from typing import cast
from uuid import UUID

import pytest
from kafka.record import MemoryRecordsBuilder

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    FetchError,
    FetchPart,
    FetchRequest,
    RecordSource,
    RemoteLogManager,
)
from services.cli.fetch import records

TP = TopicIdPartition(UUID(int=1), "t", 0)
VALUE = b"value " * 1000
LEADER_EPOCH = 0  # what this producer writes


class OneBatch:
    """Answers every fetch with one batch, which is the whole log."""

    def __init__(self, compression_type: int) -> None:
        builder = MemoryRecordsBuilder(
            magic=2, compression_type=compression_type, batch_size=1024 * 1024
        )
        for number in range(3):
            builder.append(timestamp=number, key=b"\xff", value=VALUE, headers=[("h", b"x")])
        builder.close()
        self._batch = bytes(builder.buffer())

    def fetch(self, request: FetchRequest) -> Iterator[FetchPart]:
        yield FetchPart(TP, FetchError.NONE, "", 3, 3, 0, (self._batch,), RecordSource.REMOTE)


@pytest.mark.parametrize(
    "compression_type", range(5), ids=("none", "gzip", "snappy", "lz4", "zstd")
)
def test_records_of_any_codec_are_printed(compression_type: int) -> None:
    rlm = cast(RemoteLogManager, OneBatch(compression_type))
    assert list(records(rlm, TP, 1)) == [
        {
            "offset": offset,
            "timestamp_ms": offset,
            "key_base64": "/w==",
            "value": VALUE.decode(),
            "headers": [{"name": "h", "value": "x"}],
            "leader_epoch": LEADER_EPOCH,
            "source": RecordSource.REMOTE.value,
            "kind": "DATA",
        }
        for offset in (1, 2)
    ]
