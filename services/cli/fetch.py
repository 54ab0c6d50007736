"""Print records like a console consumer: `sediment fetch`."""

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from itertools import groupby, islice
from typing import Any

import typer

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.offset_queries import Fetches, PartitionReads, SpecialTime
from services.api.partitions import OffsetGap
from services.api.validation import INT64_MAX
from services.cli.command import option, quantity, toggle
from services.cli.connections import Call, TopicPartition, command_group, with_services
from services.cli.names import find_readable_partition
from services.cli.offsets import (
    TIME_HELP,
    Isolation,
    IsolationOption,
    exit_code_of_fetch,
    find_offsets,
    offset_at,
    time_ms,
)
from services.cli.output import (
    EXIT_PARTIAL,
    EXIT_USAGE,
    CommandError,
    print_json,
    print_line,
    say,
    write_bytes,
)
from services.cli.record_format import FORMAT_HELP, parse_format
from services.cli.segments import kept_segments
from services.client.records import (
    ReadFailedError,
    ReadOptions,
    Record,
    RecordKind,
    UnreadableBatchError,
    decoded,
    decoded_segment,
    raise_unreadable,
)
from services.common.inflate import DEFAULT_LIMIT_BYTES
from services.common.quantities import SIZE_BYTES
from services.views.documents import fields_as_json
from services.views.texts import partition_text, time_text

app = command_group()

# A printed record as JSON: key, value and headers as text if they are UTF-8, else as base64 under
# the name with the suffix "_base64".
PrintedRecord = dict[str, Any]

_FEW_RECORDS = 10
_NAMED_PLACES = {"beginning": SpecialTime.EARLIEST, "end": SpecialTime.LATEST}
_PLACE_HELP = "An offset, 'beginning', 'end', or a time as --from-time."


@app.command()
@with_services("rsm", "rlmm", "rlm")
def fetch(
    call: Call,
    topic_partition: TopicPartition,
    offset: int | None = option("The first offset to print; or give --from-time.", min=0),
    from_time: str | None = option(
        f"Begin at the first record of this time or later. {TIME_HELP}", metavar="TIME"
    ),
    from_: str | None = option(f"Begin there. {_PLACE_HELP}", "--from", metavar="WHERE"),
    last: int | None = option(
        "Begin so many offsets before the end; a transaction's end has one, too.", min=1
    ),
    to_time: str | None = option(
        "End before the first record of this time or later, as --from-time.", metavar="TIME"
    ),
    to: str | None = option(f"End before it. {_PLACE_HELP}", "--to", metavar="WHERE"),
    follow: bool = toggle("--follow", "Wait for further records at the end, until Ctrl-C."),
    isolation: IsolationOption = Isolation.READ_UNCOMMITTED,
    show_transactions: bool = toggle(
        "--show-transactions",
        "Name records of aborted transactions and control records, and print them too, up "
        "to the last stable offset.",
    ),
    max_records: int | None = option(
        f"Print at most this many. Default: {_FEW_RECORDS}, or all with --last, --to, "
        "--to-time or --follow.",
        "--max-records",
        "-c",
        min=1,
    ),
    format_: str | None = option(FORMAT_HELP, "--format", "-f", metavar="FORMAT"),
    kept: bool = toggle(
        "--kept",
        "Instead print what a broker deleted and the store still keeps, from all "
        "transactions; with no other place than --offset.",
    ),
    max_batch_bytes: int = quantity(
        "--max-batch-size",
        SIZE_BYTES,
        "Skip a batch whose records inflate to more.",
        DEFAULT_LIMIT_BYTES,
        min=1,
    ),
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
    formatted = None if format_ is None else parse_format(format_)
    if kept:
        if from_ or from_time or last or to or to_time or follow:
            raise CommandError("--kept: give no other place than --offset with it")
        options = ReadOptions(max_batch_bytes, with_transactions=show_transactions)
        found = _kept_records(call, topic_partition, offset or 0, options)
        try:
            for tp, record in islice(found, max_records):
                _print(call, tp, record, formatted, show_transactions)
        except ReadFailedError as e:
            raise CommandError(str(e), EXIT_PARTIAL) from e
        return
    starts, ends = _places(from_, from_time, offset, last), _places(to, to_time)
    if len(starts) != 1:
        raise CommandError("give either --offset or --from-time, --from or --last, once")
    if len(ends) > 1:
        raise CommandError("give either --to or --to-time")
    is_bounded = follow or last is not None or bool(ends)
    most = max_records if max_records or is_bounded else _FEW_RECORDS
    options = ReadOptions(max_batch_bytes, isolation.level, show_transactions, follow)
    with call.rlm_readers() as (given, manager):
        tp = find_readable_partition(given, topic_partition, call)
        first, end = starts[0](manager, tp, isolation), INT64_MAX
        for place in ends:
            end = place(manager, tp, isolation)
        notices = _Notices(tp, first, call)
        try:
            records = decoded(manager, tp, first, options, notices.skip)
            with suppress(KeyboardInterrupt) if follow else nullcontext():
                for record in islice(_before(end, records, notices), most):
                    _print(call, tp, record, formatted, show_transactions)
        except ReadFailedError as e:
            code = exit_code_of_fetch(e.error)
            hint = "; --from beginning and --last N need no offset" if code == EXIT_USAGE else ""
            raise CommandError(f"{e}{hint}", code) from e
    if notices.is_partial:
        raise typer.Exit(EXIT_PARTIAL)


def _print(
    call: Call,
    tp: TopicIdPartition,
    record: Record,
    formatted: Callable[[TopicIdPartition, Record], bytes] | None,
    with_kind: bool,
) -> None:
    if formatted is not None:
        write_bytes(formatted(tp, record))
    elif call.is_json:
        print_json(fields_as_json(tp) | printed(record))
    else:
        print_line(_as_columns(record, with_kind))


def _kept_records(
    call: Call, topic_partition: str, offset: int, options: ReadOptions
) -> Iterator[tuple[TopicIdPartition, Record]]:
    """Yield the records of kept segments from `offset` on, ascending in each partition."""
    with call.tier_clients() as (store, _, metadata):
        kept = kept_segments(metadata, topic_partition)
        found = sorted(
            (each for each in kept if each.end_offset >= offset),
            key=lambda each: (partition_text(each.topic_id_partition), each.start_offset),
        )
        if not found:
            raise CommandError(f"{topic_partition}: nothing of it is kept", EXIT_PARTIAL)
        for tp, segments in groupby(found, key=lambda each: each.topic_id_partition):
            first = offset  # Two copies may have the same offsets.
            for segment in segments:
                read = partial(store.fetch_log_segment, segment)
                for record in decoded_segment(segment, read, first, options, _say_skipped):
                    yield tp, record
                first = max(first, segment.end_offset + 1)


def _say_skipped(error: UnreadableBatchError) -> None:
    say(f"{error}; skipped")


class _Notices:
    """Name on standard error what the printed records leave out.

    Attributes:
        is_partial: whether a batch was skipped, or offsets are lost.
    """

    def __init__(self, tp: TopicIdPartition, first: int, call: Call) -> None:
        self._tp, self._call = tp, call
        self._first: int | None = first
        self._gaps: Sequence[OffsetGap] | None = None
        self._is_outdated = False
        self.is_partial = False

    def skip(self, error: UnreadableBatchError) -> None:
        self.is_partial = True
        _say_skipped(error)

    def name_missing(self, first: int, last: int) -> None:
        """Name missing offsets, unless they were compacted."""
        tp, reason = self._tp, "lost before they were copied"
        try:
            if self._gaps is None or (self._gaps and last > self._gaps[-1].end_offset):
                with self._call.rlmm_client() as metadata:
                    self._gaps = metadata.partition_state(tp).value.gaps
            if not any(g.start_offset <= last and first <= g.end_offset for g in self._gaps):
                return
        except (RemoteStorageError, CommandError) as e:
            reason = f"perhaps lost: {e}"
        self.is_partial = True
        say(f"{partition_text(tp)}: offsets {first} to {last} are missing: {reason}")

    def describe(self, record: Record) -> None:
        """Name what is special about a record, of the first one and of the first outdated one."""
        if self._first is not None and record.offset > self._first and not self.is_partial:
            say(f"no record is shown at offset {self._first}; the next is {record.offset}")
        self._first = None
        if record.metadata_age_ms is not None and not self._is_outdated:
            self._is_outdated = True
            say(
                "RLMM cannot be reached: RLM read this with what it knew of the tier "
                f"{record.metadata_age_ms / 1000:.0f} s ago"
            )


def _before(end: int, records: Iterator[Record], notices: _Notices) -> Iterator[Record]:
    """Yield the records before `end`, and name what they leave out."""
    for record in records:
        if record.missing is not None and record.missing[0] < end:
            notices.name_missing(*record.missing)
        if record.offset >= end:
            return
        notices.describe(record)
        yield record


_Place = Callable[[PartitionReads, TopicIdPartition, Isolation], int]


def _places(
    where: str | None, time: str | None, offset: int | None = None, last: int | None = None
) -> list[_Place]:
    """Return the places that the given options name.

    Raises:
        CommandError: `where` is no offset, no named place and no time, or `time` is none.
    """
    places: list[_Place] = []
    if where is not None:
        places.append(_place(where))
    if time is not None:
        places.append(_at_time(time))
    if offset is not None:
        places.append(lambda manager, tp, isolation: offset)
    if last is not None:
        places.append(partial(_before_end, last))
    return places


def _place(text: str) -> _Place:
    if text.isascii() and text.isdecimal():
        return lambda manager, tp, isolation: int(text)
    special = _NAMED_PLACES.get(text)
    if special is None:
        return _at_time(text)
    return lambda manager, tp, isolation: find_offsets(manager, tp, [special], isolation)[0].offset


def _at_time(text: str) -> _Place:
    at_ms = time_ms(text)
    return lambda manager, tp, isolation: offset_at(manager, tp, at_ms, isolation)


def _before_end(
    last: int, manager: PartitionReads, tp: TopicIdPartition, isolation: Isolation
) -> int:
    places = [SpecialTime.EARLIEST, SpecialTime.LATEST]
    start, end = find_offsets(manager, tp, places, isolation)
    return max(end.offset - last, start.offset)


def records(manager: Fetches, tp: TopicIdPartition, offset: int) -> Iterator[PrintedRecord]:
    """Read records from `offset` on, in the printed form."""
    return (printed(record) for record in decoded(manager, tp, offset, None, raise_unreadable))


def printed(record: Record) -> PrintedRecord:
    """Return a record as its JSON object."""
    headers = [{"name": name, **_text_or_base64("value", value)} for name, value in record.headers]
    document: PrintedRecord = {
        **fields_as_json(record, "offset", "timestamp_ms"),
        **_text_or_base64("key", record.key),
        **_text_or_base64("value", record.value),
        "headers": headers,
        **fields_as_json(record, "leader_epoch", "source", "kind"),
    }
    if record.missing is not None:
        first, last = record.missing
        document["missing_before"] = {"start_offset": first, "end_offset": last}
    return document


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
    columns = [str(record.offset), time_text(record.timestamp_ms, "milliseconds"), source]
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
