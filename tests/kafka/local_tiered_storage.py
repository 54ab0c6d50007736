"""Run Kafka's own LocalTieredStorage over a directory."""

import subprocess
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from benchmarks.local_tiered_storage import fixtures_jar
from demos.kafka_broker import find_java
from services.api.ids import uuid_to_text
from services.api.segments import RemoteLogSegmentMetadata
from tests.contract.remote_storage_manager_contract import Files
from tests.harness.jars import ensure_kafka_jars

_DRIVER = Path(__file__).with_name("LocalTieredStorageDriver.java")


def copied_by_kafka(
    storage: Path, scratch: Path, segments: Mapping[RemoteLogSegmentMetadata, Files]
) -> None:
    """Copy segments with Kafka's class; `scratch` is an empty directory."""
    lines = []
    for number, (row, files) in enumerate(segments.items()):
        directory = scratch / str(number)
        directory.mkdir(parents=True)
        (directory / "LOG").write_bytes(files.log)
        for kind, data in files.indexes.items():
            (directory / kind.name).write_bytes(data)
        lines.append(_line("copy", row, directory))
    assert _driven(storage, lines) == ["copied none"] * len(lines)


def read_by_kafka(storage: Path, rows: Sequence[RemoteLogSegmentMetadata]) -> list[dict[str, str]]:
    """Return the sha256 of each file that Kafka's class reads of each segment."""
    words = [line.split() for line in _driven(storage, [_line("read", row) for row in rows])]
    assert len(words) == 6 * len(rows)
    return [dict(words[at : at + 6]) for at in range(0, len(words), 6)]


def digests_of(files: Files) -> dict[str, str]:
    """Return what read_by_kafka returns of a segment with these files."""
    found = {kind.name: sha256(data).hexdigest() for kind, data in files.indexes.items()}
    return {"TRANSACTION": "none", **found, "LOG": sha256(files.log).hexdigest()}


def _line(verb: str, row: RemoteLogSegmentMetadata, directory: Path = Path("-")) -> str:
    segment = row.remote_log_segment_id
    tp = segment.topic_id_partition
    return (
        f"{verb} {uuid_to_text(tp.topic_id)} {tp.topic} {tp.partition} {uuid_to_text(segment.id)} "
        f"{row.start_offset} {row.end_offset} {row.segment_size_in_bytes} {directory}\n"
    )


def _driven(storage: Path, lines: Sequence[str]) -> list[str]:
    classes = f"{ensure_kafka_jars()}/*:{fixtures_jar()}"
    done = subprocess.run(
        [find_java(), "-Xmx256m", "-cp", classes, str(_DRIVER), str(storage)],
        input="".join(lines),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [line for line in done.stdout.splitlines() if not line.startswith(("[", "SLF4J"))]
