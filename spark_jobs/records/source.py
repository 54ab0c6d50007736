"""Serve the data source `sediment-records`: the records of tiered topics, as rows or stream."""

from collections.abc import Iterator, Sequence
from importlib import import_module
from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.types import StructType

from services.api.errors import InvalidRequestError
from services.api.ids import uuid_to_text
from spark_jobs.connections import Services
from spark_jobs.records.bounds import LATEST
from spark_jobs.records.options import ENDING, OFFSETS, RecordsOptions, records_options
from spark_jobs.records.reading import read_pieces
from spark_jobs.records.schema import OFFSETS_SCHEMA, RECORDS_SCHEMA, WITH_HEADERS_SCHEMA
from spark_jobs.records.tier import (
    ReadRange,
    connected,
    named_partitions,
    plan_tasks,
    whole_range,
)
from spark_jobs.source_options import SourceOptions, bad_option
from spark_jobs.worker_errors import one_line_errors

NAME = "sediment-records"


@one_line_errors
class SedimentRecords(DataSource):
    """The data source `sediment-records`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        _, options = records_options(self.options)
        if options.table == OFFSETS:
            return OFFSETS_SCHEMA
        return WITH_HEADERS_SCHEMA if options.include_headers else RECORDS_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        given, options = records_options(self.options)
        if options.starting.states(LATEST):
            reason = "a query cannot begin at the latest offset, only a stream"
            raise bad_option(options.starting.option, reason)
        services = self._connected(schema, given)
        if options.table == OFFSETS:
            return OffsetsReader(services, options)
        return RecordsReader(services, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        given, options = records_options(self.options, is_stream=True)
        given.refuse(ENDING, "a stream has no end; stop the query, or use Trigger.AvailableNow")
        if options.table == OFFSETS:
            raise InvalidRequestError("option table: a stream reads records only")
        services = self._connected(schema, given)
        try:
            # Not at the top: Spark 4.1 lacks what a stream needs, but not what a read needs.
            stream = import_module("spark_jobs.records.stream")
        except ImportError as e:
            raise InvalidRequestError(f"{NAME}: a stream needs Spark 4.2 or newer") from e
        reader: DataSourceStreamReader = stream.RecordsStreamReader(services, options)
        return reader

    def _connected(self, schema: StructType, given: SourceOptions) -> Services:
        if schema.fieldNames() != self.schema().fieldNames():
            raise InvalidRequestError(f"{NAME} has its own columns; give no schema")
        return given.services("rlmm", "rsm")


@one_line_errors
class RecordsReader(DataSourceReader):
    """Read what the tier has of the named partitions when the query is planned.

    It accepts no filters of a query: Spark gives a reader's filters to later queries of the frame.
    """

    def __init__(self, services: Services, options: RecordsOptions) -> None:
        self._services = services
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with connected(self._services) as tier:
            named = named_partitions(tier, options)
            ranges = [whole_range(tier, tp, options) for tp in named]
            return [InputPartition(task) for task in plan_tasks(tier, options, ranges)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition.value is None:  # Spark reads one task if there are none
            return
        with self._services.connected_rsm() as rsm:
            yield from read_pieces(rsm, self._options, partition.value)


@one_line_errors
class OffsetsReader(RecordsReader):
    """Report, for each partition, the offsets that RecordsReader reads."""

    def partitions(self) -> Sequence[InputPartition]:
        with connected(self._services) as tier:
            return [InputPartition(tp) for tp in named_partitions(tier, self._options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition.value is None:
            return
        options = self._options
        with connected(self._services) as tier:
            whole = whole_range(tier, partition.value, options)
        part = whole.found
        tp, report, polled = part.topic_id_partition, part.state.report, part.state.polled_log
        watermark = report or polled
        yield (
            tp.topic,
            uuid_to_text(tp.topic_id),
            tp.partition,
            whole.first,
            whole.end,
            part.state.log_start_offset,
            None if watermark is None else watermark.high_watermark,
            _reason(whole, options),
        )


def _reason(whole: ReadRange, options: RecordsOptions) -> str:
    """Return why a read goes no further."""
    end, partition = whole.end, whole.found
    if end < partition.end:
        return f"option {options.ending.option}"
    if end < partition.reach.end:
        return f"the end of the transaction at offset {end} is not in the tier yet"
    return f"no finished segment has offset {end}"
