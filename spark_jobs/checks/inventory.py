"""Read an inventory of a bucket, as S3 makes it, and refuse one that is not of the location."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from urllib.parse import urlsplit

import pyarrow as pa
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from services.api.segment_objects import (
    ObjectLocation,
    ObjectQuery,
    SegmentObject,
    SegmentObjects,
    prefix_of,
    segment_object_name,
)
from services.common.quantities import DURATION_MS
from spark_jobs.checks.frames import whole_frame
from spark_jobs.checks.objects import OBJECTS_SCHEMA, object_row
from spark_jobs.checks.options import Inventory
from spark_jobs.sweeps.plan import batches_of, rows_in
from spark_jobs.sweeps.spark_engine import SparkEngine, cause_of, spark_errors
from spark_jobs.sweeps.sweep_error import EXIT_REFUSED, SweepError

MANIFEST = "manifest.json"
_WORD_BEGINS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
COLUMNS = ("bucket", "key", "size", "last_modified_date")
_VERSIONS = {"is_latest": "true", "is_delete_marker": "false"}
"""Columns of an inventory of all versions, and the values of the present one."""

_IS_PATH = re.compile(
    r"Path does not exist|No FileSystem|UnsupportedFileSystem|FileNotFound|NoSuchBucket|Access"
)
"""Texts of causes by which the path of an inventory is wrong."""

_SAMPLE = 100
"""Objects of the store that are looked up in the inventory."""


@dataclass(frozen=True, slots=True)
class OpenInventory:
    """An inventory that is of the right location.

    Attributes:
        rows: `key`, `size_bytes`, `modified_ms`.
        made_ms: when it was made, or before that.
        location_id: the number of the location that it lists.
        prefix: with which the location's keys begin.
    """

    rows: DataFrame
    made_ms: int
    location_id: int
    prefix: str


def open_inventory(
    engine: SparkEngine,
    objects: SegmentObjects,
    inventory: Inventory,
    location_id: int,
    now_ms: int,
) -> OpenInventory:
    """Read and check an inventory of a location.

    Raises:
        SweepError: it is none, it is too old, or it is of another bucket; with the exit code of a
            refusal.
    """
    sample = objects.list_segment_objects(ObjectQuery(location_id), page_size=_SAMPLE).objects
    if not sample:
        raise _refused("the store lists no segment in this location; leave the option out")
    with spark_errors(), _path_errors(inventory.path):
        rows, made_ms = _rows_of(engine.session, inventory)
        newest_ms = _check(rows, sample, inventory)
    made_ms = newest_ms if made_ms is None else made_ms
    _require_young(made_ms, inventory, now_ms)
    object_rows, location = rows.select("key", "size_bytes", "modified_ms"), sample[0].location
    return OpenInventory(object_rows, made_ms, location.location_id, prefix_of(location.key))


def inventory_objects(engine: SparkEngine, opened: OpenInventory, name: str) -> DataFrame:
    """Store the segments' objects of an inventory as the stage `name`, and return them."""
    task = partial(objects_of_keys, location_id=opened.location_id, prefix=opened.prefix)
    return whole_frame(engine, engine.written(name, task, opened.rows, OBJECTS_SCHEMA))


def objects_of_keys(
    batches: Iterable[pa.RecordBatch], location_id: int, prefix: str
) -> Iterator[pa.RecordBatch]:
    """Turn `key`, `size_bytes`, `modified_ms` into OBJECTS_SCHEMA, without other objects."""
    segment_objects = (_object_of(row, location_id, prefix) for row in rows_in(batches))
    yield from batches_of((object_row(each) for each in segment_objects if each), OBJECTS_SCHEMA)


def _object_of(row: Mapping[str, str | int], location_id: int, prefix: str) -> SegmentObject | None:
    key = str(row["key"])
    name = segment_object_name(prefix, key)
    if name is None:
        return None
    location = ObjectLocation(location_id, key)
    return SegmentObject(location, name, int(row["size_bytes"]), "", int(row["modified_ms"]))


def _rows_of(spark: SparkSession, inventory: Inventory) -> tuple[DataFrame, int | None]:
    """Read an inventory as `bucket`, `key`, `size_bytes`, `modified_ms`; null for what is none.

    Returns:
        the rows, and when the inventory was made if it says so.
    """
    path, made_ms = inventory.path.rstrip("/"), None
    if path.split("/")[-1] == MANIFEST:
        [row] = spark.read.text(path, wholetext=True).collect()
        manifest = read_manifest(row[0], path, inventory.bucket)
        made_ms, is_csv, paths = manifest.made_ms, manifest.format == "csv", list(manifest.paths)
        if is_csv:
            columns = ", ".join(f"`{name}` STRING" for name in manifest.columns)
            frame = spark.read.csv(paths, schema=columns, header=False, escape='"')
        else:
            frame = spark.read.format(manifest.format).load(paths)
    elif path.endswith((".csv", ".csv.gz")):
        frame, is_csv = _frame_of_csv(spark, path), True
    elif path.endswith((".parquet", ".orc")):
        frame, is_csv = spark.read.format(path.rpartition(".")[2]).load(path), False
    else:
        raise _refused(f"{path} must be a {MANIFEST}, or end with .csv, .csv.gz, .parquet or .orc")
    frame = _with_names(frame)
    if not _has_columns(frame):
        present = ", ".join(frame.columns)
        raise _refused(
            f"{path} has the columns {present}; needs {', '.join(COLUMNS)}. The {MANIFEST} of S3 "
            "names the columns of files that do not"
        )
    for name, value in _VERSIONS.items():
        if name in frame.columns:
            frame = frame.where(F.lower(F.col(name).cast("string")) == value)
    key = F.url_decode("key") if is_csv else F.col("key")  # S3 encodes keys only in CSV
    written = F.col("last_modified_date").try_cast("timestamp")
    rows = frame.select(
        "bucket",
        key.alias("key"),
        F.col("size").try_cast("long").alias("size_bytes"),
        F.unix_millis(written).alias("modified_ms"),
    )
    return rows, made_ms


@dataclass(frozen=True, slots=True)
class Manifest:
    """What S3 writes beside the files of an inventory.

    Attributes:
        format: of Spark: "csv", "parquet" or "orc".
        made_ms: when the store began to make it.
        columns: of CSV files, which have no line with their names.
        paths: of the files.
    """

    format: str
    made_ms: int
    columns: tuple[str, ...]
    paths: tuple[str, ...]


def read_manifest(text: str, path: str, bucket: str) -> Manifest:
    """Read a manifest that is at `path`.

    Raises:
        SweepError: it is none, or of another bucket.
    """
    try:
        document = json.loads(text)
        file_format, schema = str(document["fileFormat"]).lower(), str(document["fileSchema"])
        keys = [str(each["key"]) for each in document["files"]]
        of_bucket, made_ms = document["sourceBucket"], int(document["creationTimestamp"])
        text_of_ms(made_ms)
    except (ValueError, KeyError, TypeError, OverflowError) as e:
        raise _refused(
            f"{path} is not a manifest of S3 ({type(e).__name__}: {e}); it needs fileFormat, "
            "fileSchema, files, sourceBucket and creationTimestamp; copy it as S3 wrote it"
        ) from e
    if file_format not in ("csv", "parquet", "orc"):
        raise _refused(f"{path}: its files are {file_format}, not CSV, Parquet or ORC")
    if not keys:
        raise _refused(f"{path} names no files; the inventory was not finished")
    if of_bucket != bucket:
        raise _refused(f"{path} is of the bucket {of_bucket}, not of {bucket}; give that of it")
    # LastModifiedDate of a fileSchema is last_modified_date in the other formats.
    columns = tuple(_WORD_BEGINS.sub("_", each.strip()).lower() for each in schema.split(","))
    return Manifest(file_format, made_ms, columns, tuple(_paths(path, keys)))


def _paths(manifest: str, keys: Sequence[str]) -> Iterator[str]:
    """Yield the paths of files, of which the manifest has the keys in its own bucket.

    A copy in a directory has them as S3 does: PLACE/data/NAME beside PLACE/TIME/manifest.json.
    """
    parts = urlsplit(manifest)
    if parts.netloc:
        yield from (f"{parts.scheme}://{parts.netloc}/{key}" for key in keys)
        return
    place = "/".join(manifest.split("/")[:-2]) or "."
    yield from (f"{place}/{'/'.join(key.split('/')[-2:])}" for key in keys)


def _frame_of_csv(spark: SparkSession, path: str) -> DataFrame:
    """Read a file whose first line has the names of its columns, or which has just COLUMNS."""
    frame = _with_names(spark.read.csv(path, header=True, escape='"'))
    if not _has_columns(frame) and len(frame.columns) == len(COLUMNS):
        frame = spark.read.csv(path, header=False, escape='"').toDF(*COLUMNS)
    return frame


def _with_names(frame: DataFrame) -> DataFrame:
    return frame.toDF(*(name.lower() for name in frame.columns))


def _has_columns(frame: DataFrame) -> bool:
    return set(COLUMNS) <= set(frame.columns)


def _check(rows: DataFrame, sample: Iterable[SegmentObject], inventory: Inventory) -> int:
    """Refuse an inventory with another bucket, an incomplete one, and one without the sample.

    Returns:
        when its newest object was written; it was made then or later.
    """
    is_other = F.col("bucket").isNull() | (F.col("bucket") != inventory.bucket)
    is_partial = F.col("size_bytes").isNull() | F.col("modified_ms").isNull()
    keys = [each.location.key for each in sample]
    [totals] = rows.agg(
        F.count_if(is_other).alias("others"),
        F.max(F.when(is_other, F.col("bucket"))).alias("other"),
        F.count_if(is_partial | F.col("key").isNull()).alias("partial"),
        F.max("modified_ms").alias("newest_ms"),
        F.count_if(F.col("key").isin(keys)).alias("known"),
    ).collect()
    path, bucket = inventory.path, inventory.bucket
    if totals["others"]:
        other = totals["other"]
        raise _refused(f"{path} is of the bucket {other}, not of {bucket}; give that of {bucket}")
    if totals["partial"]:
        raise _refused(
            f"{path} has {totals['partial']:,} rows without key, size or time; make it again"
        )
    if totals["newest_ms"] is None:
        raise _refused(f"{path} has no objects; make it again")
    newest_ms = int(totals["newest_ms"])
    if any(each.modified_ms <= newest_ms for each in sample) and not totals["known"]:
        raise _refused(
            f"{path} has no object that the store lists, such as {keys[0]}; it is of another "
            "bucket or location: give that of this one"
        )
    return newest_ms


def _require_young(made_ms: int, inventory: Inventory, now_ms: int) -> None:
    """Refuse an old inventory: it hides what was lost since."""
    age_ms = now_ms - made_ms
    if age_ms > inventory.max_age_ms:
        most = DURATION_MS.text(inventory.max_age_ms)
        raise _refused(
            f"{inventory.path} is of {text_of_ms(made_ms)}, {age_ms:,} ms old, and hides what was "
            f"lost since; give a newer one, or raise --max-inventory-age {most}"
        )


def text_of_ms(at_ms: int) -> str:
    return (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)).isoformat()


@contextmanager
def _path_errors(path: str) -> Iterator[None]:
    """Refuse a path that cannot be read; any other error of Spark stays as it is."""
    try:
        yield
    except (PySparkException, Py4JError) as e:
        cause = cause_of(e)
        if _IS_PATH.search(cause) is None:
            raise
        raise _refused(f"{path}: {cause}; give a path that every executor can read") from e


def _refused(reason: str) -> SweepError:
    return SweepError(f"--inventory: {reason}", EXIT_REFUSED)
