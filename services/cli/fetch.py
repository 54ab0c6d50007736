"""Print records like a console consumer: `sediment fetch`."""

import base64
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby, islice
from operator import attrgetter
from typing import Annotated, Any

import typer
from kafka.record import MemoryRecords

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import (
    FetchError,
    FetchPartition,
    FetchRequest,
    RecordSource,
    RemoteLogManager,
)
from services.cli.connections import (
    DataDir,
    JsonOrTable,
    Rlm,
    Rlmm,
    TopicPartition,
    command_group,
    connected_rlm,
    connected_rlmm,
    find_partition,
)
from services.cli.output import EXIT_FAILED, CommandError, Format, print_json

app = command_group()

FETCH_BYTES = 1024 * 1024

# A printed record as JSON: key, value and headers as text if they are UTF-8, else as base64 under
# the name with the suffix "_base64".
PrintedRecord = dict[str, Any]


@app.command()
def fetch(
    topic_partition: TopicPartition,
    offset: Annotated[int, typer.Option(min=0, help="The first offset to print.")],
    max_records: Annotated[int, typer.Option(min=1, help="Print at most this many.")] = 10,
    rlm: Rlm = None,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Print records from the tier and from local disk.

    Like a console consumer, wherever RLM finds them. Each record shows where it was read.
    """
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
    """Read records from `offset` on, in the printed form."""
    return (_printed(record, source) for record, source in decoded(manager, tp, offset))


def decoded(
    manager: RemoteLogManager, tp: TopicIdPartition, offset: int
) -> Iterator[tuple[Any, RecordSource | None]]:
    """Read the records from `offset` to the end of the log, each with its source.

    Raises:
        CommandError: a fetch failed; names the offset.
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
    """Fetch once: return whole batches by their source, and the log's end."""
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
