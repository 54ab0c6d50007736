"""Find and name the files of an inventory, by the manifest that S3 writes beside them."""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

MANIFEST = "manifest.json"
FORMATS = ("CSV", "Parquet", "ORC")
_WORD_BEGINS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class NoInventoryError(Exception):
    """The text is not the manifest of an inventory; says why."""


_LATEST_MS = 253_402_300_799_999
"""The end of the year 9999, in which calendars end."""


@dataclass(frozen=True, slots=True)
class InventoryFiles:
    """What a manifest says.

    Attributes:
        format: one of FORMATS.
        bucket: that was listed.
        made_ms: when the store began to make it.
        columns: of a CSV file, which has no line with their names; empty for the other formats.
        paths: of the files.
    """

    format: str
    bucket: str
    made_ms: int
    columns: tuple[str, ...]
    paths: tuple[str, ...]


def read_manifest(text: str, path: str) -> InventoryFiles:
    """Read a manifest that is at `path`.

    Raises:
        NoInventoryError: it is none.
    """
    try:
        document = json.loads(text)
        file_format, schema = document["fileFormat"], document["fileSchema"]
        keys = [each["key"] for each in document["files"]]
        bucket, made_ms = document["sourceBucket"], int(document["creationTimestamp"])
        if not 0 <= made_ms <= _LATEST_MS:
            raise ValueError(f"creationTimestamp is {made_ms}")
    except (ValueError, KeyError, TypeError) as e:
        raise NoInventoryError(
            f"it is not a manifest of S3 ({type(e).__name__}: {e}); it needs fileFormat, "
            "fileSchema, files, sourceBucket and creationTimestamp; copy it as S3 wrote it"
        ) from e
    if file_format not in FORMATS:
        raise NoInventoryError(f"its files are {file_format}, not one of {', '.join(FORMATS)}")
    if not keys or not all(isinstance(each, str) for each in (*keys, bucket, schema)):
        raise NoInventoryError("it names no files; the inventory was not finished")
    columns = column_names(schema.split(",")) if file_format == "CSV" else ()
    return InventoryFiles(file_format, bucket, made_ms, columns, tuple(_paths(path, keys)))


def column_names(names: Iterable[str]) -> tuple[str, ...]:
    """Turn the names of a fileSchema, such as LastModifiedDate, into those of the other formats."""
    return tuple(_WORD_BEGINS.sub("_", name.strip()).lower() for name in names)


def _paths(manifest: str, keys: Sequence[str]) -> Iterable[str]:
    """Yield the paths of files, of which the manifest has the keys in its own bucket.

    A copy in a directory has them as S3 does: PLACE/data/NAME beside PLACE/TIME/manifest.json.
    """
    parts = urlsplit(manifest)
    if parts.netloc:
        yield from (f"{parts.scheme}://{parts.netloc}/{key}" for key in keys)
        return
    place = "/".join(manifest.split("/")[:-2]) or "."
    yield from (f"{place}/{'/'.join(key.split('/')[-2:])}" for key in keys)


def is_manifest(path: str) -> bool:
    return path.split("/")[-1] == MANIFEST
