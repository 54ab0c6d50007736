"""A log directory made of links: what is deleted in it is a link, never a user's file."""

import os
from collections.abc import Iterator
from pathlib import Path

from services.rlm.kafka_log.partition_dir import list_segments

SEGMENT_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


def link_log_dir(source: Path, scratch: Path) -> None:
    """Make `scratch` look like the log directory `source`, with a symbolic link for each file.

    Only the folders are made anew, those of partitions too that are links themselves; not a byte is
    copied, and nothing is written below `source`. A folder that cannot be read stays empty.
    """
    for folder in (source, *_folders(source)):
        target = scratch / folder.relative_to(source)
        target.mkdir(parents=True, exist_ok=True)
        for file in _entries(folder):
            if not file.is_dir():
                (target / file.name).symlink_to(file.resolve())


def _folders(source: Path) -> Iterator[Path]:
    return (entry for entry in _entries(source) if entry.is_dir())


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except PermissionError:  # find_partitions names it
        return []


def unlink_segments(folder: Path, through_offset: int) -> int:
    """Remove the links of the rolled segments of a partition that end at or below
    `through_offset`; answer how many segments that were.

    Raises:
        ValueError: a file in the way is not a link; nothing of its segment is removed.
    """
    removed = 0
    for segment in list_segments(folder):
        if not segment.is_rolled or segment.end_offset > through_offset:
            continue
        files = [segment.file(suffix) for suffix in SEGMENT_SUFFIXES]
        present = [path for path in files if os.path.lexists(path)]
        for path in present:
            if not path.is_symlink():
                raise ValueError(f"{path} is a file, not a link")
        for path in present:
            path.unlink()
        removed += 1
    return removed
