"""Serve the data source `sediment`: choose a table, plan its tasks, and read them."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from services.api.errors import InvalidRequestError
from services.api.segment_batches import MAX_SHARDS
from spark_jobs.connections import Services
from spark_jobs.source_options import CONNECTION, SourceOptions
from spark_jobs.spark_schemas import spark_schema
from spark_jobs.tables.events_table import EventsTable
from spark_jobs.tables.partitions_table import PartitionsTable
from spark_jobs.tables.segments_table import SegmentsTable
from spark_jobs.tables.table import DEFAULT_SHARDS, FILTERS, Table, TableQuery, check_known
from spark_jobs.worker_errors import one_line_errors

NAME = "sediment"
TABLES: dict[str, Table] = {
    table.name: table for table in (SegmentsTable(), PartitionsTable(), EventsTable())
}
OPTIONS = ("table", *(name for name in CONNECTION if name != "rsm"), *FILTERS, "shards")


@one_line_errors
class SedimentTables(DataSource):
    """The data source `sediment`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options, table, _ = self._checked()
        options.check_connection()
        return spark_schema(table.columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options, table, query = self._checked()
        if schema.fieldNames() != table.columns.names:
            raise InvalidRequestError(f"the table {table.name} has its own columns; give no schema")
        services = options.services("rlmm")
        with services.connected_rlmm() as rlmm:
            check_known(rlmm, query)
        return TableReader(services, table, query)

    def _checked(self) -> tuple[SourceOptions, Table, TableQuery]:
        options = SourceOptions(self.options, OPTIONS)
        table = TABLES[options.choice("table", TABLES, SegmentsTable.name)]
        shards = options.number("shards", None, 1, MAX_SHARDS) or DEFAULT_SHARDS
        return options, table, table.query(options, shards)


@one_line_errors
class TableReader(DataSourceReader):
    """Read a table.

    It accepts no filters of a query: Spark gives a reader's filters to later queries of the frame.
    """

    def __init__(self, services: Services, table: Table, query: TableQuery) -> None:
        self._services = services
        self._table = table
        self._query = query

    def partitions(self) -> Sequence[InputPartition]:
        with self._services.connected_rlmm() as rlmm:
            return [InputPartition(task) for task in self._table.tasks(rlmm, self._query)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark reads one task if there are none
            return
        with self._services.connected_rlmm() as rlmm:
            yield from self._table.batches(rlmm, partition.value)
