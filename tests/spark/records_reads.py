"""Read with the records source in this process, without Spark's JVM, as its workers do."""

import json
import pickle
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import CaseInsensitiveDict, InputPartition

from spark_jobs.records.source import SedimentRecords
from tests.harness.tier import SmallTier

Record = dict[str, Any]


@dataclass
class ServedTier(SmallTier):
    """A tier and the addresses of its services."""

    rsm_address: str
    rlmm_address: str


def source(tier: ServedTier, **options: object) -> SedimentRecords:
    given = {"rsm": tier.rsm_address, "rlmm": tier.rlmm_address, "retryForS": "5", **options}
    return SedimentRecords(
        CaseInsensitiveDict(
            {
                name: json.dumps(value) if isinstance(value, dict) else str(value)
                for name, value in given.items()
            }
        )
    )


def tasks(tier: ServedTier, **options: object) -> list[list[Record]]:
    """Return the rows of each task."""
    made = source(tier, **options)
    reader = made.reader(made.schema())
    return [rows_of(reader, each) for each in reader.partitions()]


def rows_of(reader: Any, partition: InputPartition) -> list[Record]:
    moved: Any = pickle.loads(pickle.dumps(reader))
    rows: list[Record] = []
    for batch in moved.read(pickle.loads(pickle.dumps(partition))):
        rows += batch.to_pylist()
    return rows


def records(tier: ServedTier, **options: object) -> list[Record]:
    return [row for rows in tasks(tier, **options) for row in rows]


def offsets(rows: Iterable[Record]) -> list[int]:
    return [row["offset"] for row in rows]


def reaches(tier: ServedTier, **options: object) -> dict[int, tuple[Any, ...]]:
    """Return, by partition, the row of the table `offsets` from `from_offset` on."""
    made = source(tier, table="offsets", **options)
    reader: Any = made.reader(made.schema())
    found = (row for each in reader.partitions() for row in reader.read(each))
    return {row[2]: row[3:] for row in found}
