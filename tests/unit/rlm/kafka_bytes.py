"""Build small Kafka logs byte by byte, so that a test can break exactly one part."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from struct import pack, pack_into, unpack_from
from uuid import UUID, uuid4

from crc32c import crc32c

from services.api.ids import TopicIdPartition, uuid_to_text

TOPIC_ID = UUID("5e6cbc1e-2f4b-4f7a-9c0a-5d3d6a7f1b22")
NAME = TopicIdPartition(TOPIC_ID, "t", 0)

ABORT, COMMIT = 0, 1
TRANSACTIONAL, CONTROL = 0x10, 0x20


def unsigned_varint(number: int) -> bytes:
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def varint(number: int) -> bytes:
    """Write a zig-zag number, as records have them."""
    return unsigned_varint((number << 1) ^ (number >> 63))


def batch(
    base_offset: int,
    records: int = 1,
    *,
    payload: bytes = b"payload",
    timestamp_ms: int = 1000,
    max_timestamp_ms: int | None = None,
    producer_id: int = -1,
    base_sequence: int = -1,
    attributes: int = 0,
    magic: int = 2,
    leader_epoch: int = 0,
) -> bytes:
    """Build a batch of `records` offsets; its records are opaque bytes, as they are to RLM.

    Args:
        max_timestamp_ms: None: as timestamp_ms.
    """
    covered = pack(
        ">hiqqqhii",
        attributes,
        records - 1,
        timestamp_ms,
        timestamp_ms if max_timestamp_ms is None else max_timestamp_ms,
        producer_id,
        0,
        base_sequence,
        records,
    )
    covered += payload
    after_length = pack(">ibI", leader_epoch, magic, crc32c(covered)) + covered
    return pack(">qi", base_offset, len(after_length)) + after_length


def marker(base_offset: int, producer_id: int, kind: int) -> bytes:
    """Build a control batch that ends a transaction."""
    key, value = pack(">hh", 0, kind), pack(">hi", 0, 0)
    record = bytes([0, 0, 0, len(key) << 1]) + key + bytes([len(value) << 1]) + value + b"\0"
    payload = bytes([len(record) << 1]) + record
    return batch(
        base_offset,
        payload=payload,
        producer_id=producer_id,
        attributes=TRANSACTIONAL | CONTROL,
    )


def in_transaction(base_offset: int, producer_id: int, records: int = 1) -> bytes:
    return batch(base_offset, records, producer_id=producer_id, attributes=TRANSACTIONAL)


def old_message(offset: int, magic: int) -> bytes:
    """Build one message of format 0 or 1, without key and with an empty value."""
    body = pack(">bb", magic, 0) + (pack(">q", 1000) if magic else b"") + pack(">ii", -1, 0)
    return pack(">qi", offset, len(body) + 4) + pack(">I", 0) + body


def producer_snapshot(open_transactions: dict[int, int] | None = None) -> bytes:
    entries = b"".join(
        pack(">qhiqiqiq", producer_id, 0, 0, 0, 0, 0, 0, first)
        for producer_id, first in (open_transactions or {}).items()
    )
    counted = pack(">i", len(open_transactions or {})) + entries
    return pack(">hI", 1, crc32c(counted)) + counted


def write_log_dir(path: Path, broker_id: int = 7) -> Path:
    path.mkdir(parents=True)
    (path / "meta.properties").write_text(f"version=1\nnode.id={broker_id}\ncluster.id=c\n")
    return path


def high_watermarks(log_dir: Path, offsets: Mapping[tuple[str, int], int]) -> Path:
    """Write a replication-offset-checkpoint as a broker does: a new file replaces the old one."""
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in offsets.items()]
    written = log_dir / "replication-offset-checkpoint.tmp"
    written.write_text(f"0\n{len(lines)}\n{''.join(lines)}")
    return written.rename(log_dir / "replication-offset-checkpoint")


class PartitionFiles:
    """A partition's folder, written segment by segment as a broker leaves it."""

    def __init__(self, log_dir: Path, name: TopicIdPartition = NAME) -> None:
        self.name = name
        self.path = log_dir / f"{name.topic}-{name.partition}"
        self.path.mkdir()
        metadata = f"version: 0\ntopic_id: {uuid_to_text(name.topic_id)}"
        (self.path / "partition.metadata").write_text(metadata)
        self.epochs((0, 0))

    def epochs(self, *entries: tuple[int, int]) -> None:
        """Write the checkpoint, and the leader epochs into the batches that are there."""
        lines = [f"{epoch} {start}\n" for epoch, start in entries]
        (self.path / "leader-epoch-checkpoint").write_text(f"0\n{len(lines)}\n{''.join(lines)}")
        self._entries = entries
        for log in self.path.glob("*.log"):
            before = log.read_bytes()
            if (after := with_epochs(before, entries)) != before:
                log.write_bytes(after)

    def segment(self, base_offset: int, batches: Sequence[bytes]) -> Path:
        """Write a log with the indexes of a short one; the caller adds snapshots.

        Batches of leader epoch 0 get that of the checkpoint.
        """
        log = self.file(base_offset, ".log")
        log.write_bytes(
            b"".join(
                each if any(each[12:16]) else with_epochs(each, self._entries) for each in batches
            )
        )
        self.file(base_offset, ".index").write_bytes(b"")
        self.file(base_offset, ".timeindex").write_bytes(_time_index(base_offset, batches))
        return log

    def snapshot(self, offset: int, open_transactions: dict[int, int] | None = None) -> Path:
        path = self.file(offset, ".snapshot")
        path.write_bytes(producer_snapshot(open_transactions))
        return path

    def file(self, offset: int, suffix: str) -> Path:
        return self.path / f"{offset:020}{suffix}"


def three_segments(log_dir: Path, name: TopicIdPartition = NAME) -> PartitionFiles:
    """Write offsets 0 to 9 and 10 to 19 rolled, 20 to 24 active; batches of five."""
    files = PartitionFiles(log_dir, name)
    for base in (0, 10):
        files.segment(base, [batch(base, 5), batch(base + 5, 5)])
        files.snapshot(base + 10)
    files.segment(20, [batch(20, 5)])
    return files


def deleted(files: PartitionFiles) -> TopicIdPartition:
    """Delete the topic as the broker does; return the name under which it may be created again."""
    files.path.rename(files.path.with_name(f"{files.path.name}.{'0' * 32}-delete"))
    return replace(files.name, topic_id=uuid4())


def with_epochs(log: bytes, entries: Sequence[tuple[int, int]]) -> bytes:
    """Write leader epochs, each from its offset on, into batches; their CRC does not cover them."""
    written, at = bytearray(log), 0
    while at + 16 <= len(log):
        base, length = unpack_from(">qi", log, at)
        for epoch, start in entries:
            if start <= base:
                pack_into(">i", written, at + 12, epoch)
        at += 12 + length
    return bytes(written)


def _time_index(base_offset: int, batches: Sequence[bytes]) -> bytes:
    if not batches:
        return b""
    first = batches[0]
    last = int.from_bytes(first[:8], "big") + int.from_bytes(first[23:27], "big")
    return pack(">qi", 1000, last - base_offset)
