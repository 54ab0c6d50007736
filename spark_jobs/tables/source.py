"""Serve the data source `sediment`: choose a table, plan its tasks, and select rows."""

from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from services.api.errors import InvalidRequestError
from services.api.segment_batches import MAX_SHARDS
from spark_jobs.connections import Services
from spark_jobs.source_options import CONNECTION, SourceOptions
from spark_jobs.tables.conditions import Condition, selected
from spark_jobs.tables.events_table import AnomaliesTable, EventsTable
from spark_jobs.tables.partitions_table import PartitionsTable, TopicsTable
from spark_jobs.tables.segments_table import SegmentsTable
from spark_jobs.tables.table import DEFAULT_SHARDS, FIGURES, FILTERS, Connected, Table
from spark_jobs.tables.usage_table import UsageTable

NAME = "sediment"
TABLES: dict[str, Table] = {
    table.name: table
    for table in (
        SegmentsTable(),
        PartitionsTable(),
        EventsTable(),
        AnomaliesTable(),
        TopicsTable(),
        UsageTable(),
    )
}
OPTIONS = (
    "table",
    *(name for name in CONNECTION if name != "rsm"),
    *FILTERS,
    *FIGURES,
    "shards",
)


class SedimentTables(DataSource):
    """The data source `sediment`."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        options, table = self._checked()
        options.check_connection()
        table.conditions(options)
        _shards_of(options)
        return table.columns.of_spark

    def reader(self, schema: StructType) -> DataSourceReader:
        options, table = self._checked()
        if schema.fieldNames() != table.columns.of_spark.fieldNames():
            raise InvalidRequestError(f"the table {table.name} has its own columns; give no schema")
        services = options.services("rlmm")
        with services.connected_rlmm() as rlmm:
            table.check_known(Connected(rlmm, services), options)
        return TableReader(services, table, table.conditions(options), _shards_of(options))

    def _checked(self) -> tuple[SourceOptions, Table]:
        options = SourceOptions(self.options, OPTIONS)
        table = TABLES[options.choice("table", TABLES, SegmentsTable.name)]
        return options, table.configured(options)


def _shards_of(options: SourceOptions) -> int:
    return options.number("shards", None, 1, MAX_SHARDS) or DEFAULT_SHARDS


class TableReader(DataSourceReader):
    """Read a table; the options select rows.

    It takes no filters of a query: Spark gives a reader's filters to later queries of the frame.
    """

    def __init__(
        self, services: Services, table: Table, conditions: Sequence[Condition], shards: int
    ) -> None:
        self._services = services
        self._table = table
        self._conditions = list(conditions)
        self._shards = shards

    def partitions(self) -> Sequence[InputPartition]:
        with self._services.connected_rlmm() as rlmm:
            connected = Connected(rlmm, self._services)
            tasks = self._table.tasks(connected, self._conditions, self._shards)
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:  # Spark reads one task if there are none
            return
        with self._services.connected_rlmm() as rlmm:
            connected = Connected(rlmm, self._services)
            for batch in self._table.batches(connected, partition.value, self._conditions):
                kept = selected(batch, self._conditions)
                if kept.num_rows:
                    yield kept
