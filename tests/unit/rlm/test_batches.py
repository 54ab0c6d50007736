import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.api.remote_log_manager import ProblemKind
from services.records.batches import (
    HEADER_BYTES,
    MAX_BATCH_BYTES,
    Batch,
    BatchError,
    FileWindow,
    StreamWindow,
    walk_batches,
)
from tests.unit.rlm.kafka_bytes import batch, old_message


def walked(path: Path, data: bytes, *, verify: bool = True, read_ahead: int = 64) -> list[Batch]:
    path.write_bytes(data)
    with FileWindow(path, read_ahead) as window:
        return list(walk_batches(window, 0, len(data), 0, verify=verify))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def failure(path: Path, data: bytes, *, verify: bool = True) -> BatchError:
    with pytest.raises(BatchError) as caught:
        walked(path, data, verify=verify)
    return caught.value


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("read_ahead", [1, 61, 100, 1 << 20])
def test_every_batch_is_found_with_any_read_ahead(log: Path, verify: bool, read_ahead: int) -> None:
    data = batch(0, 3) + batch(3, payload=b"x" * 300) + batch(4, 2)
    found = walked(log, data, verify=verify, read_ahead=read_ahead)
    assert [(b.base_offset, b.last_offset) for b in found] == [(0, 2), (3, 3), (4, 5)]
    assert [b.next_position for b in found] == [68, 68 + 361, len(data)]


def test_a_verified_batch_carries_all_of_its_bytes(log: Path) -> None:
    first, second = batch(0, payload=b"x" * 500), batch(1)
    assert [bytes(b.data) for b in walked(log, first + second)] == [first, second]


@pytest.mark.parametrize("cut", [1, 8, 17, 60, 61, 67])
def test_a_batch_that_is_cut_off_is_named_by_position_and_offset(log: Path, cut: int) -> None:
    first = batch(0, 5)
    error = failure(log, first + batch(5)[:cut])
    assert (error.kind, error.position, error.offset) == (
        ProblemKind.TRUNCATED_BATCH,
        len(first),
        5,
    )


def test_a_changed_byte_is_a_wrong_crc(log: Path) -> None:
    first, second = batch(0, 5), bytearray(batch(5))
    second[-1] ^= 1
    error = failure(log, first + second)
    assert (error.kind, error.position, error.offset) == (
        ProblemKind.CORRUPT_BATCH,
        len(first),
        5,
    )
    assert len(walked(log, first + second, verify=False)) == 2


@pytest.mark.parametrize("magic", [0, 1])
def test_an_old_message_format_is_recognized(log: Path, magic: int) -> None:
    error = failure(log, batch(0) + old_message(1, magic))
    assert (error.kind, error.offset) == (ProblemKind.OLD_MESSAGE_FORMAT, 1)


def test_zeroes_are_corrupt_not_old(log: Path) -> None:
    assert failure(log, batch(0) + bytes(100)).kind is ProblemKind.CORRUPT_BATCH


def test_an_unknown_magic_is_corrupt(log: Path) -> None:
    assert failure(log, batch(0, magic=3)).kind is ProblemKind.CORRUPT_BATCH


@pytest.mark.parametrize("second", [batch(4), batch(0, 5)])
def test_offsets_that_go_back_are_corrupt(log: Path, second: bytes) -> None:
    error = failure(log, batch(0, 5) + second, verify=False)
    assert error.kind is ProblemKind.CORRUPT_BATCH


def test_a_batch_below_the_base_offset_is_corrupt(log: Path) -> None:
    log.write_bytes(batch(0))
    with FileWindow(log) as window, pytest.raises(BatchError):
        list(walk_batches(window, 0, 68, 1, verify=True))


@pytest.mark.parametrize("length", [-1, 0, HEADER_BYTES - 13, MAX_BATCH_BYTES])
def test_an_impossible_length_is_corrupt_and_nothing_is_read_for_it(log: Path, length: int) -> None:
    data = bytearray(batch(0))
    data[8:12] = length.to_bytes(4, "big", signed=True)
    assert failure(log, bytes(data)).kind is ProblemKind.CORRUPT_BATCH


def test_a_longer_batch_is_over_a_limit_and_not_damaged(log: Path) -> None:
    """Its header is read, so that the log does not end before it."""
    data = bytearray(batch(0, 5))
    data[8:12] = (MAX_BATCH_BYTES + 1 - 12).to_bytes(4, "big")
    log.write_bytes(data)
    os.truncate(log, MAX_BATCH_BYTES + 1)
    with log.open("ab") as file:
        file.write(batch(5))
    size = log.stat().st_size
    with FileWindow(log, HEADER_BYTES) as window:
        found = list(walk_batches(window, 0, size, 0, verify=False))
        assert [each.base_offset for each in found] == [0, 5]
        with pytest.raises(BatchError, match=r"over the limit .* max\.message\.bytes") as refused:
            next(walk_batches(window, 0, size, 0, verify=True))
    assert refused.value.kind is ProblemKind.LIMIT_EXCEEDED


def test_a_file_that_shrank_meanwhile_is_truncated(log: Path) -> None:
    log.write_bytes(batch(0) + batch(1)[:-1])
    with FileWindow(log) as window, pytest.raises(BatchError) as caught:
        list(walk_batches(window, 0, 2 * len(batch(0)), 0, verify=True))
    assert caught.value.kind is ProblemKind.TRUNCATED_BATCH


class Store:
    """Streams ranges of `data` in chunks, and notes which ranges were asked for."""

    def __init__(self, data: bytes, chunk: int) -> None:
        self.data = data
        self.chunk = chunk
        self.ranges: list[tuple[int, int]] = []

    def open(self, start: int, end: int) -> Iterator[bytes]:
        self.ranges.append((start, end))
        for at in range(start, end + 1, self.chunk):
            yield self.data[at : min(at + self.chunk, end + 1)]


@pytest.mark.parametrize("chunk", [1, 7, 61, 68, 1000])
@pytest.mark.parametrize("read_ahead", [1, 100, 10_000])
def test_a_stream_is_walked_like_a_file(chunk: int, read_ahead: int) -> None:
    data = b"".join(batch(n, payload=b"p" * (n * 13)) for n in range(20))
    store = Store(data, chunk)
    window = StreamWindow(store.open, len(data), read_ahead)
    found = list(walk_batches(window, 0, len(data), 0, verify=True))
    assert b"".join(b.data for b in found) == data


def test_a_stream_is_opened_no_further_than_the_reader_needs() -> None:
    data = b"".join(batch(n) for n in range(100))
    store = Store(data, 64)
    window = StreamWindow(store.open, len(data), 200)
    walk = walk_batches(window, 68, len(data), 1, verify=True)
    assert [next(walk).base_offset, next(walk).base_offset] == [1, 2]
    assert store.ranges == [(68, 267)]


def test_a_stream_shorter_than_the_segment_ends_in_a_truncated_batch() -> None:
    data = batch(0) + batch(1)
    store = Store(data[:-3], 64)
    window = StreamWindow(store.open, len(data), 1000)
    with pytest.raises(BatchError) as caught:
        list(walk_batches(window, 0, len(data), 0, verify=True))
    assert caught.value.kind is ProblemKind.TRUNCATED_BATCH
