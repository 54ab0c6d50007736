"""Check what `sediment metadata print` prints of files; tests/kafka has it read a real topic."""

import json
import struct
from pathlib import Path
from random import Random
from uuid import UUID

import pytest

from services.interop.metadata_topic import metadata_text
from services.interop.metadata_values import MetadataValue, SegmentSnapshot, encode_value
from tests.harness.kafka_metadata import draw_value
from tests.harness.sediment_command import sediment

TOPIC_ID = UUID("00010203-0405-0607-0809-0a0b0c0d0e0f")
_RANDOM = Random(5)
_DRAWN = [draw_value(_RANDOM) for _ in range(30)]
SNAPSHOTS = [each for each in _DRAWN if isinstance(each.metadata, SegmentSnapshot)]


def snapshot_file(directory: Path, values: list[MetadataValue], version: int = 0) -> Path:
    """Write a file as Kafka 3.0 did, by its documented form."""
    entries = [struct.pack(">i", len(data)) + data for data in map(encode_value, values)]
    header = struct.pack(">h16siq", version, TOPIC_ID.bytes, 3, 77)
    (path := directory / "remote_log_snapshot").write_bytes(header + b"".join(entries))
    return path


def test_a_snapshot_is_printed_as_kafka_prints_it(tmp_path: Path) -> None:
    done = sediment("metadata", "print", str(snapshot_file(tmp_path, SNAPSHOTS)))
    assert done.returncode == 0
    place = "partition: 3, offset: 77, value: "
    assert done.stdout.splitlines() == [place + metadata_text(v.metadata) for v in SNAPSHOTS]
    assert "topic id AAECAwQFBgcICQoLDA0ODw, read up to offset 77" in done.stderr


def test_json_has_what_the_line_has(tmp_path: Path) -> None:
    done = sediment("metadata", "print", str(snapshot_file(tmp_path, SNAPSHOTS)), "-o", "json")
    documents = [json.loads(line) for line in done.stdout.splitlines()]
    assert [each["kind"] for each in documents] == ["SegmentSnapshot"] * len(SNAPSHOTS)
    for document, value in zip(documents, SNAPSHOTS, strict=True):
        snapshot = value.metadata
        assert isinstance(snapshot, SegmentSnapshot)
        custom = snapshot.custom_metadata
        assert document["custom_metadata"] == (custom if custom is None else custom.hex())
        assert document["end_offset"] == snapshot.end_offset


def test_committed_offsets_are_listed(tmp_path: Path) -> None:
    (path := tmp_path / "_rlmm_committed_offsets").write_text("0\n0 2022\n4 104\n2 498\n")
    done = sediment("metadata", "print", str(path), "-o", "json")
    printed = [tuple(json.loads(line).values()) for line in done.stdout.splitlines()]
    assert printed == [(0, 2022), (2, 498), (4, 104)]


def test_records_that_are_no_metadata_are_named(tmp_path: Path) -> None:
    log = Path(__file__).parents[2] / "data/kafka-log/payments-0/00000000000000000000.log"
    done = sediment("metadata", "print", str(log))
    assert done.returncode == 1
    assert "partition 0, offset 0: frame version" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("is this a metadata topic?")
    skipped = sediment("metadata", "print", str(log), "--skip-unknown")
    assert (skipped.returncode, skipped.stdout) == (0, "")
    assert "of a later version and left out: " in skipped.stderr


@pytest.mark.parametrize(
    ("name", "data", "code", "text"),
    [
        ("metadata.bin", b"", 2, "must be one of *.log, remote_log_snapshot"),
        ("remote_log_snapshot", b"\0" * 29, 1, "its header has 30 bytes, the file 29"),
        ("remote_log_snapshot", b"\0" * 31, 1, "byte 30: an entry is not whole"),
        ("remote_log_snapshot", b"\0\1" + b"\0" * 28, 1, "version 1 is not known"),
        ("_rlmm_committed_offsets", b"1\n", 1, "line 1: version '1' is not known"),
        ("_rlmm_committed_offsets", b"0\n0 1\nx\n", 1, "line 3: not PARTITION OFFSET: 'x'"),
        ("0.log", b"\0" * 70, 1, "0.log: "),
    ],
    ids=lambda value: value.hex()[:20] if isinstance(value, bytes) else None,
)
def test_a_damaged_file_is_named(
    tmp_path: Path, name: str, data: bytes, code: int, text: str
) -> None:
    (tmp_path / name).write_bytes(data)
    done = sediment("metadata", "print", str(tmp_path / name))
    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr


def test_a_missing_file_and_no_place_are_refused(tmp_path: Path) -> None:
    for name in ("0.log", "remote_log_snapshot"):
        missing = sediment("metadata", "print", str(tmp_path / name))
        assert missing.returncode == 2
        assert "No such file" in missing.stderr
    for place in ((), (str(tmp_path / "0.log"), "--bootstrap-server", "h:1")):
        assert sediment("metadata", "print", *place).returncode == 2
