"""`sediment fetch`: prints records like a console consumer."""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

from kafka.record import MemoryRecords

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    FetchError,
    FetchPartition,
    FetchRequest,
    RecordSource,
    RemoteLogManager,
)
from services.cli.connections import connected_rlm, connected_rlmm, find_partition
from services.cli.output import EXIT_FAILED, CommandError, Format, print_json

FETCH_BYTES = 1024 * 1024

# A record as JSON shows it: key, value and headers as text where they are UTF-8, else in base64
# under the name with "_base64" behind it.
PrintedRecord = dict[str, Any]


def run(
    topic_partition: str,
    offset: int,
    max_records: int,
    rlm: str | None,
    rlmm: str | None,
    data_dir: Path | None,
    output: Format,
) -> None:
    with connected_rlmm(rlmm, data_dir) as metadata:
        tp = find_partition(metadata, topic_partition)
    with connected_rlm(rlm, data_dir) as manager:
        for record in islice(records(manager, tp, offset), max_records):
            if output is Format.JSON:
                print_json(record)
            else:
                print(_as_line(record))


def records(
    manager: RemoteLogManager, tp: TopicIdPartition, offset: int
) -> Iterator[PrintedRecord]:
    """As `decoded`, to be printed."""
    return (_printed(record, source) for record, source in decoded(manager, tp, offset))


def decoded(
    manager: RemoteLogManager, tp: TopicIdPartition, offset: int
) -> Iterator[tuple[Any, RecordSource | None]]:
    """Every record from `offset` to the end of the log, read as it is asked for, and where it was
    read. As the decoder has it: offset, timestamp, key, value, headers.

    Raises:
        CommandError: the fetch of this partition failed; names the offset.
    """
    while True:
        runs, log_end = _fetch_once(manager, tp, offset)
        if not runs:
            return
        for source, batches in runs:
            reader = MemoryRecords(batches)
            while reader.has_next():
                batch = reader.next_batch()
                for record in batch:
                    if record.offset >= offset and not batch.is_control_batch:
                        yield record, source
                offset = max(offset, batch.next_offset)
        if offset >= log_end:
            return


def _fetch_once(
    manager: RemoteLogManager, tp: TopicIdPartition, offset: int
) -> tuple[list[tuple[RecordSource | None, bytes]], int]:
    """What one fetch brings, whole batches by where they were read, and where the log ends."""
    request = FetchRequest((FetchPartition(tp, offset, FETCH_BYTES),), FETCH_BYTES)
    parts = list(manager.fetch(request))
    for part in parts:
        if part.error is not FetchError.NONE:
            reason = f"{tp.topic}-{tp.partition} at offset {offset}: {part.error.value}"
            raise CommandError(f"{reason}: {part.error_message}", EXIT_FAILED)
    filled = [part for part in parts if part.record_batches]
    runs = [
        (source, b"".join(part.record_batches for part in run))
        for source, run in groupby(filled, key=attrgetter("source"))
    ]
    return runs, max((part.high_watermark for part in parts), default=-1)


def _printed(record: Any, source: RecordSource | None) -> PrintedRecord:
    made: PrintedRecord = {"offset": record.offset, "timestamp_ms": record.timestamp}
    made.update(_text_or_base64("key", record.key))
    made.update(_text_or_base64("value", record.value))
    made["headers"] = [
        {"name": name, **_text_or_base64("value", value)} for name, value in record.headers
    ]
    made["source"] = source.value if source else None
    return made


def _text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


def _as_line(record: PrintedRecord) -> str:
    at = datetime.fromtimestamp(int(record["timestamp_ms"]) / 1000, UTC)
    shown = [str(record["offset"]), at.isoformat(timespec="milliseconds"), str(record["source"])]
    for name in ("key", "value"):
        text = record.get(name, record.get(f"{name}_base64"))
        shown.append("null" if text is None else str(text))
    return "\t".join(shown)
