"""Trim the broker's logs of topics whose local retention is RLM's (docs/adr/0023).

One pass serves all partitions: it decides, lets RLMM record what is decided, and sends one
DeleteRecords to the broker beside it. Nothing is sent if no log has to move.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from services.api.errors import RemoteResourceNotFoundError, RemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.offset_queries import RaisedLogStart
from services.api.partitions import NEVER_TRIMMED, PartitionReport
from services.api.remote_log_manager import FetchError, Problem, ProblemKind
from services.api.topic_config import LOCAL_RETENTION_OWNER, TopicConfig
from services.common.cancellation import Flag
from services.common.failpoints import failpoint
from services.common.quantities import counted
from services.rlm.kafka_admin.cluster_view import ClusterUnreachableError
from services.rlm.kafka_admin.local_records import Cut, LocalRecordsAdmin, Refused, TopicRetention
from services.rlm.kafka_log.indexes import largest_timestamp_ms
from services.rlm.kafka_log.local_log import LocalLog, LocalPartition
from services.rlm.kafka_log.partition_dir import LogFileError, SegmentVanishedError
from services.rlm.metrics import LOCAL_TRIMMED_BYTES
from services.rlm.partition import Leadership, Partition
from services.rlm.reason_log import ReasonLog
from services.rlm.reporting import NOT_REPORTED, Reporter, report_of
from services.rlm.retention.local_trims import LocalRetention, trim_offset
from services.rlm.scheduler import PassFailedError
from services.rlm.tier import Tier
from services.rlm.topic_configs import TopicConfigs

LOOK_EVERY_S = 60.0
"""The interval at which the brokers' retention of trimmed topics is read."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Trim:
    """A trim that was decided, and by what.

    Attributes:
        offset: below which records may go; at or above the log's start.
    """

    partition: Partition
    local: LocalPartition
    leadership: Leadership
    leader_epoch: int
    log: LocalLog
    tier: Tier
    offset: int
    report: PartitionReport

    @property
    def deletes(self) -> bool:
        return self.offset > self.log.log_start_offset

    @property
    def cut(self) -> Cut:
        return Cut(self.leader_epoch, self.offset)

    def holds_now(self) -> bool:
        """Return whether the partition still has the role and the leader epochs of the decision."""
        role = self.partition.role
        if role.local is not self.local or role.leadership != self.leadership:
            return False
        try:
            log = self.local.read()
        except (LogFileError, SegmentVanishedError):
            return False
        return log is not None and log.lineage == self.log.lineage


@dataclass
class LocalTrims:
    """Trim all partitions that this broker leads. Not thread-safe, but for `delete_at_broker`.

    Attributes:
        led: returns the partitions that this broker leads.
        defaults: of topics without a local retention of their own.
        stopping: once set, nothing is sent.
        clock: monotonic seconds.
        now_ms: the clock of this host, which is the broker's.
    """

    admin: LocalRecordsAdmin
    broker_id: int
    reporter: Reporter
    topic_configs: TopicConfigs
    led: Callable[[], list[Partition]]
    defaults: LocalRetention
    stopping: Flag
    clock: Callable[[], float]
    now_ms: Callable[[], int]
    _looked_s: float | None = None
    _uncertain: dict[TopicIdPartition, _Trim] = field(default_factory=dict)
    _refusals: ReasonLog = field(
        default_factory=lambda: ReasonLog("topic %s is not trimmed at its broker: %s")
    )
    _unread: ReasonLog = field(
        default_factory=lambda: ReasonLog("the brokers' retention of topic %s cannot be read: %s")
    )

    def run(self) -> None:
        """Run one pass.

        Raises:
            PassFailedError: if the broker or RLMM did not answer, or refused something.
        """
        led = [(partition, self._config(partition)) for partition in self.led()]
        trimmed = [(partition, config) for partition, config in led if config.is_trimmed_by_rlm]
        for partition, config in led:
            partition.trim.is_ours = config.is_trimmed_by_rlm
            if not config.is_trimmed_by_rlm:
                partition.trim.broker_retention = None
        if not trimmed:
            return
        try:
            self._look([partition for partition, _ in trimmed])
            self._settle()
            self._trim(self._recorded(list(self._decided(trimmed))))
        except (ClusterUnreachableError, RemoteStorageError) as e:
            raise PassFailedError(f"cannot trim local logs: {e}") from e

    def delete_at_broker(self, raised: Sequence[RaisedLogStart]) -> list[RaisedLogStart]:
        """Delete the records below raised log starts from this broker's logs too.

        The answers name in local_error what the broker refused.
        """
        led = {partition.topic_id_partition: partition for partition in self.led()}
        cuts: dict[TopicIdPartition, Cut] = {}
        for each in raised:
            partition = led.get(each.topic_id_partition)
            epoch = None if partition is None else _leader_epoch(partition)
            if epoch is not None and each.error is FetchError.NONE:
                cuts[each.topic_id_partition] = Cut(epoch, each.log_start_offset)
        try:
            answers = self.admin.delete_records(self.broker_id, cuts, lambda _: True)
        except ClusterUnreachableError as e:
            unsure = f"perhaps not deleted: {e}"
            return [replace(r, local_error=unsure) if _is_done(r) else r for r in raised]
        return [_with_local_error(each, answers) for each in raised]

    def _config(self, partition: Partition) -> TopicConfig:
        try:
            return self.topic_configs.of(partition.topic_id_partition.topic_id).config
        except RemoteResourceNotFoundError:
            return TopicConfig()

    def _look(self, partitions: Iterable[Partition]) -> None:
        """Read, not too often, whether a broker deletes by itself what is RLM's to delete."""
        now_s = self.clock()
        if self._looked_s is not None and now_s - self._looked_s < LOOK_EVERY_S:
            return
        by_topic = defaultdict[str, list[Partition]](list)
        for partition in partitions:
            by_topic[partition.topic_id_partition.topic].append(partition)
        self.admin.view(sorted(by_topic))
        found = self.admin.retentions(self.broker_id, sorted(by_topic))
        for topic, of_topic in by_topic.items():
            retention, name = found[topic], of_topic[0].topic_id_partition
            if isinstance(retention, Refused):
                self._unread.log(name, str(retention))
                continue
            self._unread.log(name, "")
            for partition in of_topic:
                partition.trim.broker_retention = broker_retention_problem(topic, retention)
        # What is set and put right between two passes is no problem for long.
        is_well = all(each.trim.broker_retention is None for of in by_topic.values() for each in of)
        self._looked_s = now_s if is_well else None

    def _settle(self) -> None:
        """Read the log starts of trims whose outcome is unknown."""
        if not self._uncertain:
            return
        epochs = {name: trim.leader_epoch for name, trim in self._uncertain.items()}
        starts = self.admin.brokers.log_offsets(self.broker_id, epochs)
        for name, trim in self._uncertain.items():
            if name in starts and starts[name].log_start_offset >= trim.offset:
                self._done(trim)
        self._uncertain = {}

    def _decided(self, trimmed: Iterable[tuple[Partition, TopicConfig]]) -> Iterable[_Trim]:
        for partition, config in trimmed:
            try:
                trim = self._decide(partition, self.defaults.of(config))
            except NOT_REPORTED as e:
                _log.info("%s: not trimmed now: %s", partition.topic_id_partition, e)
                continue
            if trim is not None:
                yield trim

    def _decide(self, partition: Partition, retention: LocalRetention) -> _Trim | None:
        local, leadership = partition.role.local, partition.role.leadership
        epoch = _leader_epoch(partition)
        log = None if local is None else local.read()
        if local is None or leadership is None or epoch is None or log is None:
            return None
        if leadership.is_overtaken(log.lineage):
            return None
        tier = partition.tier.cached if partition.tier.is_as_polled else partition.tier.refresh()
        offset = trim_offset(log, tier, retention, self.now_ms(), largest_timestamp_ms)
        recorded = self.reporter.local_trim_offset(partition)
        # Where the log began when RLM took over is no deletion.
        if offset <= log.log_start_offset and recorded != NEVER_TRIMMED:
            return None
        # Of the tier of this decision: RLMM's answer says whether it still is that.
        report = report_of(partition, self.broker_id, by_cached=tier.segments > 0)
        if report is None:
            return None
        report = replace(report, local_trim_offset=max(offset, recorded))
        return _Trim(partition, local, leadership, epoch, log, tier, offset, report)

    def _recorded(self, trims: Sequence[_Trim]) -> list[_Trim]:
        """Record the trims in RLMM; return those that may be carried out.

        RLMM refuses a trim under an old leader epoch, and one that the settings no longer want. A
        partition that changed since the decision waits for the next one.
        """
        outcomes = self.reporter.report_each([(t.partition, t.report) for t in trims])
        recorded = []
        for trim, outcome in zip(trims, outcomes, strict=True):
            if isinstance(outcome, RemoteStorageError):
                _log.info("%s: not trimmed now: %s", trim.partition.topic_id_partition, outcome)
            elif trim.deletes and outcome.revision == trim.tier.revision:
                recorded.append(trim)
        return recorded

    def _trim(self, trims: Sequence[_Trim]) -> None:
        if not trims or self.stopping.is_set():
            return
        by_name = {trim.partition.topic_id_partition: trim for trim in trims}
        cuts = {name: trim.cut for name, trim in by_name.items()}

        def holds_now(name: TopicIdPartition) -> bool:
            return not self.stopping.is_set() and by_name[name].holds_now()

        failpoint("trim.recorded")
        try:
            answers = self.admin.delete_records(self.broker_id, cuts, holds_now)
        except ClusterUnreachableError:
            self._uncertain = by_name
            raise
        refused: dict[str, TopicIdPartition] = {}
        for name, answer in answers.items():
            if not isinstance(answer, Refused):
                self._done(by_name[name])
                self._refusals.log(name, "")
            elif answer.is_perhaps_done:
                _log.info("%s: perhaps trimmed: %s; reading its log start next", name, answer)
                self._uncertain[name] = by_name[name]
            else:
                refused[name.topic] = name
                self._refusals.log(name, f"the broker refuses to delete its records: {answer}")
        if refused:
            raise PassFailedError(f"the broker refused trims of {counted(len(refused), 'topic')}")

    def _done(self, trim: _Trim) -> None:
        gone = [s for s in trim.log.rolled if s.end_offset < trim.offset]
        start = trim.log.log_start_offset
        size_bytes = sum(s.size_bytes for s in gone if s.end_offset >= start)
        trim.local.trimmed_before_offset = trim.offset
        LOCAL_TRIMMED_BYTES.inc(size_bytes)
        _log.info(
            "%s: the broker's log begins at offset %d now, %d bytes less: the tier has them",
            trim.partition.topic_id_partition,
            trim.offset,
            size_bytes,
        )


def _leader_epoch(partition: Partition) -> int | None:
    leadership = partition.role.leadership
    return leadership.leader_epoch if leadership is not None and leadership.is_leader else None


def _is_done(raised: RaisedLogStart) -> bool:
    return raised.error is FetchError.NONE


def _with_local_error(
    raised: RaisedLogStart, answers: Mapping[TopicIdPartition, int | Refused]
) -> RaisedLogStart:
    answer = answers.get(raised.topic_id_partition)
    if not _is_done(raised) or isinstance(answer, int):
        return raised
    text = "another broker leads the partition" if answer is None else str(answer)
    return replace(raised, local_error=text)


def broker_retention_problem(topic: str, retention: TopicRetention) -> Problem | None:
    """Describe a retention of the brokers that deletes what is RLM's to delete."""
    if not retention.deletes:
        return None
    text = (
        f"the broker has retention.ms={retention.ms} and retention.bytes={retention.size_bytes} "
        f"for topic {topic}, and may delete what is not in the tier. Run `sediment topics set "
        f"{topic} {LOCAL_RETENTION_OWNER}=rlm` again, which sets both to -1, or unset it"
    )
    return Problem(ProblemKind.BROKER_RETENTION_SET, topic, text)
