"""Assemble the parts of the RLM of one broker.

    source  →  PartitionRoles  →  PartitionTasks  →  Lanes
    (roles/partition_roles.py, tasks.py, lanes.py; the poller is a source of its
    own: kafka_admin/poller.py)

Besides the tasks of partitions, the process has others: scan the log directories, report the led
partitions, follow the revisions of all partitions, remove deleted partitions, maintain the files of
the index cache, announce where this RLM is reached, and, with the poller, read cleanup policies and
trim the broker's logs.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from services.api.errors import NotServedError, RemoteResourceNotFoundError, RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.lineage import Lineage
from services.api.local_retention import BrokerRetention, LocalRetentionChange
from services.api.offset_queries import (
    EpochAnswer,
    EpochQuery,
    OffsetAnswer,
    OffsetQueries,
    RaisedLogStart,
    RecordsToDelete,
)
from services.api.remote_log_manager import (
    ActivePasses,
    CopyLag,
    DescribePage,
    FetchError,
    FetchPart,
    FetchRequest,
    LeadershipChange,
    LeadershipDelta,
    LifecycleOutcome,
    PartitionStops,
    Problem,
    ProblemKind,
    StopPartition,
)
from services.api.remote_log_metadata_manager import (
    MAX_PAGE_SIZE,
    RemoteLogMetadataManager,
    all_partitions,
)
from services.api.remote_storage_manager import RemoteStorageManager
from services.api.replicas import AuxStateQuery, RemoteLogAuxState
from services.api.topic_config import UNLIMITED
from services.common.cancellation import Cancellation
from services.common.fair_queue import FairQueue, QuotaLimit
from services.common.retry import Backoff
from services.rlm.cleanup_policies import CleanedLogs, CleanupPolicies, Policies
from services.rlm.copy.rules import EVERY_TOPIC, CopyLagDefaults, CopyRules
from services.rlm.copy.segment import CopyLimits, SegmentCopier
from services.rlm.describe import PageDescriber, at_most, copy_lag_of, page_of, token_after
from services.rlm.fetch.reads import LogSource, ReadLimits, Reads
from services.rlm.kafka_admin.polled_logs import PolledLogs
from services.rlm.kafka_admin.poller import ClusterPoller, PolledCluster
from services.rlm.kafka_log.log_dir import LogDirectories, read_identity
from services.rlm.lanes import FIRST_RETRY_S, Lanes, new_scheduler
from services.rlm.metrics import MAX_TOPICS, TopicCounts
from services.rlm.partition import Partition, ServedPartition, new_partition
from services.rlm.partition_readers import Readers
from services.rlm.reporting import Reporter
from services.rlm.retention.expiration_task import Expiration
from services.rlm.retention.local_owner import LocalOwner
from services.rlm.retention.local_trims import LocalRetention
from services.rlm.retention.snapshot import MAX_SEGMENTS
from services.rlm.retention.trim_task import LocalTrims
from services.rlm.revisions import Revisions
from services.rlm.roles.disabled_topics import DisabledTopics
from services.rlm.roles.partition_remover import RemotePartitionRemover
from services.rlm.roles.partition_roles import PartitionRoles, PartitionSource
from services.rlm.roles.sources import StaticSource
from services.rlm.roles.stopping import TierDeletion
from services.rlm.tasks import PartitionTasks
from services.rlm.topic_configs import TopicConfigs

RoleItem = TypeVar("RoleItem", LeadershipChange, StopPartition)
_log = logging.getLogger(__name__)

_SENDS_NOTHING = (
    "this RLM sends its broker no requests: start it with RLM_PARTITION_SOURCE=poller, "
    "RLM_BOOTSTRAP_SERVERS and RLM_LOG_DIRS"
)
_FOLLOWS = (
    "only a leader tells where leader epochs end, and this broker follows; call the leader's RLM"
)
_STARTS_NOTHING = "drained: starting no copy and no deletion until that is cancelled, or a restart"
_STARTS_AGAIN = "not drained any more: starting copies and deletions again"


@dataclass(frozen=True, slots=True)
class RlmLimits:
    """The settings of RLM, in the form that its parts use."""

    interval_s: float = 30.0
    copier_threads: int = 10
    expiration_threads: int = 10
    expiration_segments: int = MAX_SEGMENTS
    follower_threads: int = 2
    report_interval_s: float = 300.0
    remover_interval_s: float = 3600.0
    deletion_grace_ms: int = 3_600_000
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_s=FIRST_RETRY_S, max_s=30.0))
    copy: CopyLimits = field(default_factory=CopyLimits)
    read: ReadLimits = field(default_factory=ReadLimits)
    max_partitions: int = 20_000
    metrics_max_topics: int = MAX_TOPICS
    copy_lag: CopyLagDefaults = field(default_factory=CopyLagDefaults)
    copy_quota: QuotaLimit = field(default_factory=QuotaLimit)
    local_retention: LocalRetention = field(default_factory=LocalRetention)
    tiered_topics: tuple[str, ...] = ()


class BrokerRemoteLogManager:
    """Copy led partitions, apply their retention, serve reads, and remove deleted partitions.

    Reads are served from `log_dirs` and the tier. Without log directories, only serve and remove.

    Args:
        source: the source of roles.
        cluster: the cluster that source POLLER polls, and that any source asks for the cleanup
            policies of topics; None: the log directories say which logs are compacted.
        logs: reads logs of the tier; None if `rsm` does.

    Raises:
        LogDirError: if none of the directories can be used.
    """

    def __init__(
        self,
        log_dirs: Sequence[Path],
        rsm: RemoteStorageManager,
        rlmm: RemoteLogMetadataManager,
        limits: RlmLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        source: PartitionSource = PartitionSource.STATIC,
        cluster: PolledCluster | None = None,
        logs: LogSource | None = None,
    ) -> None:
        limits = limits or RlmLimits()
        self.topic_counts = TopicCounts(limits.metrics_max_topics)
        self._rlmm = rlmm
        self._source = source
        self._drained = threading.Event()
        self._drain_lock = threading.Lock()
        # A drained RLM begins as little as one that stops.
        self._stopping = Cancellation(self._drained)
        self._cancelled = threading.Event()
        self._directories = LogDirectories(log_dirs)
        self.broker_id = broker_id = self._directories.broker_id
        self._topic_configs = TopicConfigs(rlmm, limits.interval_s, clock)
        self._reporter = Reporter(
            rlmm, broker_id, limits.report_interval_s, clock, self._has_size_limit
        )
        self._reads = Reads(
            rsm,
            rlmm,
            lambda name: self._roles.partition(name),
            broker_id,
            self._reporter,
            self.topic_counts,
            limits.read,
            clock,
            logs,
        )
        self._rsm = rsm = self._reads.storage
        # Twice the interval, to tolerate one late poll, or a watch that ended.
        self._revisions = Revisions(rlmm, 2 * limits.interval_s, clock)
        identity = read_identity(log_dirs, broker_id)
        self.readers = Readers(rlmm, identity, cluster.admin if cluster else None, clock)
        self._policies: Policies = CleanedLogs(log_dirs)
        if cluster is not None:
            self._policies = CleanupPolicies(cluster.admin, cluster.registered_id, clock)
        self.scheduler = new_scheduler(limits.backoff, clock)
        self.lanes = Lanes(
            self.scheduler,
            copier_threads=limits.copier_threads,
            expiration_threads=limits.expiration_threads,
            follower_threads=limits.follower_threads,
            interval_s=limits.interval_s,
            remover_interval_s=limits.remover_interval_s,
        )
        # Roles come only from answers of the registered cluster.
        self._polls = cluster is not None and source is PartitionSource.POLLER
        cluster_id = cluster.registered_id if cluster is not None and self._polls else None
        self._roles = PartitionRoles(
            self._partition_tasks(limits, clock, now_ms),
            TierDeletion(rsm, rlmm, broker_id, self._reporter, now_ms),
            self._directories,
            lambda name: new_partition(name, None, rsm, rlmm, self._revisions, cluster_id),
            limits.max_partitions,
        )
        self.tier_calls = self._reads.calls
        self._static = StaticSource(self._roles) if source is PartitionSource.STATIC else None
        if self._static is not None:
            self._static.update(self._directories.partitions)
        self._trims: LocalTrims | None = None
        self._local_owner: LocalOwner | None = None
        local_records = cluster.local_records if cluster is not None and self._polls else None
        if local_records is not None and not self._directories.are_none:
            defaults = limits.local_retention
            self._trims = LocalTrims(
                local_records,
                broker_id,
                self._reporter,
                self._topic_configs,
                self.led_partitions,
                defaults,
                self._stopping,
                clock,
                now_ms,
            )
            self._local_owner = LocalOwner(local_records, broker_id, rlmm, defaults, now_ms)
            self.lanes.trims.schedule("trims of the broker's logs", self._trims.run)
        self._schedule_tasks_of_process(cluster, clock)
        RemotePartitionRemover(
            rsm, rlmm, broker_id, limits.deletion_grace_ms, self.lanes.removal, now_ms
        )

    def _schedule_tasks_of_process(
        self, cluster: PolledCluster | None, clock: Callable[[], float]
    ) -> None:
        lanes, has_logs = self.lanes, not self._directories.are_none
        if cluster is not None and self._polls:
            logs = None if has_logs else PolledLogs(cluster.admin, self._rlmm, self._rsm, clock)
            poller = ClusterPoller(cluster, self._directories, self._roles, self._rlmm, clock, logs)
            lanes.poll.schedule("poll of the cluster", poller.poll)
        if self._source is not PartitionSource.CALLBACKS:
            disabled = DisabledTopics(self._roles, self._topic_configs, self._rlmm, self._stopping)
            lanes.expiration.schedule("topics that are disabled", disabled.disable)
        if isinstance(self._policies, CleanupPolicies):
            lanes.policies.schedule("cleanup policies", self._policies.refresh)
        if has_logs:
            lanes.scan.schedule("scan of the log directories", self._scan)
            lanes.reports.schedule(
                "reports of all partitions",
                lambda: self._reporter.report_all(self.led_partitions()),
            )
        lanes.revisions.schedule("revisions of all partitions", self._follow_revisions)
        lanes.index_cache.schedule("upkeep of the index cache", self._reads.maintain)

    def _partition_tasks(
        self,
        limits: RlmLimits,
        clock: Callable[[], float],
        now_ms: Callable[[], int],
    ) -> PartitionTasks:
        rsm, rlmm, broker_id = self._rsm, self._rlmm, self.broker_id
        copier = SegmentCopier(rsm, rlmm, broker_id, now_ms, limits.copy)
        topic_configs = self._topic_configs
        # A cluster returns all of its topics, including those that are not tiered.
        every_topic = () if self._source is PartitionSource.POLLER else EVERY_TOPIC
        copy_rules = CopyRules(
            topic_configs,
            limits.copy_lag,
            limits.copy_quota.bucket("copies"),
            now_ms,
            limits.tiered_topics or every_topic,
            cleanup_policies=self._policies,
        )
        expiration = Expiration(
            rsm,
            rlmm,
            broker_id,
            copier,
            self._reporter,
            topic_configs,
            clock,
            now_ms,
            FairQueue("segments listed at once by retention", limits.expiration_segments),
            self._policies,
        )
        return PartitionTasks(
            self.lanes,
            rlmm,
            broker_id,
            copier,
            copy_rules,
            expiration,
            self._stopping,
            self._cancelled,
            self.topic_counts,
        )

    def start(self) -> None:
        """Start copying, reporting, retention and removal; reads are served before that, too."""
        self._revisions.start()
        self.scheduler.start()

    def announce(self, address: str, listener: str | None) -> None:
        """Announce where readers reach this RLM, until it stops."""
        self.readers.serve_at(address, listener)
        self.lanes.announcements.schedule("announcement of this RLM", self.readers.renew)

    def end_waits(self) -> None:
        """Let fetches that wait for records answer now, and later ones at once."""
        self.readers.withdraw()
        self._reads.end_waits()

    def stop(self, grace_s: float) -> None:
        """Stop all tasks and finish running copies within `grace_s`.

        The next start cleans up copies that did not finish.
        """
        self._stopping.set()
        self.end_waits()
        self._revisions.stop()
        if not self.scheduler.stop(grace_s):
            self._cancelled.set()
            self.lanes.copies.wait_idle(grace_s)
        self._reads.close()

    def fetch(self, request: FetchRequest) -> Iterator[FetchPart]:
        return self._reads.fetch(request)

    def list_offsets(self, queries: OffsetQueries) -> list[OffsetAnswer]:
        return self._reads.list_offsets(queries)

    def offsets_for_leader_epochs(self, queries: tuple[EpochQuery, ...]) -> list[EpochAnswer]:
        answers = self._reads.offsets_for_leader_epochs(queries)
        followed = {name for each in queries if self._follows(name := each.topic_id_partition)}
        # The RLM of a follower that stands in for its leader's answers for it.
        nodes = {self.broker_id, *(each.broker_id for each in self.readers.live)}
        chosen = self.readers.leaders(followed, nodes) if followed else {}
        refused = followed - {tp for tp, at in chosen.items() if at.node_id == self.broker_id}
        return [
            EpochAnswer(name, FetchError.NOT_LEADER_OR_FOLLOWER, _FOLLOWS)
            if (name := each.topic_id_partition) in refused
            else each
            for each in answers
        ]

    def _follows(self, name: TopicIdPartition) -> bool:
        leadership = self._roles.partition(name).role.leadership
        return leadership is not None and not leadership.is_leader

    def delete_records(
        self, requests: tuple[RecordsToDelete, ...], *, brokers_too: bool = False
    ) -> list[RaisedLogStart]:
        raised = self._reads.delete_records(requests)
        if not brokers_too:
            return raised
        if self._trims is None:
            return [replace(each, local_error=_SENDS_NOTHING) for each in raised]
        return self._trims.delete_at_broker(raised)

    def set_local_retention_owner(self, change: LocalRetentionChange) -> BrokerRetention:
        if self._local_owner is None:
            raise NotServedError(_SENDS_NOTHING)
        retention = self._local_owner.change(change)
        self._topic_configs.forget(change.topic_id)
        return retention

    def build_remote_log_aux_state(self, query: AuxStateQuery) -> RemoteLogAuxState:
        return self._reads.build_remote_log_aux_state(query)

    def on_leadership_change(self, delta: LeadershipDelta) -> list[LifecycleOutcome]:
        self._require_callbacks()
        self._directories.scan_for([change.topic_id_partition for change in delta.changes])
        return self._with_true_names(
            delta.changes, "changes", lambda valid: self._roles.apply(LeadershipDelta(valid))
        )

    def stop_partitions(self, stops: PartitionStops) -> list[LifecycleOutcome]:
        self._require_callbacks()
        return self._with_true_names(
            stops.partitions, "partitions", lambda valid: self._roles.stop(PartitionStops(valid))
        )

    def _with_true_names(
        self,
        items: tuple[RoleItem, ...],
        field: str,
        work: Callable[[tuple[RoleItem, ...]], list[LifecycleOutcome]],
    ) -> list[LifecycleOutcome]:
        """Do the work for the items whose topics have their true names; refuse the others."""
        names = [item.topic_id_partition for item in items]
        refused = self._roles.false_names(names, field)
        valid = tuple(item for item in items if item.topic_id_partition not in refused)
        outcomes = iter(work(valid) if valid else ())
        return [refused[name] if name in refused else next(outcomes) for name in names]

    def _require_callbacks(self) -> None:
        if self._source is not PartitionSource.CALLBACKS:
            raise NotServedError(
                "this RLM finds its partitions by itself (RLM_PARTITION_SOURCE="
                f"{self._source.value}); to send it roles, start it with "
                f"RLM_PARTITION_SOURCE={PartitionSource.CALLBACKS.value}"
            )

    def led_partitions(self) -> list[Partition]:
        """Return the partitions that this broker leads and that are known to exist."""
        return self._roles.leaders()

    def describe_partitions(
        self, topics: Sequence[str] = (), *, page_size: int = 0, page_token: str = ""
    ) -> DescribePage:
        """Describe partitions, including those that only the tier has, without a leader."""
        describer = PageDescriber(self.broker_id)
        partitions = self._all_partitions(describer)
        chosen = [p for p in partitions if not topics or p.topic_id_partition.topic in topics]
        page, others_follow = page_of(chosen, page_size, page_token)
        described, done = describer.page(page)
        rlms = self.readers.live
        nodes = {self.broker_id, *(each.broker_id for each in rlms)}
        leaders = self.readers.leaders((each.topic_id_partition for each in described), nodes)
        with_readers = (
            replace(each, reader_id=leaders[each.topic_id_partition].node_id)
            if each.topic_id_partition in leaders
            else each
            for each in described
        )
        token = ""
        if others_follow or done < len(page):
            token = token_after(page[done - 1].topic_id_partition)
        # Their paths name folders of any topic.
        problems = [] if topics else list(self._directories.problems)
        if describer.unavailable is not None:
            text = f"cannot list partitions that only the tier has: {describer.unavailable}"
            problems.insert(0, Problem(ProblemKind.STORE_UNAVAILABLE, "", text))
        return DescribePage(tuple(with_readers), token, at_most(problems), rlms)

    def served_partitions(self, topic: str = "") -> list[ServedPartition]:
        here = [p for p in self._roles.partitions() if p.role.local is not None]
        found = {p.topic_id_partition: _served(p) for p in here}
        try:
            for summary in all_partitions(self._rlmm, topic=topic, page_size=MAX_PAGE_SIZE):
                name = summary.topic_id_partition
                if summary.delete_state is not None:
                    found.pop(name, None)
                else:
                    size_bytes = summary.totals.finished_bytes
                    served = found.get(name) or ServedPartition(name)
                    found[name] = replace(served, remote_size_bytes=size_bytes)
        except RemoteStorageError as e:
            _log.warning("consumers see only partitions that are here: RLMM cannot list: %s", e)
        return [each for name, each in found.items() if topic in ("", name.topic)]

    def copy_lag(self) -> CopyLag:
        lag = copy_lag_of(self.led_partitions(), self.broker_id, time.time_ns() // 1_000_000)
        return replace(lag, drained=self._drained.is_set())

    def drain(self, *, cancel: bool = False) -> ActivePasses:
        lanes = self.lanes
        copies, *deleting = lanes.copies, lanes.expiration, lanes.removal, lanes.trims
        with self._drain_lock:  # The flag and the lanes change together.
            if self._drained.is_set() is cancel:
                _log.warning("%s", _STARTS_AGAIN if cancel else _STARTS_NOTHING)
            if cancel:
                self._drained.clear()
            else:
                self._drained.set()
            for lane in (copies, *deleting):
                lane.resume() if cancel else lane.pause()
        return ActivePasses(copies.running, sum(lane.running for lane in deleting))

    def _all_partitions(self, describer: PageDescriber) -> list[Partition]:
        """Return the local and remote partitions; only the local ones if RLMM is down."""
        here = {partition.topic_id_partition: partition for partition in self._roles.partitions()}
        found = dict(here)
        try:
            for summary in all_partitions(self._rlmm):
                name = summary.topic_id_partition
                if name not in found:
                    found[name] = self._roles.partition(name)
        except RemoteStorageError as e:
            describer.unavailable = e
            return [partition for partition in here.values() if partition.role.local is not None]
        return list(found.values())

    def _scan(self) -> None:
        """Scan the log directories and update roles and folders."""
        self._directories.scan()
        self._roles.update_folders()
        if self._static is not None:
            self._static.update(self._directories.partitions)

    def _follow_revisions(self) -> None:
        """Follow the partitions that exist, and search RLMM for those that may not."""
        self._revisions.follow(self._roles.proven())
        if self._roles.has_unproven:
            listed = all_partitions(self._rlmm, page_size=MAX_PAGE_SIZE)
            self._roles.prove(summary.topic_id_partition for summary in listed)

    def _has_size_limit(self, name: TopicIdPartition) -> bool:
        """Return whether retention, or who deletes local records, uses what this broker reports."""
        try:
            config = self._topic_configs.of(name.topic_id).config
        except RemoteResourceNotFoundError:
            return False
        return config.retention_bytes != UNLIMITED or config.is_trimmed_by_rlm


def _served(partition: Partition) -> ServedPartition:
    leadership, local = partition.role.leadership, partition.role.local
    log = None if local is None else local.cached
    lineage = Lineage() if log is None else log.lineage
    epoch = None if leadership is None else leadership.epoch_of(lineage)
    return ServedPartition(partition.topic_id_partition, epoch, leadership is not None)
