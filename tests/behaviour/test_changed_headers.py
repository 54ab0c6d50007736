"""Test that no reader gets a batch of which any field of the header has changed in the store."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from struct import calcsize
from typing import Any

import pytest

from services.api.errors import CorruptSegmentError
from services.api.remote_log_manager import FetchError, IsolationLevel
from services.client.records import ReadFailedError, decoded
from services.rlm.manager import BrokerRemoteLogManager
from services.rsm.factory import build_manager
from services.rsm.settings import RsmSettings
from tests.harness.doors import DOORS, opened
from tests.harness.ship_stack import Stack, fetch, lose_rolled_segments
from tests.unit.rlm.kafka_bytes import NAME, PartitionFiles, batch

FIELDS = {
    "base offset": "q",
    "length": "i",
    "leader epoch": "i",
    "magic": "b",
    "crc": "I",
    "attributes": "h",
    "last offset delta": "i",
    "base timestamp": "q",
    "max timestamp": "q",
    "producer id": "q",
    "producer epoch": "h",
    "base sequence": "i",
    "records": "i",
}
OUTSIDE_THE_CRC = ("base offset", "length", "leader epoch", "magic")
PAYLOAD = bytes(100_000)
"""So much that a small read asks for a part of the log only."""

SECOND = len(batch(0, 5, payload=PAYLOAD))
"""The position of the second batch of a segment, with offsets 5 to 9."""


def bits_of(field: str) -> list[int]:
    """Return the numbers of all bits of a field, from the beginning of the header."""
    names = list(FIELDS)
    before = calcsize(">" + "".join(FIELDS[each] for each in names[: names.index(field)]))
    return [8 * before + bit for bit in range(8 * calcsize(f">{FIELDS[field]}"))]


def flip(log: Path, bit: int, batch_at: int = SECOND) -> None:
    content = bytearray(log.read_bytes())
    content[batch_at + bit // 8] ^= 0x80 >> bit % 8
    log.write_bytes(content)


@pytest.fixture
def shipped(stack: Stack) -> Path:
    """Ship a log, and lose what is in the tier; return the object with offsets 0 to 9."""
    files = PartitionFiles(stack.log_dir)
    files.segment(0, [batch(0, 5, payload=PAYLOAD), batch(5, 5, payload=PAYLOAD)])
    files.snapshot(10)
    files.segment(10, [batch(10, 5)])
    files.epochs((3, 0))
    stack.ship()
    lose_rolled_segments(stack.log_dir)
    return stack.object_of(stack.segments()[0])


@contextmanager
def reading(stack: Stack, **settings_of_rsm: Any) -> Iterator[BrokerRemoteLogManager]:
    settings = RsmSettings(backend="filesystem", directory=stack.objects, **settings_of_rsm)
    with closing(build_manager(settings)) as rsm:
        yield stack.rlm(rsm=rsm)


@pytest.mark.parametrize("field", FIELDS)
def test_no_bit_of_a_header_changes_unseen(stack: Stack, shipped: Path, field: str) -> None:
    bits = bits_of(field)
    with reading(stack) as rlm:
        for bit in bits[:: max(len(bits) // 8, 1)]:
            flip(shipped, bit)
            for offset in (0, 5, 7):
                (part,) = fetch(rlm, offset, max_bytes=1)
                assert part.error is FetchError.CORRUPT_MESSAGE
                assert not part.record_batches
                assert f"bytes 0 to {2 * SECOND - 1}" in part.error_message
                assert f"sediment scrub --topic {NAME.topic}" in part.error_message
            flip(shipped, bit)
        assert fetch(rlm, 0, max_bytes=1)[0].record_batches


@pytest.mark.parametrize("field", FIELDS)
def test_a_reader_compares_each_batch_with_its_segment(
    stack: Stack, shipped: Path, field: str
) -> None:
    """So it is with a copy of an earlier release, which has no digests."""
    with reading(stack, verify_reads="off") as rlm:
        for bit in bits_of(field):
            flip(shipped, bit)
            (part,) = fetch(rlm, 5, max_bytes=1)
            assert part.error is FetchError.CORRUPT_MESSAGE, bit
            assert not part.record_batches
            assert f"bytes {SECOND} to " in part.error_message
            assert f"sediment scrub --topic {NAME.topic}" in part.error_message
            flip(shipped, bit)


@pytest.mark.parametrize("field", OUTSIDE_THE_CRC)
@pytest.mark.parametrize("door", DOORS)
def test_no_door_lets_a_changed_header_pass(
    stack: Stack, shipped: Path, field: str, door: str
) -> None:
    flip(shipped, bits_of(field)[-3])
    with reading(stack) as rlm, opened(door, rlm) as reader:
        answer = reader.fetch(NAME, 0, 1, IsolationLevel.READ_UNCOMMITTED)
        assert (answer.error, answer.records) == (2, b"")


@pytest.mark.parametrize("field", OUTSIDE_THE_CRC)
def test_consumer_and_fetch_command_end_at_a_changed_header(
    stack: Stack, shipped: Path, field: str
) -> None:
    flip(shipped, bits_of(field)[-3])
    with reading(stack) as rlm:
        with pytest.raises(ReadFailedError) as caught:
            list(decoded(rlm, NAME, 0))
        assert caught.value.error is FetchError.CORRUPT_MESSAGE


@pytest.mark.parametrize("field", OUTSIDE_THE_CRC)
@pytest.mark.parametrize("last", [SECOND + 60, None], ids=["a range", "to the end"])
def test_rsm_gives_the_plugin_no_part_of_a_chunk_with_a_changed_header(
    stack: Stack, shipped: Path, field: str, last: int | None
) -> None:
    """A broker reads from the position of a batch that its offset index names."""
    flip(shipped, bits_of(field)[-3])
    settings = RsmSettings(backend="filesystem", directory=stack.objects)
    with closing(build_manager(settings)) as rsm:
        for start in (0, SECOND):
            with pytest.raises(CorruptSegmentError, match=r"chunk 0 of .*`sediment scrub --topic"):
                next(rsm.fetch_log_segment(stack.segments()[0], start, last))
