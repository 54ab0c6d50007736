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
from services.api.ids import TopicIdPartition, uuid_to_text
from spark_jobs.connections import Services
from spark_jobs.records.options import OFFSETS, RecordsOptions, records_options
from spark_jobs.records.reading import read_pieces
from spark_jobs.records.schema import OFFSETS_SCHEMA, RECORDS_SCHEMA
from spark_jobs.records.tier import (
    PartitionReach,
    TierReader,
    connected,
    plan_tasks,
    read_reach,
    require_range,
    wanted_partitions,
)

NAME = "sediment-records"


class SedimentRecords(DataSource):
    """The data source `sediment-records`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        _, options = records_options(self.options)
        return OFFSETS_SCHEMA if options.table == OFFSETS else RECORDS_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        services, options = self._connected(schema)
        if options.table == OFFSETS:
            return OffsetsReader(services, options)
        return RecordsReader(services, options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        given, options = records_options(self.options)
        given.refuse(("toOffset",), "a stream has no end; give toTime, or stop the query")
        given.refuse(("requireAll",), "a stream has failOnDataLoss instead")
        if options.table == OFFSETS:
            raise InvalidRequestError("option table: a stream reads records only")
        services, _ = self._connected(schema)
        try:
            # Not at the top: Spark 4.1 lacks what a stream needs, but not what a read needs.
            stream = import_module("spark_jobs.records.stream")
        except ImportError as e:
            raise InvalidRequestError(f"{NAME}: a stream needs Spark 4.2 or newer") from e
        reader: DataSourceStreamReader = stream.RecordsStreamReader(services, options)
        return reader

    def _connected(self, schema: StructType) -> tuple[Services, RecordsOptions]:
        given, options = records_options(self.options)
        if schema.fieldNames() != self.schema().fieldNames():
            raise InvalidRequestError(f"{NAME} has its own columns; give no schema")
        return given.services("rlmm", "rsm"), options


class RecordsReader(DataSourceReader):
    """Read what the tier has of the wanted partitions when the query is planned.

    It takes no filters of a query: Spark gives a reader's filters to later queries of the frame.
    """

    def __init__(self, services: Services, options: RecordsOptions) -> None:
        self._services = services
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        with connected(self._services) as tier:
            return [
                InputPartition(task)
                for tp in wanted_partitions(tier, options)
                for found in [_reach(tier, tp, options)]
                for task in plan_tasks(
                    tier, options, found, found.reach.first, _end_of(found, options)
                )
            ]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition.value is None:  # Spark reads one task if there are none
            return
        with self._services.connected_rsm() as rsm:
            yield from read_pieces(rsm, self._options, partition.value)


class OffsetsReader(RecordsReader):
    """Report, for each partition, the offsets that RecordsReader reads."""

    def partitions(self) -> Sequence[InputPartition]:
        with connected(self._services) as tier:
            return [InputPartition(tp) for tp in wanted_partitions(tier, self._options)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        if partition.value is None:
            return
        options = self._options
        with connected(self._services) as tier:
            found = read_reach(tier, partition.value, options.from_offset, options.is_committed)
        tp, report, polled = found.topic_id_partition, found.state.report, found.state.polled_log
        watermark = report or polled
        yield (
            tp.topic,
            uuid_to_text(tp.topic_id),
            tp.partition,
            found.reach.first,
            _end_of(found, options),
            found.state.log_start_offset,
            None if watermark is None else watermark.high_watermark,
            _reason(found, options),
        )


def _reach(tier: TierReader, tp: TopicIdPartition, options: RecordsOptions) -> PartitionReach:
    """Read how far a partition reaches.

    Raises:
        InvalidRangeError: `requireAll` was given, and some of the offsets are not there.
    """
    first, last, is_exact = options.from_offset, options.to_offset, options.require_all
    found = read_reach(tier, tp, first, options.is_committed, is_exact=is_exact)
    if is_exact and first is not None and last is not None:
        require_range(found, first, last + 1, "The option requireAll=false reads what is there")
    return found


def _end_of(found: PartitionReach, options: RecordsOptions) -> int:
    """Return the end, exclusive, of what is read of a partition."""
    if options.to_offset is None:
        return found.end
    return max(min(found.end, options.to_offset + 1), found.reach.first)


def _reason(found: PartitionReach, options: RecordsOptions) -> str:
    """Say why a read ends where it does."""
    end = _end_of(found, options)
    if end < found.end:
        return "option toOffset"
    if end < found.reach.end:
        return f"the end of the transaction at offset {end} is not in the tier yet"
    return f"no finished segment has offset {end}"
