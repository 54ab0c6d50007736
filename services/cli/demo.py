"""`sediment demo`: the main job as a show, on embedded real servers and a copy made of links."""

import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from services.api.remote_log_manager import PartitionDescription, RemoteLogManager
from services.cli.connections import connected_rlm
from services.cli.demo_report import DemoReport, show
from services.cli.demo_stage import (
    POLL_S,
    announce_size,
    scratch_directory,
    wait_until_shipped,
)
from services.cli.output import Format, say
from services.cli.read_back import Reading, read_back
from services.cli.scratch import link_log_dir, unlink_segments
from services.local.stack import EmbeddedStack
from services.rlm.kafka_log.log_dir import LogDirs, find_partitions

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
    with scratch_directory() as scratch:
        announce_size(found, log_dir, scratch)
        link_log_dir(log_dir, scratch / "log")
        say("starting PostgreSQL, an S3 server and the three services ...")
        stack = EmbeddedStack(
            scratch / "data", log_dirs=[scratch / "log"], task_interval_ms=int(POLL_S * 1000)
        )
        with stack, connected_rlm(stack.endpoints.rlm, None) as rlm:
            say(f"they run after {time.monotonic() - started:.0f} s")
            shipped = wait_until_shipped(rlm)
            removed = _lose_local_copies(found, scratch / "log", log_dir, shipped)
            say(f"removed {removed} local segments (links) that are in the tier; reading back ...")
            readings = _read_all_back(rlm, found, shipped)
        shipped = [_naming_originals(d, scratch / "log", log_dir) for d in shipped]
    report = DemoReport(found.problems, shipped, readings, time.monotonic() - started)
    show(report, output)
    return report.exit_code


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
