"""Print and import the metadata of Kafka's own RemoteLogMetadataManager: `sediment metadata`."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import typer

from services.api.ids import uuid_to_text
from services.api.partitions import RemotePartitionDeleteMetadata
from services.cli.command import argument, option, toggle
from services.cli.connections import Call, command_group, with_services
from services.cli.metadata_export import export_metadata
from services.cli.metadata_import import import_metadata
from services.cli.metadata_source import KafkaSource
from services.cli.output import EXIT_PARTIAL, CommandError, print_json, print_line, say
from services.common.inflate import DEFAULT_LIMIT_BYTES
from services.common.quantities import counted
from services.interop.metadata_files import (
    COMMITTED_OFFSETS_FILE,
    SNAPSHOT_FILE,
    read_committed_offsets,
    read_snapshot_file,
)
from services.interop.metadata_fold import TopicRecord
from services.interop.metadata_topic import METADATA_TOPIC, formatter_line
from services.interop.metadata_values import (
    MetadataValue,
    MetadataValueError,
    SegmentSnapshot,
    decode_value,
)
from services.records.batches import BatchError, FileWindow, walk_batches
from services.records.decode import UnreadableRecordsError, records_of
from services.views.documents import Json, fields_as_json

app = command_group("Read the metadata of Kafka's own RemoteLogMetadataManager.")

app.command("import")(import_metadata)
app.command("export")(export_metadata)

_MAX_FILE_BYTES = 256 * 1024 * 1024
"""Of a file that is read whole."""
_LOG_SUFFIX = ".log"
_NAMED = 10
"""The most records that cannot be read and are named; the others are counted."""
_PRINTED = (
    *("segment_id", "start_offset", "end_offset", "max_timestamp_ms", "broker_id"),
    *("event_timestamp_ms", "segment_leader_epochs", "segment_size_in_bytes"),
    *("custom_metadata", "state", "txn_idx_empty"),
)
"""The fields of metadata that are Kafka's own and stand in JSON under their names."""


@app.callback()
def _metadata() -> None:
    pass


@app.command("print")
@with_services()
def print_metadata(
    call: Call,
    file: Path | None = argument(
        f"A .log file of {METADATA_TOPIC}, or a file {SNAPSHOT_FILE} or "
        f"{COMMITTED_OFFSETS_FILE} of Kafka 2.8 to 3.7. Or else give --bootstrap-server.",
        default=None,
        metavar="FILE",
    ),
    bootstrap_server: str = option(
        "Read the topic from this cluster, to its end.", default="", metavar="HOST:PORT"
    ),
    topic: str = option("The topic of the metadata.", default=METADATA_TOPIC),
    command_config: Path | None = option(
        "Properties of the consumer, as for Kafka's own tools: security.protocol, ...",
        metavar="FILE",
    ),
    skip_unknown: bool = toggle(
        "--skip-unknown", "Only count records of a later version, which are no problem."
    ),
) -> None:
    """Print the metadata in a topic or a file, each as Kafka's own formatter prints it.

    Nothing is written anywhere. A record that is no metadata is named; the exit code is then 1.
    """
    if (file is None) == (not bootstrap_server):
        raise CommandError("give either a FILE or --bootstrap-server HOST:PORT")
    if file is None:
        records = _records_of_topic(bootstrap_server, topic, command_config)
    elif file.name == COMMITTED_OFFSETS_FILE:
        _print_committed_offsets(file, call)
        return
    elif file.name == SNAPSHOT_FILE:
        _print_snapshot(file, call)
        return
    elif file.suffix == _LOG_SUFFIX:
        records = _records_of_log(file)
    else:
        names = f"*{_LOG_SUFFIX}, {SNAPSHOT_FILE}, {COMMITTED_OFFSETS_FILE}"
        raise CommandError(f"{file}: must be one of {names}, by its name")
    _print_records(records, call, skip_unknown)


def _print_records(records: Iterator[TopicRecord], call: Call, skip_unknown: bool) -> None:
    printed = bad = unknown = 0
    for each in records:
        printed += 1
        if each.value is None:
            _print_tombstone(each, call)
            continue
        try:
            value = decode_value(each.value)
        except MetadataValueError as e:
            if e.is_unknown and skip_unknown:
                unknown += 1
                continue
            bad += 1
            if bad <= _NAMED:
                say(f"partition {each.partition}, offset {each.offset}: {e}")
            continue
        _print_value(each, value, call)
    left_out = f", of a later version and left out: {unknown}" if unknown else ""
    say(f"{counted(printed, 'record')}{left_out}")
    if bad:
        say(f"{counted(bad, 'record')} cannot be read: is this a metadata topic?")
        raise typer.Exit(EXIT_PARTIAL)


def _print_value(record: TopicRecord, value: MetadataValue, call: Call) -> None:
    if call.is_json:
        print_json(_place(record) | _value_as_json(value))
    else:
        print_line([formatter_line(record.partition, record.offset, value.metadata)])


def _print_tombstone(record: TopicRecord, call: Call) -> None:
    """Print a record without a value; Kafka's formatter prints none of these."""
    if call.is_json:
        print_json(_place(record) | {"kind": "Tombstone"})


def _place(record: TopicRecord) -> Json:
    key = None if record.key is None else record.key.decode("utf-8", "backslashreplace")
    return {**fields_as_json(record, "partition", "offset"), "key": key}


def _value_as_json(value: MetadataValue) -> Json:
    metadata = value.metadata
    document: Json = {"kind": type(metadata).__name__}
    if isinstance(metadata, RemotePartitionDeleteMetadata):
        document["topic_id_partition"] = fields_as_json(metadata.topic_id_partition)
    elif not isinstance(metadata, SegmentSnapshot):
        segment_id = metadata.remote_log_segment_id
        document["topic_id_partition"] = fields_as_json(segment_id.topic_id_partition)
        document["segment_id"] = uuid_to_text(segment_id.id)
    if value.end_offset is not None:
        document["end_offset"] = value.end_offset
    document |= fields_as_json(value, "version", "broker_leader_epoch")
    names = [each.name for each in fields(metadata) if each.name in _PRINTED]
    document |= fields_as_json(metadata, *names)
    if isinstance(custom := document.get("custom_metadata"), bytes):
        document["custom_metadata"] = custom.hex()
    return document


# --- where records come from ----------------------------------------------------------------------


def _records_of_log(file: Path) -> Iterator[TopicRecord]:
    """Yield the records of a .log file; its folder's name has the partition."""
    number = file.resolve().parent.name.rpartition("-")[2]
    partition = int(number) if number.isdecimal() else -1
    try:
        with FileWindow(file) as window:
            for batch in walk_batches(window, 0, window.size_bytes, 0, verify=True):
                if batch.is_control:
                    continue
                for record in records_of(batch, DEFAULT_LIMIT_BYTES):
                    yield TopicRecord(partition, record.offset, record.key, record.value)
    except (BatchError, UnreadableRecordsError) as e:
        raise CommandError(f"{file}: {e}", EXIT_PARTIAL) from e
    except OSError as e:
        raise CommandError(f"{file}: {e.strerror}") from e


def _records_of_topic(server: str, topic: str, config: Path | None) -> Iterator[TopicRecord]:
    """Yield the records of the topic, up to the end that each partition has now."""
    source = KafkaSource(server, topic, config)
    try:
        for partition, (first, end) in source.ranges().items():
            for records in source.records(partition, first, end):
                yield from records
    finally:
        source.close()


# --- files that are read whole --------------------------------------------------------------------


def _print_committed_offsets(file: Path, call: Call) -> None:
    try:
        offsets = read_committed_offsets(_text_of(file))
    except MetadataValueError as e:
        raise CommandError(f"{file}: {e}", EXIT_PARTIAL) from e
    rows = [{"partition": number, "offset": at} for number, at in sorted(offsets.items())]
    call.show_each(rows, dict, "offsets", dict)


def _print_snapshot(file: Path, call: Call) -> None:
    try:
        snapshot = read_snapshot_file(_data_of(file))
    except MetadataValueError as e:
        raise CommandError(f"{file}: {e}", EXIT_PARTIAL) from e
    say(
        f"topic id {uuid_to_text(snapshot.topic_id)}, read up to offset "
        f"{snapshot.metadata_offset} of partition {snapshot.metadata_partition}"
    )
    place = TopicRecord(snapshot.metadata_partition, snapshot.metadata_offset, None, b"")
    for value in snapshot.values:
        _print_value(place, value, call)


def _text_of(file: Path) -> str:
    try:
        return _data_of(file).decode("utf-8")
    except UnicodeDecodeError as e:
        raise CommandError(f"{file}: is not UTF-8") from e


def _data_of(file: Path) -> bytes:
    try:
        if file.stat().st_size > _MAX_FILE_BYTES:
            raise CommandError(f"{file}: has more than {_MAX_FILE_BYTES} bytes")
        return file.read_bytes()
    except OSError as e:
        raise CommandError(f"{file}: {e.strerror}") from e
