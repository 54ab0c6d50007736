"""Give a topic's local retention to RLM, or back to the brokers."""

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from services.api.errors import (
    ConcurrentUpdateError,
    DeletionRefusedError,
    RemoteResourceNotFoundError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.local_retention import BrokerRetention, GroupBehind, LocalRetentionChange
from services.api.partitions import PartitionReport
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.retention import DEFAULT_MAX_REPORT_AGE_MS
from services.api.topic_config import (
    UNLIMITED,
    LocalRetentionOwner,
    StoredTopicConfig,
    topic_config,
)
from services.rlm.kafka_admin.cluster_view import ClusterUnreachableError, PartitionView
from services.rlm.kafka_admin.local_records import (
    RETENTION_BYTES,
    RETENTION_MS,
    LocalRecordsAdmin,
    Refused,
    TopicRetention,
)
from services.rlm.retention.local_trims import LocalRetention

_SHOWN = 5
"""The most partitions that a refusal names."""

_READS, _READ_AGAIN_S = 50, 0.2
_Partitions = Mapping[TopicIdPartition, PartitionView]


@dataclass(frozen=True, slots=True)
class LocalOwner:
    """Change who deletes local records. Thread-safe.

    Attributes:
        broker_id: of the broker beside this RLM, which takes the requests about the topic.
        defaults: of topics without a local retention of their own.
        now_ms: the clock of this host.
    """

    admin: LocalRecordsAdmin
    broker_id: int
    rlmm: RemoteLogMetadataManager
    defaults: LocalRetention
    now_ms: Callable[[], int]

    def change(self, change: LocalRetentionChange) -> BrokerRetention:
        """Change the owner as OffsetService.set_local_retention_owner."""
        try:
            return self._change(change)
        except ClusterUnreachableError as e:
            raise RetriableRemoteStorageError(
                f"topic {change.topic}: the brokers' settings may have changed: {e}"
            ) from e
        except Refused as e:
            raise DeletionRefusedError(
                f"topic {change.topic}: the broker refuses to change its retention: {e}; nothing "
                "changed. Grant RLM's user ALTER_CONFIGS and DESCRIBE_CONFIGS on the topic"
            ) from e

    def _change(self, change: LocalRetentionChange) -> BrokerRetention:
        topic, stored = change.topic, self.rlmm.topic_config(change.topic_id)
        found = self.admin.view([topic]).topic(change.topic_id, topic)
        if found is None or stored.topic != topic:
            raise RemoteResourceNotFoundError(f"the cluster has no topic {topic} of this id")
        partitions = {
            TopicIdPartition(change.topic_id, topic, number): partition
            for number, partition in found.partitions.items()
        }
        retention = self._retention(topic)
        if change.owner is LocalRetentionOwner.RLM:
            return self._give_to_rlm(change, stored, retention, partitions)
        return self._give_back(change, stored, retention, partitions)

    def _retention(self, topic: str) -> TopicRetention:
        retention = self.admin.retentions(self.broker_id, [topic])[topic]
        if isinstance(retention, Refused):
            raise retention
        return retention

    def _give_to_rlm(
        self,
        change: LocalRetentionChange,
        stored: StoredTopicConfig,
        retention: TopicRetention,
        partitions: _Partitions,
    ) -> BrokerRetention:
        topic, config = change.topic, stored.config
        if retention.is_tiered or retention.cleanup_policy != "delete":
            raise DeletionRefusedError(
                f"topic {topic}: its brokers have remote.storage.enable="
                f"{str(retention.is_tiered).lower()} and cleanup.policy="
                f"{retention.cleanup_policy}: RLM looks after topics that no broker tiers, with "
                "cleanup.policy=delete"
            )
        own = retention.own_ms, retention.own_bytes
        kept = config.local_retention_broker_ms, config.local_retention_broker_bytes
        # Again: a limit that is not RLM's -1 was set at the brokers since.
        is_again = config.is_trimmed_by_rlm
        ms, size_bytes = (
            k if is_again and o == UNLIMITED else o for o, k in zip(own, kept, strict=True)
        )
        endless = {RETENTION_MS: UNLIMITED, RETENTION_BYTES: UNLIMITED}
        if not change.apply:
            missing = self.admin.missing_rights(self.broker_id, topic)
            if missing:
                raise DeletionRefusedError(missing_rights(topic, [right.name for right in missing]))
            self.admin.alter_retention(self.broker_id, topic, endless, only_check=True)
            coming = self.defaults.of(topic_config(change.settings))
            groups = tuple(self._groups(topic, partitions, coming))
            return BrokerRetention(ms, size_bytes, groups)
        if not is_again or (ms, size_bytes) != kept:
            raise ConcurrentUpdateError(
                f"topic {topic}: its brokers have retention.ms={own[0]}, retention.bytes={own[1]}, "
                "and the topic's settings do not remember these; nothing changed"
            )
        self._alter(topic, endless)
        return BrokerRetention(ms, size_bytes)

    def _give_back(
        self,
        change: LocalRetentionChange,
        stored: StoredTopicConfig,
        retention: TopicRetention,
        partitions: _Partitions,
    ) -> BrokerRetention:
        config, topic = stored.config, change.topic
        if not config.is_trimmed_by_rlm:
            return BrokerRetention(retention.own_ms, retention.own_bytes)
        before = BrokerRetention(
            config.local_retention_broker_ms, config.local_retention_broker_bytes
        )
        values = {RETENTION_MS: before.retention_ms, RETENTION_BYTES: before.retention_bytes}
        ms, size_bytes = before.retention_ms, before.retention_bytes
        ms = retention.default_ms if ms is None else ms
        size_bytes = retention.default_bytes if size_bytes is None else size_bytes
        lost = list(self._would_lose(partitions, ms, size_bytes))
        if lost:
            more = f", and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
            raise DeletionRefusedError(
                f"topic {topic}: with retention.ms={ms} and retention.bytes={size_bytes} the "
                f"brokers would delete records that only they have: {', '.join(lost[:_SHOWN])}"
                f"{more}. Wait until they are copied, or raise sediment.local.retention.broker.*"
            )
        if change.apply:
            self._alter(topic, values)
        return before

    def _alter(self, topic: str, values: Mapping[str, int | None]) -> None:
        self.admin.alter_retention(self.broker_id, topic, values, only_check=False)
        # The controller has it; the broker hears of it a moment later.
        for _ in range(_READS):
            after = self._retention(topic)
            if [after.own_ms, after.own_bytes] == list(values.values()):
                return
            time.sleep(_READ_AGAIN_S)
        raise RetriableRemoteStorageError(
            f"topic {topic}: the cluster has taken {dict(values)} and its broker still has "
            f"retention.ms={after.own_ms}, retention.bytes={after.own_bytes}; repeat the command"
        )

    def _would_lose(self, partitions: _Partitions, ms: int, size_bytes: int) -> Iterator[str]:
        """Name the partitions of which the brokers' retention would delete what is not copied."""
        older = self._first_younger(partitions, ms)
        for name in partitions:
            report = self._report(name)
            if report is None:
                yield f"{name.topic}-{name.partition} (its RLM has not reported for a while)"
                continue
            first = report.copied_through_offset + 1
            by_size = size_bytes != UNLIMITED and report.only_local_bytes > size_bytes
            # A segment below `first` that could not be copied shows only in the lag.
            has_hole = report.lag_bytes > 0
            if older[name] > first or ((by_size or has_hole) and first < report.log_end_offset):
                yield f"{name.topic}-{name.partition} from offset {first}"

    def _first_younger(self, partitions: _Partitions, ms: int) -> dict[TopicIdPartition, int]:
        """Find the first offset that a retention by time keeps: the log's end if it keeps none."""
        if ms == UNLIMITED:
            return dict.fromkeys(partitions, 0)
        found: dict[TopicIdPartition, int] = {}
        by_leader: dict[int, dict[TopicIdPartition, int]] = {}
        for name, partition in partitions.items():
            if partition.leader is None or partition.leader_epoch is None:
                raise ClusterUnreachableError(f"{name.topic}-{name.partition} has no leader now")
            by_leader.setdefault(partition.leader, {})[name] = partition.leader_epoch
        brokers, before_ms = self.admin.brokers, max(self.now_ms() - ms, 0)
        for leader, epochs in by_leader.items():
            ends = brokers.log_offsets(leader, epochs)
            found |= {name: ends[name].high_watermark for name in ends}
            found |= brokers.offsets_at(leader, epochs, before_ms)
        unanswered = sorted(set(partitions) - set(found))
        if unanswered:
            raise ClusterUnreachableError(f"the leader of {unanswered[0]} does not answer")
        return found

    def _report(self, name: TopicIdPartition) -> PartitionReport | None:
        state = self.rlmm.partition_state(name).value
        age_ms = state.report_age_ms
        return state.report if age_ms is not None and age_ms <= DEFAULT_MAX_REPORT_AGE_MS else None

    def _groups(
        self, topic: str, partitions: _Partitions, retention: LocalRetention
    ) -> Iterator[GroupBehind]:
        """List the groups that would find the brokers' log begin behind their place."""
        coming = {
            name.partition: at for name, at in self._first_younger(partitions, retention.ms).items()
        }
        if retention.size_bytes != UNLIMITED:
            for name in partitions:
                report = self.rlmm.partition_state(name).value.report
                copied = 0 if report is None else report.copied_through_offset + 1
                coming[name.partition] = max(coming[name.partition], copied)
        moved = [number for number, start in sorted(coming.items()) if start]
        for group, number, committed in self.admin.committed_offsets(topic, moved):
            if committed < coming[number]:
                yield GroupBehind(group, number, committed, coming[number])


def missing_rights(topic: str, rights: list[str]) -> str:
    """Describe the rights that RLM's user lacks, and how to grant them."""
    operations = " ".join(f"--operation {right.title().replace('_', '')}" for right in rights)
    return (
        f"topic {topic}: RLM's user lacks {', '.join(rights)} at the brokers; nothing changed. "
        f"Grant it: kafka-acls.sh ... --add --allow-principal User:RLM {operations} --topic {topic}"
    )
