"""`sediment demo`: the main job as a show, on embedded real servers and a copy made of links."""

import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Event

from services.api.remote_log_manager import (
    PartitionDescription,
    RemoteLogManager,
    all_descriptions,
)
from services.cli.connections import connected_rlm
from services.cli.failures import EXIT_FAILED, EXIT_USAGE, CommandError
from services.cli.output import Format, print_json, print_table, say, size_text
from services.cli.partitions import problem_text
from services.cli.progress import bytes_bar
from services.cli.read_back import Reading, read_back
from services.cli.scratch import link_log_dir, unlink_segments
from services.local.stack import EmbeddedStack
from services.rlm.kafka_log.errors import LogDirError
from services.rlm.kafka_log.log_dir import LogDirs, find_partitions
from services.rlm.kafka_log.partition_dir import list_segments

# PostgreSQL's files, the store's own bookkeeping, and room to breathe.
SPARE_BYTES = 1024 * 1024 * 1024
SHIP_TIMEOUT_WITHOUT_PROGRESS_S = 120.0
POLL_S = 0.2


def run(log_dir: Path, output: Format) -> int:
    """Answer 0 where every batch came back as it was; 1 where not all could be shipped or read."""
    started = time.monotonic()
    found = _find(log_dir)
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
            readings = [
                read_back(
                    rlm,
                    description.topic_id_partition,
                    found.partitions[description.topic_id_partition].path,
                    description.log_start_offset,
                )
                for description in shipped
            ]
    return _conclude(shipped, readings, time.monotonic() - started, output)


def _find(log_dir: Path) -> LogDirs:
    try:
        return find_partitions([log_dir])
    except LogDirError as e:
        raise CommandError(str(e), EXIT_USAGE) from e


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
    needed, free = sum(sizes), shutil.disk_usage(scratch).free
    say(
        f"{log_dir}: {len(found.partitions)} partitions, {len(sizes)} rolled segments; "
        f"{size_text(needed)} ({needed:,} bytes) will go to the embedded store below {scratch}"
    )
    if needed + SPARE_BYTES > free:
        raise CommandError(
            f"the disk of {scratch} has {size_text(free)} free, {size_text(needed + SPARE_BYTES)} "
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


def _conclude(
    shipped: Sequence[PartitionDescription],
    readings: Sequence[Reading],
    seconds: float,
    output: Format,
) -> int:
    problems = [problem for description in shipped for problem in description.problems]
    failures = [failure for reading in readings for failure in reading.failures]
    if output is Format.JSON:
        print_json(_as_json(shipped, readings, seconds))
    else:
        _print(shipped, readings, seconds)
    for problem in problems:
        say(problem_text(problem))
    for reading in readings:
        tp = reading.topic_id_partition
        for failure in reading.failures[:10]:
            offsets = f"{failure.first_offset}-{failure.last_offset}"
            say(f"{tp.topic}-{tp.partition} offsets {offsets}: {failure.reason}")
    held = sum(problem.held_segments for problem in problems)
    return 1 if failures or held else 0


def _print(
    shipped: Sequence[PartitionDescription], readings: Sequence[Reading], seconds: float
) -> None:
    columns = (
        "partition",
        "shipped",
        "offsets read",
        "batches",
        "tier bytes",
        "disk bytes",
        "failed",
    )
    rows = [_as_row(d, r) for d, r in zip(shipped, readings, strict=True)]
    print_table("Read back, every batch compared with the broker's own file", columns, rows)
    remote = sum(reading.remote_bytes for reading in readings)
    local = sum(reading.local_bytes for reading in readings)
    batches = sum(reading.batches for reading in readings)
    failed = sum(len(reading.failures) for reading in readings)
    segments = sum(description.remote_segments for description in shipped)
    say(
        f"{segments} segments shipped; {batches:,} batches read back, {size_text(remote)} from the "
        f"tier and {size_text(local)} from disk; {failed} failed; {seconds:.0f} s in all"
    )


def _as_row(description: PartitionDescription, reading: Reading) -> tuple[object, ...]:
    tp = description.topic_id_partition
    offsets = f"{reading.first_offset}-{reading.last_offset}" if reading.batches else "none"
    return (
        f"{tp.topic}-{tp.partition}",
        description.remote_segments,
        offsets,
        reading.batches,
        reading.remote_bytes,
        reading.local_bytes,
        len(reading.failures),
    )


def _as_json(
    shipped: Sequence[PartitionDescription], readings: Sequence[Reading], seconds: float
) -> dict[str, object]:
    partitions = [
        {
            "topic": d.topic_id_partition.topic,
            "partition": d.topic_id_partition.partition,
            "remote_segments": d.remote_segments,
            "remote_size_bytes": d.remote_size_bytes,
            "batches": r.batches,
            "first_offset": r.first_offset,
            "last_offset": r.last_offset,
            "read_from_tier_bytes": r.remote_bytes,
            "read_from_disk_bytes": r.local_bytes,
            "failures": [[f.first_offset, f.last_offset, f.reason] for f in r.failures],
        }
        for d, r in zip(shipped, readings, strict=True)
    ]
    return {"partitions": partitions, "seconds": round(seconds, 1)}
