"""Demonstrate retention and the removal of a partition on Spark."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from demos.stage import (
    POLL_S,
    announce_size,
    begin_step,
    link_log_dir,
    scratch_directory,
    wait_until_shipped,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import (
    RemoteLogMetadataManager,
    all_partitions,
    all_segments,
)
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.cli.connections import Call
from services.cli.output import EXIT_FAILED, EXIT_PARTIAL, CommandError, print_tables, say
from services.cli.topics import delete_topic, set_topic
from services.local.stack import BUCKET, EmbeddedStack
from services.rlm.kafka_log.log_dir import find_partitions
from services.views.texts import size_text

OBJECTS_PER_SEGMENT = 3
MS_PER_DAY = 24 * 60 * 60 * 1000
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_ENDED_BY_SIGTERM = 128 + signal.SIGTERM


@dataclass(frozen=True)
class Chosen:
    """The topics of the demo, by name.

    Attributes:
        by_size: keeps `retention_bytes` of each partition, half of its largest.
        by_time: keeps segments younger than `retention_ms`; none of them is about as old as that.
        deleted: is deleted.
    """

    by_size: str
    retention_bytes: int
    by_time: str
    retention_ms: int
    deleted: str


@dataclass(frozen=True)
class Holdings:
    """The segments in the tables and the objects in the bucket.

    Attributes:
        segments: by topic, of any state but DELETE_SEGMENT_FINISHED.
        objects: in the bucket, by topic.
    """

    segments: dict[str, list[RemoteLogSegmentMetadata]]
    objects: dict[str, int]

    @property
    def agree(self) -> bool:
        """Return whether every segment is finished and has its objects, and there are no others."""
        states = {segment.state for found in self.segments.values() for segment in found}
        expected = {t: OBJECTS_PER_SEGMENT * len(found) for t, found in self.segments.items()}
        return states <= {_FINISHED} and {t: n for t, n in expected.items() if n} == self.objects


def run(log_dir: Path) -> int:
    """Run the demo; return 0 if tables and bucket agree and all due segments are gone, else 1.

    Raises:
        LogDirError: the log directory cannot be used.
        CommandError: fewer than three topics have two segments each, or a sweep failed.
    """
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
        with stack, Call(rlmm=stack.endpoints.rlmm).rlmm_client() as rlmm:
            with Call(rlm=stack.endpoints.rlm).rlm_client() as rlm:
                wait_until_shipped(rlm)
            exit_code = _perform(rlmm, stack)
    say(f"{time.monotonic() - started:.0f} s in all")
    return exit_code


def _perform(rlmm: RemoteLogMetadataManager, stack: EmbeddedStack) -> int:
    before = _holdings(rlmm, stack)
    chosen = _choose(before)
    rlmm_address = stack.endpoints.rlmm

    days = chosen.retention_ms // MS_PER_DAY
    begin_step(
        f"1. Retention: {chosen.by_size} keeps half of itself, {chosen.by_time} some {days} days"
    )
    owner = "sediment.retention.owner=sweep"
    for topic, setting in (
        (chosen.by_size, f"retention.bytes={chosen.retention_bytes}"),
        (chosen.by_time, f"retention.ms={chosen.retention_ms}"),
    ):
        set_topic(
            name=topic,
            settings=[setting, owner],
            unset=None,
            now=True,
            yes=False,
            rlmm=rlmm_address,
        )

    begin_step("2. What a sweep would delete (dry run), then the same with --apply")
    _sweep(stack, "retention")
    if _holdings(rlmm, stack) != before:
        raise CommandError("the dry run changed something", EXIT_FAILED)
    _sweep(stack, "retention", "--apply")

    begin_step(f"3. Topic {chosen.deleted} is deleted, and a sweep removes what the tier has of it")
    delete_topic(name=chosen.deleted, yes=True, rlmm=rlmm_address)
    _sweep(stack, "removal", "--grace", "0", "--apply")

    after = _holdings(rlmm, stack)
    _show(before, after)
    return 0 if _as_expected(before, after, chosen) else EXIT_PARTIAL


def _sweep(stack: EmbeddedStack, *arguments: str) -> None:
    """Run `sediment sweep` as a user or a cron job runs it, in a process of its own.

    A process with open gRPC channels must not start Spark.
    """
    endpoints = ["--rsm", stack.endpoints.rsm, "--rlmm", stack.endpoints.rlmm]
    say(f"$ sediment sweep {' '.join(arguments)}")
    command = [sys.executable, "-m", "services.cli", "sweep", *arguments, *endpoints]
    done = subprocess.run(command, check=False)
    if done.returncode:
        raise CommandError(f"the sweep ended with {done.returncode}", done.returncode)


def _holdings(rlmm: RemoteLogMetadataManager, stack: EmbeddedStack) -> Holdings:
    names = [summary.topic_id_partition for summary in all_partitions(rlmm)]
    segments: dict[str, list[RemoteLogSegmentMetadata]] = {name.topic: [] for name in names}
    for name in names:
        segments[name.topic] += all_segments(rlmm, name)
    return Holdings(segments, _objects(stack, segments))


def _objects(
    stack: EmbeddedStack, segments: dict[str, list[RemoteLogSegmentMetadata]]
) -> dict[str, int]:
    """Count the objects of segments by topic; by topic id if the tables no longer know the
    topic.
    """
    topics = {
        segment.topic_id_partition.topic_id.hex: topic
        for topic, found in segments.items()
        for segment in found
    }
    counts: dict[str, int] = {}
    for item in stack.s3.endpoint.client().list_objects(BUCKET, recursive=True):
        topic_id, in_folder, _ = str(item.object_name).partition("/")
        if not in_folder:
            continue  # the marker
        topic = topics.get(topic_id, topic_id)
        counts[topic] = counts.get(topic, 0) + 1
    return counts


def _choose(holdings: Holdings) -> Chosen:
    by_count = sorted(
        (topic for topic, found in holdings.segments.items() if len(found) > 1),
        key=lambda topic: (-len(holdings.segments[topic]), topic),
    )
    if len(by_count) < 3:
        raise CommandError("the show needs three topics with two segments in the tier each")
    by_size, by_time, deleted = by_count[0], by_count[1], by_count[-1]
    return Chosen(
        by_size=by_size,
        retention_bytes=_largest_partition_bytes(holdings.segments[by_size]) // 2,
        by_time=by_time,
        retention_ms=_age_between_segments_ms(holdings.segments[by_time]),
        deleted=deleted,
    )


def _age_between_segments_ms(segments: Sequence[RemoteLogSegmentMetadata]) -> int:
    """Return the middle of the longest time without a segment's end.

    The sweeps thus see the same segments although they run one after the other.
    """
    times = sorted(segment.max_timestamp_ms for segment in segments)
    earlier, later = max(pairwise(times), key=lambda pair: pair[1] - pair[0])
    now_ms = time.time_ns() // 1_000_000
    return max(now_ms - (earlier + later) // 2, 0)


def _largest_partition_bytes(segments: Sequence[RemoteLogSegmentMetadata]) -> int:
    sizes: dict[TopicIdPartition, int] = {}
    for segment in segments:
        name = segment.topic_id_partition
        sizes[name] = sizes.get(name, 0) + max(segment.segment_size_in_bytes, 0)
    return max(sizes.values())


def _show(before: Holdings, after: Holdings) -> None:
    columns = ("topic", "segments before", "after", "objects before", "after", "bytes after")
    print_tables(("Tables and bucket", columns, _rows(before, after)))


def _rows(before: Holdings, after: Holdings) -> Iterator[tuple[object, ...]]:
    for topic in sorted(before.segments):
        left = after.segments.get(topic, [])
        size_bytes = sum(max(segment.segment_size_in_bytes, 0) for segment in left)
        yield (
            topic,
            len(before.segments[topic]),
            len(left),
            before.objects.get(topic, 0),
            after.objects.get(topic, 0),
            size_text(size_bytes),
        )


def _as_expected(before: Holdings, after: Holdings, chosen: Chosen) -> bool:
    """Return whether only the three topics lost segments, as planned, and no object is left
    over.
    """
    expired = (chosen.by_size, chosen.by_time)
    shrunk = all(0 < len(after.segments[t]) < len(before.segments[t]) for t in expired)
    touched = {*expired, chosen.deleted}
    kept = all(
        after.segments.get(topic) == found
        for topic, found in before.segments.items()
        if topic not in touched
    )
    gone = not after.segments.get(chosen.deleted)
    say(
        f"expired as set: {_yes(shrunk)}; deleted topic gone: {_yes(gone)}; others as they were: "
        f"{_yes(kept)}; three objects for each segment and no others: {_yes(after.agree)}"
    )
    return shrunk and gone and kept and after.agree


def _yes(is_so: bool) -> str:
    return "yes" if is_so else "NO"
