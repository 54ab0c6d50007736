"""Read fuzzed files of a Kafka log: batches, indexes, snapshots, checkpoints, whole segments."""

from collections.abc import Callable, Sequence
from pathlib import Path
from struct import pack, pack_into, unpack_from
from uuid import UUID

from crc32c import crc32c

from services.api.errors import InvalidRequestError
from services.api.lineage import parse_checkpoint
from services.api.validation import INT32_MAX, INT64_MAX
from services.records.batches import HEADER_BYTES, BatchError, walk_batches
from services.records.index_files import (
    OffsetIndex,
    check_time_index,
    open_transactions,
    parse_aborted_txns,
)
from services.records.segment_indexes import Transactions
from services.rlm.copy.inspection import inspect
from services.rlm.kafka_log.checkpoints import (
    read_broker_id,
    read_offset_checkpoint,
    read_partition_metadata,
)
from services.rlm.kafka_log.partition_dir import (
    LogFileError,
    SegmentVanishedError,
    list_segments,
    read_lineage,
)
from services.rlm.kafka_log.transactions import LogTail
from tests.harness.parsers.target import LONGEST_INPUT_BYTES, Target, written
from tests.unit.rlm.kafka_bytes import (
    ABORT,
    batch,
    in_transaction,
    marker,
    old_message,
    producer_snapshot,
)

_LOG = Path(__file__).parents[2] / "data" / "kafka-log"
_CRC_AT, _CRC_COVERS_FROM = 17, 21
_SEEDS_EACH = 6
_NEXT_SEGMENT = 3


def bundled_files(pattern: str) -> Callable[[], Sequence[bytes]]:
    def read() -> Sequence[bytes]:
        found = {path.read_bytes()[:LONGEST_INPUT_BYTES] for path in sorted(_LOG.glob(pattern))}
        return sorted(found, key=len)[:_SEEDS_EACH]

    return read


class Content:
    """Offer bytes as a segment."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def read(self, position: int, length: int) -> memoryview:
        return self._data[position : position + length]


def with_right_crcs(data: bytes) -> bytes:
    """Correct the CRC of each batch, so that mutated batches come as far as their contents."""
    corrected, at = bytearray(data), 0
    while at + HEADER_BYTES <= len(corrected):
        size = unpack_from(">i", corrected, at + 8)[0] + 12
        end = at + size
        if size < HEADER_BYTES or end > len(corrected):
            break
        pack_into(">I", corrected, at + _CRC_AT, crc32c(corrected[at + _CRC_COVERS_FROM : end]))
        at = end
    return bytes(corrected)


def _read_batches(data: bytes) -> None:
    refused: BatchError | None = None
    for content, verify in ((data, False), (data, True), (with_right_crcs(data), True)):
        transactions, last = Transactions(), -1
        try:
            for each in walk_batches(Content(content), 0, len(content), 0, verify=verify):
                assert last < each.base_offset <= each.last_offset < INT64_MAX
                assert each.next_position <= len(content)
                transactions.observe(each)
                last = each.last_offset
        except BatchError as e:
            refused = e
    if refused is not None:
        raise refused


def _batches() -> Sequence[bytes]:
    made = [
        batch(0, 3) + batch(3),
        in_transaction(0, 7) + marker(1, 7, ABORT) + marker(2, 8, ABORT),
        old_message(0, 1),
        batch(0)[:-1],
    ]
    return [*made, *bundled_files("*/*.log")()]


def _read_offset_index(data: bytes) -> None:
    index = OffsetIndex(data, 1_000, INT32_MAX)
    entries = list(index)
    assert entries == sorted(entries)
    for offset in (0, 1_000, 2_000, INT64_MAX):
        found = index.lookup(offset)
        assert found is None or found[0] <= offset


def _read_time_index(data: bytes) -> None:
    """Use the last timestamp as the segment's: the other rules decide."""
    last = unpack_from(">q", data, len(data) - 12)[0] if len(data) >= 12 else -1
    check_time_index(data, 0, INT32_MAX, last)


def _read_producer_snapshot(data: bytes) -> None:
    corrected = data[:2] + pack(">I", crc32c(data[6:])) + data[6:] if len(data) >= 6 else data
    for content in (data, corrected):
        try:
            found = open_transactions(content)
        except ValueError:
            if content is corrected:
                raise
            continue
        assert all(0 <= first <= INT64_MAX for first in found.values())


def _snapshots() -> Sequence[bytes]:
    return [producer_snapshot(), producer_snapshot({1: 5, 2: 9}), *bundled_files("*/*.snapshot")()]


def _read_leader_epochs(data: bytes) -> None:
    parse_checkpoint(data.decode("ascii"))


def _read_lineage(data: bytes) -> None:
    found = read_lineage(written(data, "leader-epoch-checkpoint").parent)
    assert found.entries or not any(line.strip() for line in data.split(b"\n")[2:])


def _read_offset_checkpoint(data: bytes) -> None:
    found = read_offset_checkpoint(written(data, "replication-offset-checkpoint")) or {}
    for (_, partition), offset in found.items():
        assert 0 <= partition <= INT32_MAX
        assert 0 <= offset <= INT64_MAX


def _read_partition_metadata(data: bytes) -> None:
    found = read_partition_metadata(written(data, "partition.metadata").parent, "t", 0)
    assert isinstance(found.topic_id, UUID)


def _read_meta_properties(data: bytes) -> None:
    found = read_broker_id(written(data, "meta.properties").parent)
    assert found is None or 0 <= found <= INT32_MAX


def _inspect_segment(data: bytes) -> None:
    """Use the first part of the bytes as a log, the others as its index, times and snapshot."""
    log, *others = [*data.split(b"|SPLIT|", 3), b"", b"", b""][:4]
    content = with_right_crcs(log)
    path = written(content, f"{0:020}.log")
    for name, other in zip(("index", "timeindex", "txnindex"), others, strict=True):
        written(other, f"{0:020}.{name}")
    written(batch(_NEXT_SEGMENT), f"{_NEXT_SEGMENT:020}.log")
    written(producer_snapshot(), f"{_NEXT_SEGMENT:020}.snapshot")
    written(b"0\n1\n0 0\n", "leader-epoch-checkpoint")
    segments = list_segments(path.parent)
    found = inspect(segments, segments[0], read_lineage(path.parent), 0)
    # Zeros behind the last batch are of a preallocated file.
    assert not any(content[found.size_bytes :])
    assert 0 < found.size_bytes <= len(content) or not any(content)


def _segments() -> Sequence[bytes]:
    log = batch(0, 2, payload=bytes(5_000)) + batch(2, payload=bytes(5_000))
    index = pack(">ii", 2, len(batch(0, 2, payload=bytes(5_000))))
    times = pack(">qi", 1000, 1)
    parts = [log, index, times, b""]
    aborted = in_transaction(0, 7, 2) + marker(2, 7, ABORT)
    return [b"|SPLIT|".join(parts), log, aborted, batch(0, 3)]


def _follow_tail(data: bytes) -> None:
    """Read the end of a log whose active segment is the bytes, before and after they grow."""
    tail = LogTail()
    for size in (len(data) // 2, len(data)):
        path = written(data[:size], f"{0:020}.log")
        for segment in (f"{_NEXT_SEGMENT:020}.log", f"{_NEXT_SEGMENT:020}.snapshot"):
            path.with_name(segment).unlink(missing_ok=True)
        segments = list_segments(path.parent)
        tail.follow(segments)
        stable = tail.last_stable_offset(segments, tail.log_end_offset)
        assert 0 <= stable <= tail.log_end_offset <= INT64_MAX
        assert tail.end_position <= size


TARGETS = (
    Target("batches", _read_batches, (BatchError,), _batches),
    Target("log_tail", _follow_tail, (LogFileError, SegmentVanishedError), _batches),
    Target("segment", _inspect_segment, (LogFileError,), _segments),
    Target("offset_index", _read_offset_index, (ValueError,), bundled_files("*/*.index")),
    Target("time_index", _read_time_index, (ValueError,), bundled_files("*/*.timeindex")),
    Target("transaction_index", parse_aborted_txns, (ValueError,), bundled_files("*/*.txnindex")),
    Target("producer_snapshot", _read_producer_snapshot, (ValueError,), _snapshots),
    Target(
        "leader_epochs",
        _read_leader_epochs,
        (InvalidRequestError, UnicodeDecodeError),
        bundled_files("*/leader-epoch-checkpoint"),
    ),
    Target("lineage", _read_lineage, (LogFileError,), bundled_files("*/leader-epoch-checkpoint")),
    Target(
        "offset_checkpoint",
        _read_offset_checkpoint,
        (LogFileError,),
        bundled_files("*-offset-checkpoint"),
    ),
    Target(
        "partition_metadata",
        _read_partition_metadata,
        (LogFileError,),
        bundled_files("*/partition.metadata"),
    ),
    Target(
        "meta_properties", _read_meta_properties, (LogFileError,), bundled_files("meta.properties")
    ),
)
