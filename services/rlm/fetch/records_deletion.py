"""Serve DeleteRecords: raise the tier's log start of led partitions."""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from services.api.calls import MutationContext
from services.api.ids import TopicIdPartition
from services.api.offset_queries import (
    HIGH_WATERMARK,
    MAX_OFFSET_QUERIES,
    RaisedLogStart,
    RecordsToDelete,
)
from services.api.remote_log_manager import FetchError, require_distinct
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.api.topic_config import RetentionOwner
from services.api.validation import require_count
from services.common.retry import replan
from services.rlm.fetch.errors import (
    PARTITION_FAILURES,
    NotServedHereError,
    OffsetOutOfRangeError,
    kafka_error,
)
from services.rlm.partition import Partition
from services.rlm.reporting import LineageUnknownError, Reporter, report_of

_log = logging.getLogger(__name__)

REASON = "delete records"


@dataclass(frozen=True, slots=True)
class RecordsDeletion:
    """Raise log starts of the partitions that `partition_of` knows. Thread-safe."""

    partition_of: Callable[[TopicIdPartition], Partition]
    rlmm: RemoteLogMetadataManager
    broker_id: int
    reporter: Reporter

    def delete_all(self, requests: tuple[RecordsToDelete, ...]) -> list[RaisedLogStart]:
        """Answer as OffsetService.delete_records."""
        require_count(requests, "partitions", MAX_OFFSET_QUERIES)
        require_distinct((each.topic_id_partition for each in requests), "partitions")
        return [self._delete(each) for each in requests]

    def _delete(self, request: RecordsToDelete) -> RaisedLogStart:
        name = request.topic_id_partition
        partition = self.partition_of(name)
        try:
            # The report of another task may overtake this one: then make and send a new one.
            start = replan(
                lambda _: self._raise_log_start(partition, request.before_offset),
                lambda: None,
                first=None,
            )
        except PARTITION_FAILURES as e:
            return RaisedLogStart(name, kafka_error(name, e), str(e))
        except LineageUnknownError as e:
            return RaisedLogStart(name, FetchError.TIERED_STORAGE_NOT_AVAILABLE, str(e))
        _log.info("%s: records below %d were deleted on request", name, start)
        return RaisedLogStart(name, log_start_offset=start)

    def _raise_log_start(self, partition: Partition, before_offset: int) -> int:
        name = partition.topic_id_partition
        report = report_of(partition, self.broker_id)
        if report is None:
            raise NotServedHereError(
                f"{name}: this broker does not lead the partition, or has not its log; call the "
                "leader's RLM"
            )
        high_watermark = max(report.high_watermark, partition.tier.cached.log_start_offset)
        offset = high_watermark if before_offset == HIGH_WATERMARK else before_offset
        if offset > high_watermark:
            raise OffsetOutOfRangeError(
                f"{name}: before_offset {offset} is above the high watermark {high_watermark}"
            )
        # RLMM bounds the log start by the high watermark that was reported.
        self.reporter.report(partition, report)
        config = self.rlmm.topic_config(name.topic_id).config
        why = MutationContext(
            reason=REASON,
            rule_detail=f"before offset {offset}",
            broker_leader_epoch=report.leader_epoch,
            # RLMM requires a retention owner; a request of an operator is valid for any.
            retention_owner=config.retention_owner or RetentionOwner.RLM,
        )
        self.rlmm.raise_log_start_offset(name, offset, why)
        partition.tier.changed_here()
        return partition.tier.refresh().log_start_offset
