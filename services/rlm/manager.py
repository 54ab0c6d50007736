"""RLM over a broker's log directories, all of whose partitions are led here."""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cachetools import LRUCache

from services.api.errors import RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.partition_queries import all_partitions
from services.api.remote_log_manager import (
    DescribePage,
    FetchPart,
    FetchRequest,
    Problem,
    ProblemKind,
    RemoteLogManager,
)
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.remote_storage_manager import RemoteStorageManager
from services.rlm.backoff import Backoff
from services.rlm.copying.copy_task import CopyTask
from services.rlm.copying.progress import NoProgress
from services.rlm.copying.segment_copy import CopyLimits, SegmentCopier
from services.rlm.describe import UNKNOWN_LEADER, PageDescriber, at_most, page_of, token_after
from services.rlm.expiration.expiration_task import Expiration, ExpirationTask
from services.rlm.expiration.topic_configs import TopicConfigs
from services.rlm.kafka_log.errors import LogDirError
from services.rlm.kafka_log.log_dir import LogDirs, PartitionDir, find_partitions
from services.rlm.local_log import LocalPartition
from services.rlm.metrics import COPIED_BYTES, COPIED_SEGMENTS, LOST_RANGES
from services.rlm.partition import Partition, new_partition
from services.rlm.reading.fetch import Fetcher
from services.rlm.reading.index_cache import RemoteIndexCache
from services.rlm.reading.segment_reader import RemoteReadLimits, RemoteSegmentReader
from services.rlm.reporting import Reporter
from services.rlm.scheduler import PassFailedError, Scheduler, Task

_SCAN = "scan of the log directories"
_REPORTS = "reports of all partitions"
_MAX_ONLY_REMOTE = 10_000
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RlmLimits:
    """What RlmSettings says, as the parts of RLM need it."""

    interval_s: float = 30.0
    copier_threads: int = 10
    expiration_threads: int = 10
    report_interval_s: float = 300.0
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_s=0.5, max_s=30.0))
    copy: CopyLimits = field(default_factory=CopyLimits)
    read: RemoteReadLimits = field(default_factory=RemoteReadLimits)
    index_cache_bytes: int = 32 * 1024 * 1024


class StaticRemoteLogManager:
    """Copies rolled segments of the partitions in `log_dirs` and serves reads of them, and of
    whatever the tier has. Without log directories it serves the tier only.

    Raises:
        LogDirError: none of the directories can be used.
    """

    def __init__(
        self,
        log_dirs: Sequence[Path],
        rsm: RemoteStorageManager,
        rlmm: RemoteLogMetadataManager,
        limits: RlmLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        limits = limits or RlmLimits()
        self._log_dirs = tuple(log_dirs)
        self._rsm = rsm
        self._rlmm = rlmm
        self._lock = threading.Lock()
        self._partitions: dict[TopicIdPartition, Partition] = {}
        self._only_remote: LRUCache[TopicIdPartition, Partition] = LRUCache(_MAX_ONLY_REMOTE)
        self._log_dir_problems: tuple[Problem, ...] = ()
        self._stopping = threading.Event()
        self._cancelled = threading.Event()
        found = find_partitions(log_dirs) if log_dirs else LogDirs(UNKNOWN_LEADER)
        self.broker_id = found.broker_id
        self._copier = SegmentCopier(rsm, rlmm, found.broker_id, now_ms, limits.copy)
        cache = RemoteIndexCache(rsm, limits.index_cache_bytes)
        remote = RemoteSegmentReader(rsm, rlmm, cache, limits.read)
        self._fetcher = Fetcher(self._partition_of, remote)
        self._reporter = Reporter(rlmm, found.broker_id, limits.report_interval_s, clock)
        self._expiration = Expiration(
            rsm,
            rlmm,
            found.broker_id,
            self._copier,
            self._reporter,
            TopicConfigs(rlmm, limits.interval_s, clock),
            clock,
            now_ms,
            self._stopping,
        )
        # Pools of their own: long copies hold back neither retention nor reports.
        self.scheduler, self.expiration_scheduler, self.report_scheduler = (
            Scheduler(name, threads, limits.interval_s, limits.backoff, clock)
            for name, threads in (
                ("copier", limits.copier_threads),
                ("expiration", limits.expiration_threads),
                ("reporter", 1),
            )
        )
        self._adopt(found)
        if log_dirs:
            self.scheduler.schedule(_SCAN, self._scan)
            self.report_scheduler.schedule(_REPORTS, self._report)

    def start(self) -> None:
        """Copy, report and expire from now on. Reads are served without it."""
        for scheduler in (self.scheduler, self.expiration_scheduler, self.report_scheduler):
            scheduler.start()

    def stop(self, grace_s: float) -> None:
        """Finish the segments under way if that takes no longer than `grace_s`, else leave them to
        be cleaned up by the next start."""
        self._stopping.set()
        until_s = time.monotonic() + grace_s
        is_idle = self.scheduler.stop(grace_s)
        for scheduler in (self.expiration_scheduler, self.report_scheduler):
            scheduler.stop(max(until_s - time.monotonic(), 0.0))
        if not is_idle:
            self._cancelled.set()
            self.scheduler.wait_idle(grace_s)

    def fetch(self, request: FetchRequest) -> Iterator[FetchPart]:
        return self._fetcher.fetch(request)

    def describe_partitions(
        self, topics: Sequence[str] = (), *, page_size: int = 0, page_token: str = ""
    ) -> DescribePage:
        """As RemoteLogManager.describe_partitions. Partitions that only the tier knows are listed
        too, without a leader."""
        describer = PageDescriber(self.broker_id)
        partitions = self._all_partitions(describer)
        chosen = [p for p in partitions if not topics or p.topic_id_partition.topic in topics]
        page, others_follow = page_of(chosen, page_size, page_token)
        described, done = describer.page(page)
        token = ""
        if others_follow or done < len(page):
            token = token_after(page[done - 1].topic_id_partition)
        problems = list(self._log_dir_problems)
        if describer.unavailable is not None:
            text = f"partitions that only the tier has are not listed: {describer.unavailable}"
            problems.insert(0, Problem(ProblemKind.STORE_UNAVAILABLE, "", text))
        return DescribePage(tuple(described), token, at_most(problems))

    def _all_partitions(self, describer: PageDescriber) -> list[Partition]:
        """Those here, and those of the tier if it can be asked: all of them or none."""
        with self._lock:
            found = dict(self._partitions)
        try:
            for summary in all_partitions(self._rlmm):
                name = summary.topic_id_partition
                if name not in found:
                    found[name] = self._partition_of(name)
        except RemoteStorageError as e:
            describer.unavailable = e
            return [partition for partition in found.values() if partition.local is not None]
        return list(found.values())

    def _partition_of(self, name: TopicIdPartition) -> Partition:
        with self._lock:
            partition = self._partitions.get(name) or self._only_remote.get(name)
            if partition is None:
                partition = new_partition(name, None, self._rsm, self._rlmm)
                self._only_remote[name] = partition
            return partition

    def _scan(self) -> None:
        """Find partitions that came and forget those that went."""
        try:
            self._adopt(find_partitions(self._log_dirs))
        except LogDirError as e:
            problem = Problem(ProblemKind.UNREADABLE, str(e.path), e.reason)
            self._log_dir_problems = (problem,)
            raise

    def _adopt(self, found: LogDirs) -> None:
        self._log_dir_problems = tuple(found.problems)
        with self._lock:
            adopted = {name: self._adopt_one(p) for name, p in found.partitions.items()}
            self._partitions = adopted
        self.scheduler.retain([_SCAN, *adopted])
        self.expiration_scheduler.retain(adopted)
        for name, partition in adopted.items():
            self.scheduler.schedule(name, self._task(partition))
            self.expiration_scheduler.schedule(name, self._expiration_task(partition))

    def _adopt_one(self, found: PartitionDir) -> Partition:
        known = self._partitions.get(found.topic_id_partition)
        if known is not None and known.local is not None and known.local.found.path == found.path:
            known.local.found = found  # its log start offset may have moved
            return known
        local = LocalPartition(found)
        return new_partition(found.topic_id_partition, local, self._rsm, self._rlmm)

    def _report(self) -> None:
        with self._lock:
            partitions = list(self._partitions.values())
        self._reporter.report_all(partitions)

    def _task(self, partition: Partition) -> Task:
        task = CopyTask(
            partition,
            self._copier,
            self._rlmm,
            self.broker_id,
            NoProgress(),
            self._stopping,
            self._cancelled,
        )

        def run() -> None:
            report = task.run()
            COPIED_SEGMENTS.inc(report.copied_segments)
            COPIED_BYTES.inc(report.copied_bytes)
            LOST_RANGES.inc(len(report.recorded))
            for problem in report.recorded:
                _log.warning("%s: %s", partition.topic_id_partition, problem.message)
            if report.copied_segments:
                _log.info(
                    "%s: copied %d segments", partition.topic_id_partition, report.copied_segments
                )
            if report.failure:
                raise PassFailedError(report.failure)

        return run

    def _expiration_task(self, partition: Partition) -> Task:
        task = ExpirationTask(partition, self._expiration)

        def run() -> None:
            report = task.run()
            if report.deleted_segments:
                _log.info(
                    "%s: retention deleted %d segments, %d bytes",
                    partition.topic_id_partition,
                    report.deleted_segments,
                    report.deleted_bytes,
                )
            if report.failure:
                raise PassFailedError(report.failure)

        return run


def _conforms(manager: StaticRemoteLogManager) -> RemoteLogManager:
    return manager
