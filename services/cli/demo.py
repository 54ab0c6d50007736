"""`sediment demo`: the main job as a show, on embedded real servers and a copy made of links."""

import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Event

from services.api.remote_log_manager import (
    PartitionDescription,
    RemoteLogManager,
    all_descriptions,
)
from services.cli.connections import connected_rlm
from services.cli.demo_report import DemoReport, show
from services.cli.failures import EXIT_FAILED, CommandError
from services.cli.output import Format, say, size_text
from services.cli.partitions import problem_text
from services.cli.progress import bytes_bar
from services.cli.read_back import Reading, read_back
from services.cli.scratch import link_log_dir, unlink_segments
from services.local.stack import EmbeddedStack
from services.rlm.kafka_log.log_dir import LogDirs, find_partitions
from services.rlm.kafka_log.partition_dir import list_segments

# PostgreSQL's files, the store's own bookkeeping, and room to breathe.
SPARE_BYTES = 1024 * 1024 * 1024
SHIP_TIMEOUT_WITHOUT_PROGRESS_S = 120.0
POLL_S = 0.2
_ENDED_BY_SIGTERM = 128 + signal.SIGTERM


def run(log_dir: Path, output: Format) -> int:
    """Answer 0 where every batch came back as it was; 1 where not all could be shipped or read.

    Raises:
        LogDirError: the log directory cannot be used.
        CommandError: the disk has no room for it; shipping makes no progress.
    """
    # What was started ends with us in any case; the scratch directory goes only if we end in order.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_ENDED_BY_SIGTERM))
    started = time.monotonic()
    found = find_partitions([log_dir])
    with _scratch() as scratch:
        _announce_size(found, log_dir, scratch)
        link_log_dir(log_dir, scratch / "log")
        say("starting PostgreSQL, an S3 server and the three services ...")
        stack = EmbeddedStack(
            scratch / "data", log_dirs=[scratch / "log"], task_interval_ms=int(POLL_S * 1000)
        )
        with stack, connected_rlm(stack.endpoints.rlm, None) as rlm:
            say(f"they run after {time.monotonic() - started:.0f} s")
            shipped = _wait_until_shipped(rlm)
            removed = _lose_local_copies(found, scratch / "log", log_dir, shipped)
            say(f"removed {removed} local segments (links) that are in the tier; reading back ...")
            readings = _read_all_back(rlm, found, shipped)
        shipped = [_naming_originals(d, scratch / "log", log_dir) for d in shipped]
    report = DemoReport(found.problems, shipped, readings, time.monotonic() - started)
    show(report, output)
    return report.exit_code


@contextmanager
def _scratch() -> Iterator[Path]:
    """Where the show keeps everything; open to PostgreSQL's own user, gone at the end."""
    with tempfile.TemporaryDirectory(prefix="sediment-demo-") as name:
        directory = Path(name)
        directory.chmod(0o711)
        yield directory


def _announce_size(found: LogDirs, log_dir: Path, scratch: Path) -> None:
    """Say what will be written, and stop where the disk has no room for it."""
    sizes = [
        segment.size_bytes
        for partition in found.partitions.values()
        for segment in list_segments(partition.path)
        if segment.is_rolled
    ]
    size_bytes = sum(sizes)
    say(
        f"{log_dir}: {len(found.partitions)} partitions, {len(sizes)} rolled segments; "
        f"{size_text(size_bytes)} ({size_bytes:,} bytes) will go to the embedded store "
        f"below {scratch}"
    )
    check_room(size_bytes, shutil.disk_usage(scratch).free, scratch)


def check_room(size_bytes: int, free_bytes: int, scratch: Path) -> None:
    """Raise CommandError unless `size_bytes` of segments, and what the servers need besides, fit
    into `free_bytes`."""
    needed = size_bytes + SPARE_BYTES
    if needed > free_bytes:
        raise CommandError(
            f"the disk of {scratch} has {size_text(free_bytes)} free, {size_text(needed)} "
            "are needed; set TMPDIR to a larger one",
            EXIT_FAILED,
        )


def _wait_until_shipped(rlm: RemoteLogManager) -> list[PartitionDescription]:
    """Watch RLM ship, until all that is not held back is in the tier."""
    last_change, before = time.monotonic(), -1
    with bytes_bar() as bar:
        task = bar.add_task("shipping", total=None)
        while True:
            descriptions = list(all_descriptions(rlm))
            done = sum(d.remote_size_bytes for d in descriptions)
            pending = sum(d.pending_size_bytes for d in descriptions)
            segments = sum(d.remote_segments for d in descriptions)
            description = f"shipped {segments} segments"
            bar.update(task, total=done + pending, completed=done, description=description)
            if all(_is_shipped(d) for d in descriptions):
                return descriptions
            if done != before:
                last_change, before = time.monotonic(), done
            if time.monotonic() - last_change > SHIP_TIMEOUT_WITHOUT_PROGRESS_S:
                raise CommandError(_stuck(descriptions), EXIT_FAILED)
            Event().wait(POLL_S)


def _is_shipped(description: PartitionDescription) -> bool:
    held = sum(problem.held_segments for problem in description.problems)
    return description.pending_segments == held


def _stuck(descriptions: Sequence[PartitionDescription]) -> str:
    problems = [problem_text(p) for d in descriptions for p in d.problems] or ["no reason known"]
    return "shipping makes no progress: " + "; ".join(problems[:5])


def _lose_local_copies(
    found: LogDirs, scratch: Path, log_dir: Path, shipped: Sequence[PartitionDescription]
) -> int:
    return sum(
        unlink_segments(
            scratch / found.partitions[d.topic_id_partition].path.relative_to(log_dir),
            d.copied_through_offset,
        )
        for d in shipped
    )


def _naming_originals(
    description: PartitionDescription, scratch: Path, log_dir: Path
) -> PartitionDescription:
    """Problems by the user's own paths: those of the links are gone when they are read."""
    problems = tuple(
        replace(problem, path=problem.path.replace(str(scratch), str(log_dir), 1))
        for problem in description.problems
    )
    return replace(description, problems=problems)


def _read_all_back(
    rlm: RemoteLogManager, found: LogDirs, shipped: Sequence[PartitionDescription]
) -> list[Reading]:
    """Compared with the folders as the broker left them."""
    return [
        read_back(
            rlm,
            d.topic_id_partition,
            found.partitions[d.topic_id_partition].path,
            d.log_start_offset,
        )
        for d in shipped
    ]
