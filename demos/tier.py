"""Draw repeatedly where the segments of a partition are, while they move."""

import math
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from urllib.request import ProxyHandler, build_opener

from minio import Minio
from prometheus_client.parser import text_string_to_metric_families

from demos.kafka_broker import KafkaBroker
from services.api.errors import RemoteResourceNotFoundError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_segments
from services.api.segments import RemoteLogSegmentMetadata, RemoteLogSegmentState
from services.cli.output import EXIT_FAILED, CommandError, progress, say
from services.rlm.kafka_log.log_dir import PartitionDir, find_partitions
from services.rlm.kafka_log.partition_dir import LocalSegment, list_segments

OBJECTS_PER_SEGMENT = 3
_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_FETCH = "/tieredstorage.v1.RemoteStorageManager/FetchLogSegment"
_METRICS_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Segment:
    """A segment on the disk, in the tier, or both.

    Attributes:
        last_offset: inclusive; None for the active segment.
        in_tier: the segment is COPY_SEGMENT_FINISHED.
    """

    first_offset: int
    last_offset: int | None
    size_bytes: int
    on_disk: bool
    in_tier: bool


@dataclass(frozen=True)
class View:
    """The state of a partition at one moment.

    Attributes:
        rows: RLMM's segments in any state but DELETE_SEGMENT_FINISHED, by start offset.
        objects: in the bucket, name to size in bytes.
    """

    disk: Sequence[LocalSegment]
    rows: Sequence[RemoteLogSegmentMetadata]
    objects: dict[str, int]

    @property
    def finished(self) -> list[RemoteLogSegmentMetadata]:
        return [row for row in self.rows if row.state is _FINISHED]

    @property
    def tier_bytes(self) -> int:
        """Return the bytes of the finished segments, without their indexes and manifests."""
        return sum(row.segment_size_in_bytes for row in self.finished)

    @property
    def local_log_start_offset(self) -> int:
        return self.disk[0].base_offset

    @property
    def segments(self) -> list[Segment]:
        """Return the segments by offset, each once."""
        local = {segment.base_offset: segment for segment in self.disk}
        remote = {row.start_offset: row for row in self.finished}
        return [
            self._segment(first, local.get(first), remote.get(first))
            for first in sorted({*local, *remote})
        ]

    @property
    def left_the_disk(self) -> list[Segment]:
        return [segment for segment in self.segments if not segment.on_disk]

    @property
    def is_each_finished_segment_stored(self) -> bool:
        """Return whether each finished segment has three objects, and each object a row."""
        stored = all(len(self.objects_of(row)) == OBJECTS_PER_SEGMENT for row in self.finished)
        named = sum(len(self.objects_of(row)) for row in self.rows)
        return stored and len(self.objects) == named

    def objects_of(self, row: RemoteLogSegmentMetadata) -> list[str]:
        """Return the names of a segment's objects, which contain the segment's id."""
        segment_id = row.remote_log_segment_id.id.hex
        return [name for name in self.objects if segment_id in name]

    def lost_offset(self, log_start_offset: int = 0) -> int | None:
        """Return the first offset below the local log that no finished segment has; None if there
        is none.

        Finds an offset that left the disk before its segment was finished.
        """
        expected = log_start_offset
        for row in self.finished:
            if row.start_offset > expected:
                break
            expected = max(expected, row.end_offset + 1)
        return expected if expected < self.local_log_start_offset else None

    @staticmethod
    def _segment(
        first: int, local: LocalSegment | None, remote: RemoteLogSegmentMetadata | None
    ) -> Segment:
        if remote is not None:
            size_bytes, last = remote.segment_size_in_bytes, remote.end_offset
            return Segment(first, last, size_bytes, local is not None, True)
        assert local is not None  # one of the two provided the offset
        last_offset = local.end_offset if local.is_rolled else None
        return Segment(first, last_offset, local.size_bytes, True, False)


@dataclass(frozen=True)
class TieredPartition:
    """A partition of a running broker, and the services that keep its tier.

    Attributes:
        folder: on the broker's disk.
        rsm_metrics: HOST:PORT.
    """

    name: TopicIdPartition
    folder: Path
    rlmm: RemoteLogMetadataManager
    store: Minio
    bucket: str
    rsm_metrics: str

    def view(self) -> View:
        """Read the disk before RLMM: data that left the disk must be in RLMM's later result."""
        disk = list_segments(self.folder)
        return View(disk, self.rows(), self.objects())

    def rows(self) -> list[RemoteLogSegmentMetadata]:
        try:
            return list(all_segments(self.rlmm, self.name))
        except RemoteResourceNotFoundError:
            return []  # the broker has not reported the partition to RLMM yet

    def objects(self) -> dict[str, int]:
        listed = self.store.list_objects(
            self.bucket, prefix=f"{self.name.topic_id.hex}/", recursive=True
        )
        return {str(item.object_name): item.size or 0 for item in listed}

    def fetches(self) -> int:
        """Return the number of FetchLogSegment calls that RSM served; the broker ends most of them
        early.
        """
        address = f"http://{self.rsm_metrics}/metrics"
        # Not through a proxy of the environment, which cannot reach this machine.
        opener = build_opener(ProxyHandler({}))
        with opener.open(address, timeout=_METRICS_TIMEOUT_S) as answer:
            text = answer.read().decode()
        return sum(
            int(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "sediment_rpc_seconds_count" and sample.labels["method"] == _FETCH
        )


POLL_S = 0.2
STUCK_AFTER_S = 60.0
_FOLDER_TIMEOUT_S = 30.0


@dataclass(frozen=True)
class Watch:
    """Watch a partition of a running broker, on the disk and in the tier."""

    broker: KafkaBroker
    partition: TieredPartition

    def looks(self, stuck: str, draw: Callable[[View], Iterable[str]]) -> Generator[View]:
        """Yield the partition's state repeatedly, and draw it as it changes.

        Draws nothing if standard error is no terminal.

        Raises:
            CommandError: nothing moved for STUCK_AFTER_S; the message has `stuck`.
        """
        last_change, before = time.monotonic(), None
        with progress(every_s=math.inf) as show:
            while True:
                view = self.partition.view()
                show("\n".join(draw(view)))
                yield view
                now = (view.disk, view.rows, view.objects)
                if now != before:
                    last_change, before = time.monotonic(), now
                if time.monotonic() - last_change > STUCK_AFTER_S:
                    raise self.is_stuck(stuck)
                Event().wait(POLL_S)

    def until(self, is_true: Callable[[], bool], stuck: str) -> None:
        """Wait until `is_true` is true.

        Raises:
            CommandError: STUCK_AFTER_S passed first; the message has `stuck`.
        """
        deadline = time.monotonic() + STUCK_AFTER_S
        while not is_true():
            if time.monotonic() > deadline:
                raise self.is_stuck(stuck)
            Event().wait(POLL_S)

    def is_stuck(self, what: str) -> CommandError:
        reason = f"{what}: nothing moved for {STUCK_AFTER_S:.0f} s; {_complaints(self.broker)}"
        return CommandError(reason, EXIT_FAILED)


def timed(done: str, act: Callable[[], None]) -> None:
    """Run `act`, and print how long it took."""
    started = time.monotonic()
    act()
    say(f"   {done} after {time.monotonic() - started:.0f} s")


def folder_of(broker: KafkaBroker, topic: str) -> PartitionDir:
    """Return the topic's single partition, once the broker has created its folder.

    Raises:
        CommandError: the broker did not create it in time.
    """
    deadline = time.monotonic() + _FOLDER_TIMEOUT_S
    while time.monotonic() < deadline:
        for name, partition in find_partitions([broker.log_dir]).partitions.items():
            if name.topic == topic:
                return partition
        Event().wait(POLL_S)
    raise CommandError(f"the broker made no folder for {topic}-0", EXIT_FAILED)


def _complaints(broker: KafkaBroker) -> str:
    """Return the broker's last warnings, for a message of ours."""
    lines = (broker.directory / "broker.log").read_text(errors="replace").splitlines()
    complaints = [line for line in lines if " WARN " in line or " ERROR " in line]
    if not complaints:
        return "the broker's log warns of nothing"
    return f"the broker's log warns last: {complaints[-1]}"
