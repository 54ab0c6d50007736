"""Answers to consumers are framed as kafka-python would frame them, whatever their records are."""

import pytest
from kafka.protocol.consumer import FetchResponse

from services.rlm.consumers.framing import Records

TOPIC = FetchResponse.FetchableTopicResponse
DATA = TOPIC.PartitionData


def answer_of(each_records: list[bytes]) -> FetchResponse:
    partitions = [
        DATA(
            partition_index=number,
            error_code=0,
            high_watermark=7,
            last_stable_offset=7,
            log_start_offset=0,
            aborted_transactions=[],
            preferred_read_replica=-1,
            records=records,
        )
        for number, records in enumerate(each_records)
    ]
    topics = [TOPIC(topic="payments", partitions=partitions[:2])]
    topics.append(TOPIC(topic="orders", partitions=partitions[2:]))
    return FetchResponse(throttle_time_ms=1, error_code=0, session_id=0, responses=topics)


def halves(data: bytes) -> list[memoryview]:
    return [memoryview(data)[: len(data) // 2], memoryview(data)[len(data) // 2 :]]


@pytest.mark.parametrize("version", range(4, 14))
@pytest.mark.parametrize("size", [0, 1, 126, 127, 128, 16_383, 100_000])
def test_frames_are_those_of_the_library(version: int, size: int) -> None:
    each_records = [b"\1" * size, b"", b"\2" * (2 * size), b"\3"]
    records = Records()
    framed = records.framed(
        answer_of([records.token_for(halves(r)) for r in each_records]), version, 9
    )
    plain = answer_of(each_records)
    plain.API_VERSION = version
    plain.with_header(9)
    assert b"".join(framed) == plain.encode(header=True, framed=True)


def test_small_batches_are_sent_together_and_nothing_of_their_source_is_kept() -> None:
    batches = [memoryview(bytes(64 * 1024))[:512] for _ in range(2_000)]
    records = Records()
    framed = records.framed(answer_of([records.token_for(batches)] + [b""] * 3), 11, 9)
    assert len(framed) == 4
    assert all(isinstance(each, bytes) for each in framed)
