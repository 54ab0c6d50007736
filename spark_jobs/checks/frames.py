"""Build the frames of a check: the store's objects, and every segment with its objects and row."""

from collections.abc import Collection, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark_jobs.checks.objects import (
    LISTINGS_SCHEMA,
    OBJECT_FIELDS,
    OBJECTS_SCHEMA,
    SEGMENT_KEY,
    list_objects,
)
from spark_jobs.connections import Services
from spark_jobs.segments_source import remote_log_segments
from spark_jobs.sweeps.plan import SCAN_SCHEMA
from spark_jobs.sweeps.spark_engine import SparkEngine
from spark_jobs.sweeps.stages import Stored
from spark_jobs.sweeps.sweep import require_all

_LISTINGS = 64


def listed_objects(
    engine: SparkEngine,
    services: Services,
    name: str,
    locations: Sequence[int],
    shards: Collection[int] = range(_LISTINGS),
    of_shards: int = _LISTINGS,
) -> DataFrame:
    """List the objects of locations, and store them as the stage `name`.

    Args:
        shards: which of `of_shards` shards to list.
    """
    listings = pa.Table.from_pylist(
        [
            {"location_id": location_id, "shard": shard, "shards": of_shards}
            for location_id in locations
            for shard in shards
        ],
        schema=LISTINGS_SCHEMA,
    )
    tasks = max(1, min(listings.num_rows, 2 * engine.parallelism))
    stored = engine.scatter(
        name, partial(list_objects, services=services), listings, OBJECTS_SCHEMA, tasks
    )
    return whole_frame(engine, stored)


def whole_frame(engine: SparkEngine, stored: Stored) -> DataFrame:
    """Return all rows of a stage.

    Raises:
        SweepError: not all of them can be read here.
    """
    require_all(engine, stored, engine.count(stored))
    return engine.frame(stored)


def segments_with_objects(
    engine: SparkEngine, services: Services, objects: DataFrame, topics: Sequence[str] = ()
) -> DataFrame:
    """Join objects with RLMM's rows: SEGMENT_KEY, `objects`, `row`; either may be null.

    RLMM is read when the frame is, thus after the objects, which must be stored.

    Args:
        topics: read only the rows of these topics; empty for all.
    """
    of_object = F.struct(*(field.name for field in OBJECT_FIELDS))
    grouped = objects.groupBy(*SEGMENT_KEY).agg(F.collect_list(of_object).alias("objects"))
    scanned = remote_log_segments(engine.session, services, topics)
    rows = scanned.select(*SEGMENT_KEY, F.struct(*SCAN_SCHEMA.names).alias("row"))
    return grouped.join(rows, list(SEGMENT_KEY), "full_outer")


def by_partition(engine: SparkEngine, segments: DataFrame) -> DataFrame:
    """Bring the segments of a partition into one task, by start offset."""
    start_offset = F.coalesce("row.start_offset", F.get("objects", F.lit(0))["start_offset"])
    together = segments.repartition(2 * engine.parallelism, "topic_id", "partition")
    return together.sortWithinPartitions("topic_id", "partition", start_offset, "segment_id")


def shard_column() -> Column:
    """Return the shard, of 256, of a row's topic."""
    return F.conv(F.substring("topic_id", 1, 2), 16, 10).cast("int")
