"""Demonstrate the main job: ship a Kafka log, lose the local copy, read every batch back."""

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from demos.read_back import Reading, read_back
from demos.stage import (
    POLL_S,
    announce_size,
    link_log_dir,
    scratch_directory,
    unlink_segments,
    wait_until_shipped,
)
from services.api.remote_log_manager import PartitionDescription, Problem, RemoteLogManager
from services.cli.connections import Call
from services.cli.output import EXIT_PARTIAL, Format, print_json, print_tables, say
from services.cli.tables import Wide
from services.common.quantities import counted
from services.local.stack import EmbeddedStack
from services.rlm.kafka_log.log_dir import LogDirs, find_partitions
from services.views.documents import fields_as_json
from services.views.texts import size_text
from services.views.tier import problem_text

_SHOWN_FAILURES = 10

_COLUMNS = (
    "partition",
    "batches",
    "from tier",
    "from disk",
    "failed",
    Wide("shipped"),
    Wide("offsets"),
)


@dataclass(frozen=True, slots=True)
class DemoReport:
    """The shipped partitions, and the result of reading them back.

    Attributes:
        log_dir_problems: folders of the log directory that are not valid partitions.
        readings: of the partitions in `shipped`, in the same order.
    """

    log_dir_problems: Sequence[Problem]
    shipped: Sequence[PartitionDescription]
    readings: Sequence[Reading]
    seconds: float

    @property
    def problems(self) -> list[Problem]:
        of_partitions = [
            problem for description in self.shipped for problem in description.problems
        ]
        return [*self.log_dir_problems, *of_partitions]

    @property
    def exit_code(self) -> int:
        """Return 0 if every batch was read back unchanged."""
        failed = any(reading.failures for reading in self.readings)
        blocked = any(problem.blocked_segments for problem in self.problems)
        return EXIT_PARTIAL if failed or blocked or self.log_dir_problems else 0


def show(report: DemoReport, output: Format) -> None:
    if output is Format.JSON:
        print_json(_as_json(report))
    else:
        _print(report, is_wide=output is Format.WIDE)
    for problem in report.problems:
        say(problem_text(problem))
    for reading in report.readings:
        tp = reading.topic_id_partition
        for failure in reading.failures[:_SHOWN_FAILURES]:
            offsets = f"{failure.first_offset}-{failure.last_offset}"
            say(f"{tp.topic}-{tp.partition} offsets {offsets}: {failure.reason}")


def _print(report: DemoReport, *, is_wide: bool) -> None:
    rows = [_as_row(d, r) for d, r in zip(report.shipped, report.readings, strict=True)]
    title = "Read back, every batch compared with the broker's own file"
    print_tables((title, _COLUMNS, rows), is_wide=is_wide)
    remote = sum(reading.remote_bytes for reading in report.readings)
    local = sum(reading.local_bytes for reading in report.readings)
    batches = sum(reading.batches for reading in report.readings)
    failed = sum(len(reading.failures) for reading in report.readings)
    segments = sum(description.remote_segments for description in report.shipped)
    say(
        f"{counted(segments, 'segment')} shipped; {batches:,} batches read back, "
        f"{size_text(remote)} from the tier and {size_text(local)} from disk; {failed} failed; "
        f"{report.seconds:.0f} s in all"
    )


def _as_row(description: PartitionDescription, reading: Reading) -> tuple[object, ...]:
    tp = description.topic_id_partition
    offsets = f"{reading.first_offset}-{reading.last_offset}" if reading.batches else "none"
    return (
        f"{tp.topic}-{tp.partition}",
        reading.batches,
        size_text(reading.remote_bytes),
        size_text(reading.local_bytes),
        len(reading.failures),
        description.remote_segments,
        offsets,
    )


def _as_json(report: DemoReport) -> dict[str, object]:
    pairs = zip(report.shipped, report.readings, strict=True)
    return {
        "partitions": [_partition_as_json(d, r) for d, r in pairs],
        "problems": [*map(fields_as_json, report.problems)],
        "seconds": round(report.seconds, 1),
    }


def _partition_as_json(d: PartitionDescription, r: Reading) -> dict[str, object]:
    return {
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


_ENDED_BY_SIGTERM = 128 + signal.SIGTERM


def run(log_dir: Path, output: Format) -> int:
    """Run the demo; return 0 if every batch was read back unchanged, else 1.

    Raises:
        LogDirError: the log directory cannot be used.
        CommandError: the disk has too little room, or shipping makes no progress.
    """
    # Started processes always end with this one; the scratch directory is removed only after an
    # orderly end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_ENDED_BY_SIGTERM))
    started = time.monotonic()
    found = find_partitions([log_dir])
    with scratch_directory() as scratch:
        announce_size(found, log_dir, scratch)
        link_log_dir(log_dir, scratch / "log")
        say("starting PostgreSQL, an S3 server and the three services ...")
        stack = EmbeddedStack(
            scratch / "data", log_dirs=[scratch / "log"], task_interval_ms=int(POLL_S * 1000)
        )
        with stack, Call(rlm=stack.endpoints.rlm).rlm_client() as rlm:
            say(f"they run after {time.monotonic() - started:.0f} s")
            shipped = wait_until_shipped(rlm)
            removed = _lose_local_copies(found, scratch / "log", log_dir, shipped)
            say(f"removed {counted(removed, 'segment')} of a copy of the log; reading back ...")
            readings = _read_all_back(rlm, found, shipped)
        shipped = [_naming_originals(d, scratch / "log", log_dir) for d in shipped]
    report = DemoReport(found.problems, shipped, readings, time.monotonic() - started)
    show(report, output)
    return report.exit_code


def _lose_local_copies(
    log_dirs: LogDirs, scratch: Path, log_dir: Path, shipped: Sequence[PartitionDescription]
) -> int:
    return sum(
        unlink_segments(
            scratch / log_dirs.partitions[d.topic_id_partition].path.relative_to(log_dir),
            d.copied_through_offset,
        )
        for d in shipped
    )


def _naming_originals(
    description: PartitionDescription, scratch: Path, log_dir: Path
) -> PartitionDescription:
    """Name problems by the user's own paths: the links' paths are gone when the report is read."""
    problems = tuple(
        replace(problem, path=problem.path.replace(str(scratch), str(log_dir), 1))
        for problem in description.problems
    )
    return replace(description, problems=problems)


def _read_all_back(
    rlm: RemoteLogManager, log_dirs: LogDirs, shipped: Sequence[PartitionDescription]
) -> list[Reading]:
    """Read all partitions back and compare them with the folders as the broker left them."""
    return [
        read_back(
            rlm,
            d.topic_id_partition,
            log_dirs.partitions[d.topic_id_partition].path,
            d.log_start_offset,
        )
        for d in shipped
    ]
