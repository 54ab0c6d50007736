"""Prepare the demos' scratch directories of links, and wait until all is shipped."""

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from services.api.remote_log_manager import (
    PartitionDescription,
    ProblemKind,
    RemoteLogManager,
    all_descriptions,
)
from services.cli.output import EXIT_FAILED, CommandError, progress, say
from services.common.quantities import counted
from services.rlm.kafka_log.log_dir import LogDirs
from services.rlm.kafka_log.partition_dir import list_segments
from services.views.texts import size_text, sized
from services.views.tier import problem_text

SEGMENT_SUFFIXES = (".log", ".index", ".timeindex", ".txnindex")


def link_log_dir(source: Path, scratch: Path) -> None:
    """Mirror the log directory `source` in `scratch`, with a symbolic link for each file.

    Only the folders are created, also those of partitions that are links themselves; not a byte is
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
    """Remove the links of a partition's rolled segments that end at or below `through_offset`.

    Returns the number of these segments.

    Raises:
        ValueError: a file is not a link; no file of its segment is removed.
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


# PostgreSQL's files, the store's own bookkeeping, and a reserve.
SPARE_BYTES = 1024 * 1024 * 1024
SHIP_TIMEOUT_WITHOUT_PROGRESS_S = 120.0
# An open transaction keeps what follows it from being copied; without a broker nothing ends it.
SETTLED_WITHOUT_PROGRESS_S = 10.0
POLL_S = 0.2


@contextmanager
def scratch_directory() -> Iterator[Path]:
    """Create a directory for all data of a demo, and remove it at the end.

    PostgreSQL's own user can enter it.
    """
    with tempfile.TemporaryDirectory(prefix="sediment-demo-") as name:
        directory = Path(name)
        directory.chmod(0o711)
        yield directory


def begin_step(text: str) -> None:
    """Print an empty line and the text: one call escapes its line ends."""
    say("")
    say(text)


def announce_size(log_dirs: LogDirs, log_dir: Path, scratch: Path) -> None:
    """Print the size that will be written, and stop if the disk has too little room."""
    sizes = [
        segment.size_bytes
        for partition in log_dirs.partitions.values()
        for segment in list_segments(partition.path)
        if segment.is_rolled
    ]
    size_bytes = sum(sizes)
    say(
        f"{log_dir}: {counted(len(log_dirs.partitions), 'partition')}, "
        f"{counted(len(sizes), 'rolled segment')}; "
        f"{size_text(size_bytes)} ({size_bytes:,} bytes) will go to the embedded store "
        f"below {scratch}"
    )
    check_room(size_bytes, shutil.disk_usage(scratch).free, scratch)


def check_room(size_bytes: int, free_bytes: int, scratch: Path) -> None:
    """Raise CommandError if the segments and the servers' needs do not fit into `free_bytes`.

    The segments have `size_bytes`.
    """
    needed = size_bytes + SPARE_BYTES
    if needed > free_bytes:
        raise CommandError(
            f"the disk of {scratch} has {size_text(free_bytes)} free, {size_text(needed)} "
            "are needed; set TMPDIR to a larger one",
            EXIT_FAILED,
        )


def wait_until_shipped(rlm: RemoteLogManager) -> list[PartitionDescription]:
    """Display RLM's progress until all is in the tier that can be copied."""
    last_change, before = time.monotonic(), -1
    with progress() as show:
        while True:
            descriptions = list(all_descriptions(rlm))
            done = sum(d.remote_size_bytes for d in descriptions)
            lag_bytes = sum(d.lag_bytes for d in descriptions)
            segments = sum(d.remote_segments for d in descriptions)
            show(f"shipped {sized(segments, done)} of {size_text(done + lag_bytes)}")
            if all(map(_is_shipped, descriptions)):
                return descriptions
            if done != before:
                last_change, before = time.monotonic(), done
            unchanged_s = time.monotonic() - last_change
            if unchanged_s > SETTLED_WITHOUT_PROGRESS_S and all(map(_is_over, descriptions)):
                return descriptions
            if unchanged_s > SHIP_TIMEOUT_WITHOUT_PROGRESS_S:
                raise CommandError(_stuck(descriptions), EXIT_FAILED)
            Event().wait(POLL_S)


def _is_shipped(description: PartitionDescription) -> bool:
    # A failed call of a service is repeated by the next pass.
    blocked = sum(
        problem.blocked_segments
        for problem in description.problems
        if problem.kind is not ProblemKind.STORE_UNAVAILABLE
    )
    return description.lag_segments == blocked


def _is_over(description: PartitionDescription) -> bool:
    """Return whether all is in the tier but what is blocked, or follows an open transaction."""
    is_open = description.last_stable_offset < description.log_end_offset
    return is_open or _is_shipped(description)


def _stuck(descriptions: Sequence[PartitionDescription]) -> str:
    problems = [problem_text(p) for d in descriptions for p in d.problems] or ["no reason known"]
    return "shipping makes no progress: " + "; ".join(problems[:5])
