"""Demonstrate a real broker that keeps its tier in Sediment, through the plugin."""

import shutil
import signal
import sys
import time
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka import Message

from demos.kafka_broker import KafkaBroker, plugin_settings
from demos.kafka_client import Cluster, Topic
from demos.kafka_report import DemoKafkaReport, Reading, SegmentRead, picture, picture_lines
from demos.needs import require_needs
from demos.records import READ_COMMITTED, READ_UNCOMMITTED, Sent, differences, produce
from demos.stage import begin_step, check_room, scratch_directory
from demos.tier import Segment, TieredPartition, View, Watch, folder_of, timed
from services.cli.connections import Call
from services.cli.output import EXIT_FAILED, CommandError, Format, print_json, print_tables, say
from services.common.quantities import counted
from services.local.stack import BUCKET, EmbeddedStack
from services.views.texts import size_text

SEGMENT_BYTES = 2 * 1024 * 1024
LOCAL_RETENTION_BYTES = 3 * SEGMENT_BYTES

TOPIC = Topic(
    "orders",
    partitions=1,
    segment_bytes=SEGMENT_BYTES,
    config={"remote.storage.enable": "true", "local.retention.bytes": str(LOCAL_RETENTION_BYTES)},
)

# The log, the tier, and Kafka's own topics.
NEEDED_BYTES = 256 * 1024 * 1024

IN_A_HURRY = {
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.segment.delete.delay.ms": "0",
    "replica.high.watermark.checkpoint.interval.ms": "500",
}
"""Settings with which the broker checks for work twice a second, not every half minute or less
often.
"""


@dataclass(frozen=True)
class Stage:
    """The servers and the report that all acts share."""

    broker: KafkaBroker
    cluster: Cluster
    partition: TieredPartition
    report: DemoKafkaReport
    output: Format

    @property
    def watch(self) -> Watch:
        return Watch(self.broker, self.partition)


@contextmanager
def running_stage(
    plugin: Path, kafka: Path, report: DemoKafkaReport, output: Format
) -> Iterator[Stage]:
    """Run servers and broker in a scratch directory, with the topic TOPIC; remove it at the end.

    Raises:
        CommandError: the disk has too little room.
        ClusterError, ProcessError, KafkaBrokerError: a server did not start.
    """
    started = time.monotonic()
    with scratch_directory() as scratch:
        check_room(NEEDED_BYTES, shutil.disk_usage(scratch).free, scratch)
        say("starting PostgreSQL, an S3 server, RSM and RLMM ...")
        stack = EmbeddedStack(scratch / "data", with_rlm=False)
        with stack, Call(rlmm=stack.endpoints.rlmm).rlmm_client() as rlmm:
            endpoints = stack.endpoints
            say(f"they run after {time.monotonic() - started:.0f} s; now Kafka with the plugin ...")
            settings = plugin_settings(plugin, endpoints.rsm, endpoints.rlmm)
            settings = {**settings, "remote.log.manager.task.interval.ms": "500"}
            with KafkaBroker(scratch / "kafka", kafka, {**settings, **IN_A_HURRY}) as broker:
                say(f"Kafka {report.kafka_version} runs after {time.monotonic() - started:.0f} s")
                cluster = Cluster(broker.bootstrap_servers)
                cluster.create(TOPIC)
                found = folder_of(broker, TOPIC.name)
                store = stack.s3.endpoint.client()
                partition = TieredPartition(
                    found.topic_id_partition, found.path, rlmm, store, BUCKET, endpoints.rsm_metrics
                )
                yield Stage(broker, cluster, partition, report, output)


_STUCK = "segments do not get from the disk into the tier"


def perform(stage: Stage) -> None:
    """Fill the stage's report.

    Raises:
        CommandError: there is no more progress.
        KafkaException, KafkaClientError: the broker fails a client's request.
    """
    begin_step("1. A producer writes, and what is rolled goes to the tier")
    sent = _offload(stage)

    begin_step("2. A consumer reads all of it, from the tier and from the disk")
    view = stage.partition.view()
    # Read from the disk alone first: later an ending call of RSM might be counted with it.
    _read(stage, sent, "disk only", READ_UNCOMMITTED, view.local_log_start_offset)
    first = _read(stage, sent, "offloaded", READ_UNCOMMITTED)
    _read(stage, sent, "offloaded", READ_COMMITTED, may_be_held=True)
    _show_picture(stage, view.segments, first.segments)

    begin_step("3. The broker is restarted, and the consumer reads again")
    timed("restarted", stage.broker.restart)
    _read(stage, sent, "restarted", READ_UNCOMMITTED)
    _read(stage, sent, "restarted", READ_COMMITTED, may_be_held=True)

    begin_step("4. Retention takes the oldest segment")
    log_start_offset = _expire(stage)
    kept = [record for record in sent if record.offset >= log_start_offset]
    _read(stage, kept, "expired", READ_UNCOMMITTED, may_be_held=True)

    begin_step("5. The topic is deleted")
    _delete(stage)


def _offload(stage: Stage) -> list[Sent]:
    started, report = time.monotonic(), stage.report
    with ThreadPoolExecutor(1) as pool:
        producing = pool.submit(produce, stage.cluster, TOPIC)
        with closing(stage.watch.looks(_STUCK, _draw)) as looks:
            for view in looks:
                lost_offset = view.lost_offset()
                if lost_offset is not None:
                    report.lost_offsets.append(lost_offset)
                if producing.done() and _is_settled(view):
                    break
        sent = producing.result()
    report.records = len(sent)
    report.aborted_records = sum(record.transaction == "aborted" for record in sent)
    report.produced_bytes = sum(record.size_bytes for record in sent)
    report.offloaded, report.objects = view.segments, len(view.objects)
    report.is_each_segment_stored = view.is_each_finished_segment_stored
    say(
        f"   {report.records:,} keyed records ({size_text(report.produced_bytes)}, every codec; a "
        f"transaction committed, one aborted) in {len(report.offloaded)} segments; "
        f"{len(view.finished)} are in the tier, {report.objects} objects, and "
        f"{report.left_the_disk} have left the disk: {time.monotonic() - started:.0f} s"
    )
    return sent


def _draw(view: View) -> list[str]:
    objects = counted(len(view.objects), "object")
    return [
        *picture_lines(view.segments),
        f"{counted(len(view.rows), 'segment')} in RLMM, {objects}",
    ]


def _is_settled(view: View) -> bool:
    """Return whether all rolled segments are tiered and local retention has deleted the expired
    ones.
    """
    all_copied = all(segment.in_tier for segment in view.segments[:-1])
    local_bytes = sum(segment.size_bytes for segment in view.disk)
    nothing_due = local_bytes - LOCAL_RETENTION_BYTES < view.disk[0].size_bytes
    return all_copied and nothing_due and len(view.disk) > 1


def _read(
    stage: Stage,
    sent: Sequence[Sent],
    when: str,
    isolation_level: str,
    offset: int | None = None,
    *,
    may_be_held: bool = False,
) -> Reading:
    """Read from `offset`, by default from the beginning, to the end, and compare."""
    segments, before = stage.partition.view().segments, stage.partition.fetches()
    expected = [record for record in sent if offset is None or record.offset >= offset]
    started = time.monotonic()
    where = {} if offset is None else {"offset": offset}
    messages, arrived = _consume(stage.cluster, isolation_level, segments, where)
    seconds = time.monotonic() - started
    fetches = stage.partition.fetches() - before
    read = [s for s in segments if s.last_offset is None or s.last_offset >= (offset or 0)]
    timed = [SegmentRead(s, arrived.get(s.first_offset, 0.0)) for s in read]
    failures = differences(expected, messages, isolation_level)
    reading = Reading(
        when,
        isolation_level,
        expected[0].offset,
        len(messages),
        failures,
        timed,
        fetches,
        seconds,
        may_be_held,
    )
    stage.report.readings.append(reading)
    sources = [s for s in ("tier", "disk") if reading.size_bytes(s)]
    say(
        f"   {isolation_level}: {len(messages):,} records from offset {reading.first_offset}, "
        f"{'all equal' if not failures else f'{len(failures):,} DIFFERENT'}; "
        f"{', '.join(reading.rate_text(source) for source in sources)}; RSM served {fetches} "
        f"fetches{', the plugin held the rest' if may_be_held else ''}"
    )
    return reading


def _consume(
    cluster: Cluster, isolation_level: str, segments: Sequence[Segment], where: dict[str, int]
) -> tuple[list[Message], dict[int, float]]:
    """Read all records; return them, and by each segment's first offset the time of its records."""
    bases = [segment.first_offset for segment in segments]
    messages: list[Message] = []
    seconds: dict[int, float] = {}
    mark = time.monotonic()
    for message in cluster.read(TOPIC.name, 0, isolation_level, **where):
        messages.append(message)
        offset = message.offset()
        assert offset is not None  # a consumed message always has an offset
        base = bases[bisect_right(bases, offset) - 1]
        now = time.monotonic()
        seconds[base] = seconds.get(base, 0.0) + now - mark
        mark = now
    return messages, seconds


def _expire(stage: Stage) -> int:
    """Set retention.bytes so that the oldest segment expires; return the resulting log start."""
    before = stage.partition.view()
    oldest, following = before.finished[:2]
    total = sum(segment.size_bytes for segment in before.segments)
    # Kafka deletes only whole segments: this excess is the oldest one and half of the next.
    too_much = oldest.segment_size_in_bytes + following.segment_size_in_bytes // 2
    topic_id = stage.partition.name.topic_id
    stage.partition.rlmm.put_topic_config(topic_id, {"sediment.delete.grace.ms": "0"})
    say("   sediment.delete.grace.ms=0: the tier keeps nothing that the broker deletes")
    started = time.monotonic()
    stage.cluster.configure(TOPIC.name, retention_bytes=str(total - too_much))

    def expired() -> bool:
        view = stage.partition.view()
        # By its id: its row has changed by the time the deletion begins.
        rows = {row.remote_log_segment_id for row in view.rows}
        return oldest.remote_log_segment_id not in rows and not view.objects_of(oldest)

    stage.watch.until(expired, "the oldest segment does not expire")
    after = stage.partition.view()
    gone = [segment for segment in before.segments if segment not in after.segments]
    stage.report.expired = gone
    only_the_oldest = [segment.first_offset for segment in gone] == [oldest.start_offset]
    stage.report.expired_as_set = only_the_oldest and after.is_each_finished_segment_stored
    say(
        f"   retention.bytes={total - too_much}: offsets {oldest.start_offset}-{oldest.end_offset} "
        f"are gone from the tier, {len(before.objects)} objects before and {len(after.objects)} "
        f"after: {time.monotonic() - started:.0f} s"
    )
    return oldest.end_offset + 1


def _delete(stage: Stage) -> None:
    before = len(stage.partition.objects())
    started = time.monotonic()
    stage.cluster.delete(TOPIC.name)

    def left() -> int:
        return len(stage.partition.rows()) + len(stage.partition.objects())

    stage.watch.until(lambda: not left(), "the deleted topic's segments do not go")
    stage.report.left_after_deletion = left()
    say(
        f"   {before} objects before, {len(stage.partition.objects())} after: "
        f"{time.monotonic() - started:.0f} s"
    )


def _show_picture(stage: Stage, segments: Sequence[Segment], reads: Sequence[SegmentRead]) -> None:
    if stage.output is Format.TABLE:
        print_tables(picture(segments, reads))


_ENDED_BY_SIGTERM = 128 + signal.SIGTERM


def run(plugin: Path, kafka: Path, output: Format) -> int:
    """Run the demo; return 0 if every check passed, or report the failures and return 1.

    Raises:
        CommandError: a part that the demo needs is missing, or the demo cannot continue.
        ProcessError: a server did not start.
    """
    kafka_version = require_needs(plugin, kafka)
    # Imported only now: these modules need the packages that were just checked.
    from confluent_kafka import KafkaException

    from demos.kafka_report import DemoKafkaReport, as_json, summary

    pass
    pass
    from demos.kafka_broker import KafkaBrokerError
    from demos.kafka_client import KafkaClientError

    # Started processes always end with this one; the scratch directory is removed only after an
    # orderly end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_ENDED_BY_SIGTERM))
    started = time.monotonic()
    report = DemoKafkaReport(kafka_version)
    try:
        with running_stage(plugin.resolve(), kafka.resolve(), report, output) as stage:
            perform(stage)
    except (KafkaException, KafkaClientError, KafkaBrokerError) as e:
        raise CommandError(f"the broker failed: {e}", EXIT_FAILED) from e
    report.seconds = time.monotonic() - started
    if output is Format.JSON:
        print_json(as_json(report))
    for line in summary(report):
        say(line)
    return report.exit_code
