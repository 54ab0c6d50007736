from pathlib import Path
from struct import pack

import pytest

from services.records.batches import FileWindow, walk_batches
from services.records.index_files import OffsetIndex
from services.records.runs import SegmentBytes, runs_from
from services.records.segment_indexes import IndexBuilder
from services.rlm.fetch.segment_reader import entry_in_file
from tests.unit.rlm.kafka_bytes import batch

ENTRIES = ((4, 68), (9, 136), (14, 204))


@pytest.fixture
def index(tmp_path: Path) -> Path:
    path = tmp_path / "index"
    path.write_bytes(b"".join(pack(">ii", *entry) for entry in ENTRIES))
    return path


LOOK_UPS = [
    (100, None),
    (103, None),
    (104, (104, 68)),
    (108, (104, 68)),
    (109, (109, 136)),
    (10**9, (114, 204)),
]


@pytest.mark.parametrize(("offset", "expected"), LOOK_UPS)
@pytest.mark.parametrize("preallocated", [0, 8, 4096])
def test_a_local_look_up_is_the_greatest_entry_at_or_below(
    index: Path, offset: int, expected: tuple[int, int] | None, preallocated: int
) -> None:
    index.write_bytes(index.read_bytes() + bytes(preallocated))
    assert entry_in_file(index, 100, offset) == expected


@pytest.mark.parametrize(("offset", "expected"), LOOK_UPS)
def test_a_remote_look_up_is_the_same(
    index: Path, offset: int, expected: tuple[int, int] | None
) -> None:
    assert OffsetIndex(index.read_bytes(), 100, 1000).lookup(offset) == expected


@pytest.mark.parametrize("data", [None, b"", bytes(4096)])
def test_without_entries_a_walk_begins_at_the_beginning(index: Path, data: bytes | None) -> None:
    index.unlink()
    if data is not None:
        index.write_bytes(data)
    assert entry_in_file(index, 100, 500) is None


@pytest.mark.parametrize("entries", [((9, 68), (4, 136)), ((4, 136), (9, 68)), ((4, 1000),)])
def test_an_index_out_of_order_is_refused(entries: tuple[tuple[int, int], ...]) -> None:
    data = b"".join(pack(">ii", *entry) for entry in entries)
    with pytest.raises(ValueError, match=r"follows|position"):
        OffsetIndex(data, 100, 1000)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "log"
    path.write_bytes(b"".join(batch(base, 5) for base in range(0, 20, 5)))
    return path


def found(log: Path, offset: int, entry: tuple[int, int] | None) -> list[int]:
    with FileWindow(log) as window:
        segment = SegmentBytes(window, 0, window.size_bytes)
        runs = runs_from(segment, offset, entry, lambda _: True)
        return [each.base_offset for run in runs for each in run.batches()]


@pytest.mark.parametrize(
    ("offset", "entry"),
    [(12, None), (12, (9, 68)), (14, (14, 136)), (10, (9, 68))],
)
def test_a_read_begins_with_the_batch_that_holds_the_offset(
    log: Path, offset: int, entry: tuple[int, int] | None
) -> None:
    assert found(log, offset, entry) == [10, 15]


@pytest.mark.parametrize("entry", [(12, 204), (9, 100), (9, 10_000), (9, 136)])
def test_an_entry_that_lies_is_not_believed(log: Path, entry: tuple[int, int]) -> None:
    assert found(log, 12, entry) == [10, 15]


def test_bytes_of_a_batch_that_is_not_wanted_are_not_read(log: Path) -> None:
    with FileWindow(log, 1) as window:
        segment = SegmentBytes(window, 0, window.size_bytes)
        damaged = bytearray(log.read_bytes())
        damaged[-1] ^= 1
        log.write_bytes(damaged)
        answers = iter([True, True, True, False])
        runs = runs_from(segment, 0, None, lambda _: next(answers))
        taken = [each.base_offset for run in runs for each in run.batches()]
    assert taken == [0, 5, 10]


def test_an_entry_is_due_when_more_than_the_interval_was_written(log: Path) -> None:
    size = len(batch(0, 5))
    for interval, expected in ((size - 1, 3), (size, 1), (2 * size, 1), (3 * size, 0)):
        builder = IndexBuilder(0, interval_bytes=interval)
        with FileWindow(log) as window:
            for each in walk_batches(window, 0, window.size_bytes, 0, verify=False):
                builder.observe(each)
        assert len(builder.offset_index()) == expected * 8
