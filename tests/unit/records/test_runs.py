"""Runs have the same batches as a walk over the segment, and end before what is wrong."""

from collections.abc import Callable, Iterator
from pathlib import Path
from struct import pack_into

import pytest

from services.records.batches import BatchError, FileWindow, walk_batches
from services.records.runs import RUN_BYTES, BatchRun, SegmentBytes, runs_from
from tests.unit.rlm.kafka_bytes import batch, old_message

BATCHES = [batch(3 * n, 3, payload=bytes([n]) * (n * 37 % 400)) for n in range(60)]
LOG = b"".join(BATCHES)
END = 3 * len(BATCHES)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def read(
    path: Path,
    data: bytes,
    offset: int = 0,
    end_offset: int = END,
    admit: Callable[[int], bool] = lambda _: True,
    read_ahead: int = 1 << 20,
) -> Iterator[BatchRun]:
    path.write_bytes(data)
    with FileWindow(path, read_ahead) as window:
        segment = SegmentBytes(window, 0, len(data), end_offset)
        yield from runs_from(segment, offset, None, admit)


@pytest.mark.parametrize("read_ahead", [1, 61, 100, 700, 5000, 1 << 20])
@pytest.mark.parametrize(("offset", "end_offset"), [(0, END), (91, END), (0, 92), (60, 63)])
def test_runs_have_the_batches_of_a_walk(
    log: Path, read_ahead: int, offset: int, end_offset: int
) -> None:
    runs = list(read(log, LOG, offset, end_offset, read_ahead=read_ahead))
    with FileWindow(log) as window:
        walked = list(walk_batches(window, 0, len(LOG), 0, verify=True))
    expected = [b for b in walked if b.last_offset >= offset and b.last_offset < end_offset]
    assert [each for run in runs for each in run.batches()] == expected
    assert [bytes(run.data) for run in runs] == [
        LOG[run.position : run.next_position] for run in runs
    ]
    assert runs[-1].last_offset == expected[-1].last_offset


def test_what_is_in_memory_is_one_run(log: Path) -> None:
    assert len(list(read(log, LOG))) == 1
    assert len(list(read(log, LOG, read_ahead=1))) == len(BATCHES)


def test_a_run_is_bounded_and_a_long_batch_is_alone(log: Path) -> None:
    short = [batch(n, payload=b"x" * 100_000) for n in range(6)]
    long = batch(6, payload=b"x" * (2 * RUN_BYTES))
    data = b"".join([*short, long, batch(7), batch(8)])
    runs = list(read(log, data, end_offset=9, read_ahead=len(data)))
    assert [run.last_offset for run in runs] == [1, 3, 5, 6, 8]
    assert all(run.size_bytes <= RUN_BYTES for run in runs if run.last_offset != 6)


@pytest.mark.parametrize("read_ahead", [1, 1 << 20])
def test_each_batch_is_counted_once_and_the_first_refused_ends_the_read(
    log: Path, read_ahead: int
) -> None:
    counted: list[int] = []

    def admit(size: int) -> bool:
        counted.append(size)
        return len(counted) <= 10

    runs = list(read(log, LOG, admit=admit, read_ahead=read_ahead))
    assert counted == [len(each) for each in BATCHES[:11]]
    assert b"".join(run.data for run in runs) == b"".join(BATCHES[:10])


def _flipped(data: bytearray, at: int) -> None:
    data[at + len(BATCHES[20]) - 1] ^= 1


def _of_magic_1(data: bytearray, at: int) -> None:
    old = old_message(60, 1)
    data[at : at + len(old)] = old


def _of_magic_3(data: bytearray, at: int) -> None:
    data[at + 16] = 3  # The CRC does not cover it.


def _out_of_order(data: bytearray, at: int) -> None:
    pack_into(">q", data, at, 57)


def _of_no_length(data: bytearray, at: int) -> None:
    pack_into(">i", data, at + 8, -12)
    pack_into(">I", data, at + 17, 0)  # The CRC of no bytes.


def _cut_off(data: bytearray, at: int) -> None:
    del data[at + 70 :]


def _too_long(data: bytearray, at: int) -> None:
    pack_into(">i", data, at + 8, 2**31 - 1)


DAMAGES = [_flipped, _of_magic_1, _of_magic_3, _out_of_order, _of_no_length, _cut_off, _too_long]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("read_ahead", [1, 300, 1 << 20])
def test_the_batches_before_a_damaged_one_come_first_and_then_the_error_of_a_walk(
    log: Path, damage: Callable[[bytearray, int], None], read_ahead: int
) -> None:
    position, data = len(b"".join(BATCHES[:20])), bytearray(LOG)
    damage(data, position)
    got: list[BatchRun] = []
    with pytest.raises(BatchError) as caught:
        got.extend(read(log, bytes(data), read_ahead=read_ahead))
    assert b"".join(run.data for run in got) == LOG[:position]
    with FileWindow(log) as window, pytest.raises(BatchError) as expected:
        list(walk_batches(window, 0, len(data), 0, verify=True))
    assert (caught.value.kind, caught.value.position) == (expected.value.kind, position)
    assert str(caught.value) == str(expected.value)
