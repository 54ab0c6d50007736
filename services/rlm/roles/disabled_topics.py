"""Find the partitions whose topics' settings disable tiering, and disable them."""

from uuid import UUID

from services.api.errors import (
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import TopicIdPartition
from services.api.remote_log_manager import MAX_STOPS
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.segments import RemoteLogSegmentState
from services.api.topic_config import reason_to_retain
from services.common.batches import batches
from services.common.cancellation import Flag
from services.rlm.reason_log import ReasonLog
from services.rlm.roles.partition_roles import PartitionRoles
from services.rlm.roles.stopping import removal_hold
from services.rlm.scheduler import PassFailedError
from services.rlm.tier import Tier
from services.rlm.topic_configs import TopicConfigs

_STARTED = RemoteLogSegmentState.COPY_SEGMENT_STARTED


class DisabledTopics:
    """Find led partitions that are disabled and still in the tier, and disable them.

    The settings are read again before that, because the cached ones may be an interval old. A
    partition with nothing in the tier is skipped, so that a disabled topic costs nothing. Not
    thread-safe.

    Args:
        stopping: once set, disable no other partition.
    """

    def __init__(
        self,
        roles: PartitionRoles,
        topic_configs: TopicConfigs,
        rlmm: RemoteLogMetadataManager,
        stopping: Flag,
    ) -> None:
        self._roles = roles
        self._topic_configs = topic_configs
        self._rlmm = rlmm
        self._stopping = stopping
        self._hold_log = ReasonLog("topic %s: tiering is disabled; the tier keeps its data: %s")
        self._reason_log = ReasonLog("topic %s: tiering is disabled; %s")

    def disable(self) -> None:
        """Find and disable partitions.

        Raises:
            PassFailedError: if some could not be marked for deletion; the next pass retries.
        """
        refused: list[RemoteStorageError] = []
        for names in batches(self._to_disable(refused), MAX_STOPS):
            if self._stopping.is_set():
                return
            for name, outcome in zip(names, self._roles.disable(names), strict=True):
                if outcome is not None:
                    self._topic_configs.forget(name.topic_id)
                    refused.append(outcome)
        if refused:
            raise PassFailedError(
                f"{len(refused)} disabled partitions are still in the tier; the first: {refused[0]}"
            )

    def _to_disable(self, refused: list[RemoteStorageError]) -> list[TopicIdPartition]:
        """Return the partitions to disable; add to `refused` the errors of reading settings."""
        to_disable: list[TopicIdPartition] = []
        is_disabled: dict[UUID, bool] = {}
        for partition in self._roles.leaders():
            name = partition.topic_id_partition
            if not _is_in_tier(partition.tier.cached):
                continue
            if name.topic_id not in is_disabled:
                try:
                    is_disabled[name.topic_id] = self._is_disabled(name)
                except RetriableRemoteStorageError:
                    raise
                except RemoteStorageError as e:
                    is_disabled[name.topic_id] = False
                    refused.append(e)
            if is_disabled[name.topic_id] and not self._is_on_hold(name):
                to_disable.append(name)
        return to_disable

    def _is_disabled(self, name: TopicIdPartition) -> bool:
        """Return whether the topic is disabled and may be deleted, by the cached settings."""
        try:
            topic = self._topic_configs.of(name.topic_id)
        except RemoteResourceNotFoundError:
            return False
        is_disabled = topic.config.remote_storage_enable is False
        reason = reason_to_retain(topic) if is_disabled else ""
        self._reason_log.log(name, reason)
        return is_disabled and not reason

    def _is_on_hold(self, name: TopicIdPartition) -> bool:
        """Return whether a hold keeps some of the partition, which then waits for its end."""
        try:
            hold = removal_hold(self._rlmm, name)
        except RemoteResourceNotFoundError:
            return True
        self._hold_log.log(name, "" if hold is None else str(hold))
        return hold is not None


def _is_in_tier(tier: Tier) -> bool:
    """Return whether the tier has segments that are not marked for deletion.

    Retention finishes the marked ones.
    """
    return tier.segments > 0 or any(segment.state is _STARTED for segment in tier.unfinished)
