"""Demonstrate RLM beside a stock broker."""

import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from demos.broker_report import DemoBrokerReport, Reading, lagging_segments, live_picture
from demos.kafka import IN_A_HURRY, NEEDED_BYTES
from demos.kafka_broker import KafkaBroker
from demos.kafka_client import Cluster, Record, Topic
from demos.kafka_report import picture
from demos.needs import require_broker
from demos.records import READ_UNCOMMITTED, Sent, content_differences, produce
from demos.stage import begin_step, check_room, scratch_directory
from demos.tier import TieredPartition, View, Watch, folder_of, timed
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import RecordSource, RemoteLogManager
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_partitions
from services.cli.connections import Call
from services.cli.output import EXIT_FAILED, CommandError, Format, print_json, print_tables, say
from services.client.records import decoded
from services.local.stack import BUCKET, EmbeddedStack, ServiceProcess
from services.rlm.kafka_log.partition_dir import list_segments
from services.views.texts import size_text

SEGMENT_BYTES = 1024 * 1024
LOCAL_RETENTION_BYTES = 6 * SEGMENT_BYTES

TOPIC = Topic(
    "orders",
    partitions=1,
    segment_bytes=SEGMENT_BYTES,
    # A stock broker's retention limits its disk; the tier's retention is set in Sediment.
    config={"retention.bytes": str(LOCAL_RETENTION_BYTES)},
)

_RLM = {
    "RLM_PARTITION_SOURCE": "poller",
    "RLM_COPY_LEASE_MS": "1000",
}

_TIERED = {"remote.storage.enable": "true"}


@dataclass(frozen=True)
class Stage:
    """The servers and the report that all acts share."""

    broker: KafkaBroker
    cluster: Cluster
    partition: TieredPartition
    rlm: RemoteLogManager
    rlm_process: ServiceProcess
    report: DemoBrokerReport
    output: Format

    @property
    def watch(self) -> Watch:
        return Watch(self.broker, self.partition)


@contextmanager
def running_stage(kafka: Path, report: DemoBrokerReport, output: Format) -> Iterator[Stage]:
    """Run broker and servers in a scratch directory, with the tiered topic TOPIC.

    The directory is removed at the end.

    Raises:
        CommandError: the disk has too little room.
        ClusterError, ProcessError, KafkaBrokerError: a server did not start.
    """
    started = time.monotonic()
    with scratch_directory() as scratch:
        check_room(NEEDED_BYTES, shutil.disk_usage(scratch).free, scratch)
        say(f"starting Kafka {report.kafka_version}, without tiered storage ...")
        with KafkaBroker(scratch / "kafka", kafka, IN_A_HURRY) as broker:
            say(f"it runs after {time.monotonic() - started:.0f} s; now Sediment beside it ...")
            settings = {**_RLM, "RLM_BOOTSTRAP_SERVERS": broker.bootstrap_servers}
            stack = EmbeddedStack(
                scratch / "data",
                log_dirs=broker.log_dirs,
                task_interval_ms=200,
                settings=settings,
            )
            with (
                stack,
                Call(rlm=stack.endpoints.rlm).rlm_client() as rlm,
                Call(rlmm=stack.endpoints.rlmm).rlmm_client() as rlmm,
            ):
                say(f"all of it runs after {time.monotonic() - started:.0f} s")
                cluster = Cluster(broker.bootstrap_servers)
                cluster.create(TOPIC)
                found = folder_of(broker, TOPIC.name)
                partition = TieredPartition(
                    found.topic_id_partition,
                    found.path,
                    rlmm,
                    stack.s3.endpoint.client(),
                    BUCKET,
                    stack.endpoints.rsm_metrics,
                )
                process = stack.services["rlm"]
                stage = Stage(broker, cluster, partition, rlm, process, report, output)
                stage.watch.until(
                    lambda: partition.name in _known(rlmm), "RLM does not find the topic"
                )
                rlmm.put_topic_config(partition.name.topic_id, _TIERED)
                say(f"   sediment topics set {TOPIC.name} remote.storage.enable=true")
                yield stage


def _known(rlmm: RemoteLogMetadataManager) -> Sequence[TopicIdPartition]:
    return [summary.topic_id_partition for summary in all_partitions(rlmm, topic=TOPIC.name)]


_BATCHES = 280
_BATCHES_WHILE_AWAY = 90
_SEED, _SEED_WHILE_AWAY = 405, 406

# Slower than RLM copies while nothing delays it.
_PAUSE_S = 0.03
_AWAY_BYTES = LOCAL_RETENTION_BYTES // 3

# The broker would lose data by deleting it before it is copied. A transaction comes on top of this.
_MOST_LAG_BYTES = LOCAL_RETENTION_BYTES * 2 // 3
_STUCK = "segments do not get from the disk into the tier"


def perform(stage: Stage) -> None:
    """Fill the stage's report.

    Raises:
        CommandError: there is no more progress.
        KafkaException, KafkaClientError: the broker fails a client's request.
    """
    begin_step("1. A producer writes; the broker keeps little, the tier keeps all")
    sent = _write(stage, _BATCHES, _SEED, lambda *_: None)

    begin_step("2. RLM reads all of it, from the tier and from the broker's disk")
    _read(stage, sent, "written")

    begin_step(
        "3. The broker is restarted, RLM is killed while the producer writes on, and comes back"
    )
    timed("the broker is back", stage.broker.restart)
    stage.report.broker_restarts += 1
    away = _KilledRlm(stage)
    sent += _write(stage, _BATCHES_WHILE_AWAY, _SEED_WHILE_AWAY, away.play)

    begin_step("4. RLM reads all of it again")
    _read(stage, sent, "after a restart and a kill")
    view = stage.partition.view()
    stage.report.segments = view.segments
    stage.report.is_each_segment_stored = view.is_each_finished_segment_stored
    if stage.output is Format.TABLE:
        print_tables(picture(view.segments))


class _KilledRlm:
    """Kill RLM at the first view, and restart it when enough data waits or all is written."""

    def __init__(self, stage: Stage) -> None:
        self._stage = stage
        self._is_away = False
        self._is_done = False

    def play(self, view: View, is_written: bool) -> None:
        process = self._stage.rlm_process
        lag_bytes = sum(segment.size_bytes for segment in lagging_segments(view))
        if not self._is_away and not self._is_done:
            process.kill()
            self._is_away = True
            self._stage.report.rlm_kills += 1
            say("   RLM is killed (SIGKILL)")
        elif self._is_away and (is_written or lag_bytes >= _AWAY_BYTES):
            say(f"   {size_text(lag_bytes)} lag behind; RLM is started again")
            process.start()
            self._is_away, self._is_done = False, True


def _write(
    stage: Stage, batches: int, seed: int, at_look: Callable[[View, bool], None]
) -> list[Sent]:
    """Write, and poll until all rolled segments are tiered and the broker has deleted the expired
    ones.
    """
    started, report, ending = time.monotonic(), stage.report, Event()
    copied_through_offset = -1  # at the last view: a view may wait for the services

    def continues() -> bool:
        """Wait while the tier is so far behind that the broker would soon delete what is not in it.

        Reads only the broker's disk, because the services may be the slow part.
        """
        while not ending.wait(_PAUSE_S):
            disk = list_segments(stage.partition.folder)
            lagging = [s for s in disk if s.base_offset > copied_through_offset]
            if sum(segment.size_bytes for segment in lagging) <= _MOST_LAG_BYTES:
                return True
        return False

    def draw(view: View) -> list[str]:
        return live_picture(view, "runs" if stage.rlm_process.process.is_running() else "is away")

    with ThreadPoolExecutor(1) as pool:
        producing = pool.submit(produce, stage.cluster, TOPIC, batches, seed, continues)
        try:
            with closing(stage.watch.looks(_STUCK, draw)) as looks:
                for view in looks:
                    copied_through_offset = max((s.end_offset for s in view.finished), default=-1)
                    lost_offset = view.lost_offset()
                    if lost_offset is not None:
                        report.lost_offsets.append(lost_offset)
                    at_look(view, producing.done())
                    if _is_settled(view, producing):
                        break
        finally:
            ending.set()
        sent = producing.result()
    report.records += len(sent)
    report.produced_bytes += sum(record.size_bytes for record in sent)
    say(
        f"   {len(sent):,} records of every codec, a transaction committed, one aborted; "
        f"{size_text(sum(s.size_bytes for s in view.disk))} are on the disk, local log start "
        f"{view.local_log_start_offset}, {size_text(view.tier_bytes)} in the tier, log start "
        f"{view.finished[0].start_offset}; {len(view.left_the_disk)} of {len(view.segments)} "
        f"segments have left the disk: {time.monotonic() - started:.0f} s"
    )
    return sent


def _is_settled(view: View, producing: "Future[list[Sent]]") -> bool:
    """Return whether writing has ended, all rolled segments are tiered, and none is to leave the
    disk.
    """
    local_bytes = sum(segment.size_bytes for segment in view.disk)
    nothing_due = local_bytes - LOCAL_RETENTION_BYTES < view.disk[0].size_bytes
    return producing.done() and not lagging_segments(view) and nothing_due


def _is_readable(stage: Stage) -> bool:
    """Return whether the broker has recorded that all of the log may be read, and RLM has read
    that.
    """
    page = stage.rlm.describe_partitions([TOPIC.name])
    return all(p.last_stable_offset == p.log_end_offset > 0 for p in page.partitions)


def _read(stage: Stage, sent: Sequence[Sent], when: str) -> None:
    """Read from offset 0 to the end through RLM, and compare."""
    stage.watch.until(lambda: _is_readable(stage), "RLM does not see all of the log")
    local_start = stage.partition.view().local_log_start_offset
    started = time.monotonic()
    got: list[tuple[int, Record]] = []
    from_tier = misplaced = 0
    for found in decoded(stage.rlm, stage.partition.name, 0):
        headers = list(found.headers)
        got.append((found.offset, Record(found.key, found.value, found.timestamp_ms, headers)))
        is_remote = found.source is RecordSource.REMOTE
        from_tier += is_remote
        misplaced += is_remote != (found.offset < local_start)
    seconds = time.monotonic() - started
    failures = content_differences(sent, got, READ_UNCOMMITTED)
    on_disk = len(got) - from_tier
    stage.report.readings.append(
        Reading(when, len(got), failures, from_tier, on_disk, misplaced, seconds)
    )
    equal = "all equal" if not failures else f"{len(failures):,} DIFFERENT"
    say(
        f"   {len(got):,} records, {equal}; {from_tier:,} from the tier, {on_disk:,} from the "
        f"disk: {seconds:.1f} s"
    )


_ENDED_BY_SIGNAL = 128


def run(kafka: Path, output: Format) -> int:
    """Run the demo; return 0 if every check passed, or report the failures and return 1.

    Raises:
        CommandError: a part that the demo needs is missing, or the demo cannot continue.
        ProcessError: a server did not start.
    """
    kafka_version = require_broker(kafka)
    # Imported only now: these modules need the packages that were just checked.
    from confluent_kafka import KafkaException

    from demos.broker_report import DemoBrokerReport, as_json, summary
    from demos.kafka_broker import KafkaBrokerError
    from demos.kafka_client import KafkaClientError

    # Started processes always end with this one; the scratch directory is removed only after an
    # orderly end.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda sent, _: sys.exit(_ENDED_BY_SIGNAL + sent))
    started = time.monotonic()
    report = DemoBrokerReport(kafka_version)
    try:
        with running_stage(kafka.resolve(), report, output) as stage:
            perform(stage)
    except (KafkaException, KafkaClientError, KafkaBrokerError) as e:
        raise CommandError(f"the broker failed: {e}", EXIT_FAILED) from e
    report.seconds = time.monotonic() - started
    if output is Format.JSON:
        print_json(as_json(report))
    for line in summary(report):
        say(line)
    return report.exit_code
