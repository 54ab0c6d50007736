"""List the objects of the stores in tasks, and turn objects into rows and back."""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import Any
from uuid import UUID

import pyarrow as pa

from services.api.segment_objects import (
    ObjectLocation,
    ObjectQuery,
    SegmentObject,
    SegmentObjectKind,
    SegmentObjectName,
    all_segment_objects,
)
from services.workflows.segment_views import StoreView
from spark_jobs.connections import Services
from spark_jobs.sweeps.plan import Row, batches_of, rows_in

SEGMENT_KEY = ("topic_id", "partition", "segment_id")

OBJECT_FIELDS = [
    pa.field("location_id", pa.int32()),
    pa.field("object_key", pa.string()),
    pa.field("object_kind", pa.string()),
    pa.field("attempt", pa.string()),
    pa.field("start_offset", pa.int64()),
    pa.field("size_bytes", pa.int64()),
    pa.field("etag", pa.string()),
    pa.field("modified_ms", pa.int64()),
]

OBJECTS_SCHEMA = pa.schema(
    [
        pa.field("topic_id", pa.string()),
        pa.field("partition", pa.int32()),
        pa.field("segment_id", pa.string()),
        *OBJECT_FIELDS,
    ]
)
"""The objects of segments; a manifest has no attempt."""

LISTINGS_SCHEMA = pa.schema(
    [
        pa.field("location_id", pa.int32()),
        pa.field("shard", pa.int32()),
        pa.field("shards", pa.int32()),
    ]
)
"""The listings to make, each an ObjectQuery."""


def list_objects(batches: Iterable[pa.RecordBatch], services: Services) -> Iterator[pa.RecordBatch]:
    """List objects: LISTINGS_SCHEMA to OBJECTS_SCHEMA. Safe to run twice."""
    with services.connected_objects() as objects:
        for row in rows_in(batches):
            query = ObjectQuery(row["location_id"], row["shard"], row["shards"])
            yield from batches_of(
                map(object_row, all_segment_objects(objects, query)), OBJECTS_SCHEMA
            )


def object_row(stored: SegmentObject) -> Row:
    """Return an object as a row of OBJECTS_SCHEMA."""
    name = stored.name
    return {
        "topic_id": str(name.topic_id),
        "partition": name.partition,
        "segment_id": str(name.segment_id),
        "location_id": stored.location.location_id,
        "object_key": stored.location.key,
        "object_kind": name.kind.name,
        "attempt": name.attempt,
        "start_offset": name.start_offset,
        "size_bytes": stored.size_bytes,
        "etag": stored.etag,
        "modified_ms": stored.modified_ms,
    }


def object_of(segment: Mapping[str, Any], row: Mapping[str, Any]) -> SegmentObject:
    """Build an object from the SEGMENT_KEY of its segment and its OBJECT_FIELDS."""
    name = SegmentObjectName(
        topic_id=UUID(segment["topic_id"]),
        partition=segment["partition"],
        start_offset=row["start_offset"],
        segment_id=UUID(segment["segment_id"]),
        kind=SegmentObjectKind[row["object_kind"]],
        attempt=row["attempt"],
    )
    location = ObjectLocation(row["location_id"], row["object_key"])
    return SegmentObject(location, name, row["size_bytes"], row["etag"], row["modified_ms"])


def views_of(row: Row) -> list[StoreView]:
    """Return the objects of a segment, one view for each location, in the order of a listing."""
    made = [object_of(row, each) for each in row["objects"] or ()]
    made.sort(key=lambda each: (each.location.location_id, each.location.key))
    by_location = groupby(made, key=lambda each: each.location.location_id)
    return [StoreView(tuple(segment_objects)) for _, segment_objects in by_location]
