"""Print records like a console consumer: `sediment fetch`."""

import base64
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import Annotated, Any

import typer

from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import IsolationLevel, RecordSource, RemoteLogManager
from services.api.validation import INT64_MAX
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
from services.cli.offsets import TIME_HELP, Isolation, IsolationOption, offset_at, time_ms
from services.cli.output import (
    EXIT_PARTIAL,
    CommandError,
    Format,
    print_json,
    print_line,
    say,
    time_text,
)
from services.cli.records import UnreadableBatchError, decoded, raise_unreadable
from services.common.inflate import DEFAULT_LIMIT_BYTES

app = command_group()

# A printed record as JSON: key, value and headers as text if they are UTF-8, else as base64 under
# the name with the suffix "_base64".
PrintedRecord = dict[str, Any]


@app.command()
def fetch(
    topic_partition: TopicPartition,
    offset: Annotated[
        int | None, typer.Option(min=0, help="The first offset to print; or give --from-time.")
    ] = None,
    from_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME", help=f"Begin at the first record of this time or later. {TIME_HELP}"
        ),
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="End before the first record of this time or later, as --from-time.",
        ),
    ] = None,
    isolation: IsolationOption = Isolation.READ_UNCOMMITTED,
    max_records: Annotated[int, typer.Option(min=1, help="Print at most this many.")] = 10,
    max_batch_bytes: Annotated[
        int,
        typer.Option(min=1, help="Skip a batch whose records inflate to more than this, bytes."),
    ] = DEFAULT_LIMIT_BYTES,
    rlm: Rlm = None,
    rlmm: Rlmm = None,
    data_dir: DataDir = None,
    output: JsonOrTable = Format.TABLE,
) -> None:
    """Print records from the tier and from local disk.

    Like a console consumer, wherever RLM finds them. Each record shows where it was read.
    Characters that a terminal does not print are shown as escapes; -o json has them as JSON.

    \b
    Exit codes:
      0  all records were printed
      1  batches were skipped, each with its reason on standard error
      2  the partition is unknown, or a time is none
      3  RLM or RLMM could not be reached, or the fetch failed
    """
    skipped = 0

    def skip(error: UnreadableBatchError) -> None:
        nonlocal skipped
        skipped += 1
        say(str(error))

    if (offset is None) == (from_time is None):
        raise CommandError("give either --offset or --from-time")
    since_ms = None if from_time is None else time_ms(from_time)
    until_ms = None if to_time is None else time_ms(to_time)
    with connected_rlmm(rlmm, data_dir) as metadata:
        tp = find_partition(metadata, topic_partition)
    with connected_rlm(rlm, data_dir) as manager:
        if since_ms is not None:
            offset = offset_at(manager, tp, since_ms, isolation)
        end = INT64_MAX if until_ms is None else offset_at(manager, tp, until_ms, isolation)
        found = records(manager, tp, offset or 0, max_batch_bytes, skip, isolation.level)
        for record in islice(takewhile(lambda r: r["offset"] < end, found), max_records):
            if output is Format.JSON:
                print_json(record)
            else:
                print_line(_as_columns(record))
    if skipped:
        raise typer.Exit(EXIT_PARTIAL)


def records(
    manager: RemoteLogManager,
    tp: TopicIdPartition,
    offset: int,
    batch_limit_bytes: int = DEFAULT_LIMIT_BYTES,
    unreadable: Callable[[UnreadableBatchError], None] = raise_unreadable,
    isolation: IsolationLevel = IsolationLevel.READ_UNCOMMITTED,
) -> Iterator[PrintedRecord]:
    """Read records from `offset` on, in the printed form; the arguments are those of `decoded`."""
    found = decoded(manager, tp, offset, batch_limit_bytes, unreadable, isolation)
    return (_printed(record, source) for record, source in found)


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


def _as_columns(record: PrintedRecord) -> list[str]:
    at = time_text(int(record["timestamp_ms"]))
    shown = [str(record["offset"]), at, str(record["source"])]
    for name in ("key", "value"):
        text = record.get(name, record.get(f"{name}_base64"))
        shown.append("null" if text is None else str(text))
    return shown
