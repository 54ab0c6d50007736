"""Print records like a console consumer: `sediment fetch`."""

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import islice
from typing import Annotated, Any

import typer

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.offset_queries import OffsetService, SpecialTime
from services.api.partitions import OffsetGap
from services.api.remote_log_manager import RemoteLogManager
from services.api.validation import INT64_MAX
from services.cli.connections import (
    Call,
    TopicPartition,
    command_group,
    find_readable_partition,
    with_services,
)
from services.cli.offsets import (
    TIME_HELP,
    Isolation,
    IsolationOption,
    find_offsets,
    offset_at,
    time_ms,
)
from services.cli.output import (
    EXIT_FAILED,
    EXIT_PARTIAL,
    CommandError,
    print_json,
    print_line,
    say,
    write_bytes,
)
from services.cli.record_format import FORMAT_HELP, parse_format
from services.client.records import (
    ReadFailedError,
    ReadOptions,
    Record,
    RecordKind,
    UnreadableBatchError,
    decoded,
    raise_unreadable,
)
from services.common.inflate import DEFAULT_LIMIT_BYTES
from services.views.texts import partition_text, time_text

app = command_group()

# A printed record as JSON: key, value and headers as text if they are UTF-8, else as base64 under
# the name with the suffix "_base64".
PrintedRecord = dict[str, Any]

_FEW_RECORDS = 10
_NAMED_PLACES = {"beginning": SpecialTime.EARLIEST, "end": SpecialTime.LATEST}
_PLACE_HELP = "An offset, 'beginning', 'end', or a time as --from-time."


@app.command()
@with_services("rlmm", "rlm")
def fetch(
    call: Call,
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
    from_: Annotated[
        str | None, typer.Option("--from", metavar="WHERE", help=f"Begin there. {_PLACE_HELP}")
    ] = None,
    last: Annotated[
        int | None, typer.Option(min=1, help="Begin so many offsets before the end.")
    ] = None,
    to_time: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="End before the first record of this time or later, as --from-time.",
        ),
    ] = None,
    to: Annotated[
        str | None, typer.Option("--to", metavar="WHERE", help=f"End before it. {_PLACE_HELP}")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", help="Wait for further records at the end, until Ctrl-C.")
    ] = False,
    isolation: IsolationOption = Isolation.READ_UNCOMMITTED,
    show_transactions: Annotated[
        bool,
        typer.Option(
            "--show-transactions",
            help="Name records of aborted transactions and control records, and print them too, up "
            "to the last stable offset.",
        ),
    ] = False,
    max_records: Annotated[
        int | None,
        typer.Option(
            "--max-records",
            "-c",
            min=1,
            help=f"Print at most this many. Default: {_FEW_RECORDS}, or all with --last, --to, "
            "--to-time or --follow.",
        ),
    ] = None,
    format_: Annotated[
        str | None, typer.Option("--format", "-f", metavar="FORMAT", help=FORMAT_HELP)
    ] = None,
    max_batch_bytes: Annotated[
        int,
        typer.Option(min=1, help="Skip a batch whose records inflate to more than this, bytes."),
    ] = DEFAULT_LIMIT_BYTES,
) -> None:
    """Print records from the tier and from local disk.

    Like a console consumer, wherever RLM finds them. Each record shows where it was read.
    Characters that a terminal does not print are shown as escapes; -o json has them as JSON, and
    what -f prints into a file or a pipe has them unchanged. Without -f and -o json a null is null,
    a text that could be mistaken is in quotes, and what is no text is base64:...

    \b
    Exit codes:
      1  batches were skipped, or offsets are lost, each named on standard error
    """
    skipped = 0
    is_marked = False

    def skip(error: UnreadableBatchError) -> None:
        nonlocal skipped
        skipped += 1
        say(f"{error}; skipped")

    starts = [each for each in (offset, from_time, from_, last) if each is not None]
    if len(starts) != 1:
        raise CommandError("give either --offset or --from-time, --from or --last, once")
    if to is not None and to_time is not None:
        raise CommandError("give either --to or --to-time")
    formatted = None if format_ is None else parse_format(format_)
    since = _place(from_) if from_ is not None else _time(from_time)
    until = _place(to) if to is not None else _time(to_time)
    options = ReadOptions(max_batch_bytes, isolation.level, show_transactions, follow)
    with call.rlm_client() as manager:
        tp = find_readable_partition(manager, topic_partition, call)
        missing = _Missing(tp, call)
        if last is not None:
            offset = _before_end(manager, tp, last, isolation)
        elif offset is None:
            assert since is not None
            offset = since(manager, tp, isolation)
        end = INT64_MAX if until is None else until(manager, tp, isolation)
        wanted: int | None = offset
        is_bounded = follow or last is not None or until is not None
        most = max_records if max_records or is_bounded else _FEW_RECORDS
        try:
            found = decoded(manager, tp, offset, options, skip)
            with suppress(KeyboardInterrupt) if follow else nullcontext():
                for record in islice(_before(end, found, missing), most):
                    if (
                        wanted is not None
                        and record.offset > wanted
                        and not (skipped or missing.is_lost)
                    ):
                        say(f"no record is shown at offset {wanted}; the next is {record.offset}")
                    wanted = None
                    if record.metadata_age_ms is not None and not is_marked:
                        is_marked = True
                        say(
                            "RLMM cannot be reached: RLM read this with what it knew of the tier "
                            f"{record.metadata_age_ms / 1000:.0f} s ago"
                        )
                    if formatted is not None:
                        write_bytes(formatted(tp, record))
                    elif call.is_json:
                        print_json(printed(record))
                    else:
                        print_line(_as_columns(record, show_transactions))
        except ReadFailedError as e:
            raise CommandError(str(e), EXIT_FAILED) from e
    if skipped or missing.is_lost:
        raise typer.Exit(EXIT_PARTIAL)


class _Missing:
    """Name missing offsets that are recorded as lost, a line on standard error for each range."""

    def __init__(self, tp: TopicIdPartition, call: Call) -> None:
        self._tp, self._call = tp, call
        self._gaps: Sequence[OffsetGap] | None = None
        self.is_lost = False

    def name(self, first: int, last: int) -> None:
        tp, reason = self._tp, "lost before they were copied"
        try:
            if self._gaps is None or (self._gaps and last > self._gaps[-1].end_offset):
                with self._call.rlmm_client() as metadata:
                    self._gaps = metadata.partition_state(tp).value.gaps
            if not any(g.start_offset <= last and first <= g.end_offset for g in self._gaps):
                return  # They were compacted.
        except (RemoteStorageError, CommandError) as e:
            reason = f"perhaps lost: {e}"
        self.is_lost = True
        say(f"{partition_text(tp)}: offsets {first} to {last} are missing: {reason}")


def _before(end: int, found: Iterator[Record], missing: _Missing) -> Iterator[Record]:
    """Yield the records before `end`; name the lost offsets among them."""
    for record in found:
        if record.missing is not None and record.missing[0] < end:
            missing.name(*record.missing)
        if record.offset >= end:
            return
        yield record


_Place = Callable[[OffsetService, TopicIdPartition, Isolation], int]


def _place(text: str) -> _Place:
    """Read WHERE: an offset, the name of a place, or a time."""
    if text.isascii() and text.isdecimal():
        number = int(text)
        return lambda manager, tp, isolation: number
    special = _NAMED_PLACES.get(text)
    if special is None:
        return _at_time(time_ms(text))
    return lambda manager, tp, isolation: find_offsets(manager, tp, [special], isolation)[0].offset


def _time(text: str | None) -> _Place | None:
    return None if text is None else _at_time(time_ms(text))


def _at_time(at_ms: int) -> _Place:
    return lambda manager, tp, isolation: offset_at(manager, tp, at_ms, isolation)


def _before_end(
    manager: OffsetService, tp: TopicIdPartition, last: int, isolation: Isolation
) -> int:
    places = [SpecialTime.EARLIEST, SpecialTime.LATEST]
    start, end = find_offsets(manager, tp, places, isolation)
    return max(end.offset - last, start.offset)


def records(
    manager: RemoteLogManager, tp: TopicIdPartition, offset: int
) -> Iterator[PrintedRecord]:
    """Read records from `offset` on, in the printed form."""
    return (printed(record) for record in decoded(manager, tp, offset, None, raise_unreadable))


def printed(record: Record) -> PrintedRecord:
    """Return a record as its JSON object."""
    made: PrintedRecord = {"offset": record.offset, "timestamp_ms": record.timestamp_ms}
    made.update(_text_or_base64("key", record.key))
    made.update(_text_or_base64("value", record.value))
    made["headers"] = [
        {"name": name, **_text_or_base64("value", value)} for name, value in record.headers
    ]
    made["leader_epoch"] = record.leader_epoch
    made["source"] = record.source.value if record.source else None
    made["kind"] = record.kind.value
    if record.missing is not None:
        first, last = record.missing
        made["missing_before"] = {"start_offset": first, "end_offset": last}
    return made


def _text_or_base64(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}


_BASE64 = "base64:"


def _as_columns(record: Record, with_kind: bool) -> list[str]:
    source = record.source.value if record.source else "-"
    columns = [str(record.offset), time_text(record.timestamp_ms), source]
    if with_kind:
        columns.append("" if record.kind is RecordKind.DATA else record.kind.value)
    columns += [shown(record.key), shown(record.value)]
    if record.headers:
        columns.append(", ".join(f"{name}={shown(value)}" for name, value in record.headers))
    return columns


def shown(data: bytes | None) -> str:
    """Show bytes so that null, text and other bytes differ."""
    if data is None:
        return "null"
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return _BASE64 + base64.b64encode(data).decode("ascii")
    is_plain = text not in ("", "null") and not text.startswith((_BASE64, '"'))
    return text if is_plain else json.dumps(text, ensure_ascii=False)
