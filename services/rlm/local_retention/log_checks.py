"""What must hold of a log before anything of it is deleted, beside what the tier has."""

from collections.abc import Sequence

from services.api.remote_log_manager import ProblemKind
from services.rlm.kafka_log.checkpoints import LOG_START_OFFSETS
from services.rlm.kafka_log.errors import LogFileError
from services.rlm.kafka_log.partition_dir import read_producer_snapshot
from services.rlm.local_log import LocalLog, LocalPartition
from services.rlm.local_retention.rules import LocalDeletion


def require_start_of_this_log(local: LocalPartition, log: LocalLog) -> None:
    """
    Raises:
        LogFileError: the log start that the broker wrote down, by the partition's name alone, is
            another log's: of an older topic, or of a later state than the one that was restored.
    """
    if log.removed_before_offset > log.log_end_offset:
        path = local.found.path.parent / LOG_START_OFFSETS
        reason = (
            f"has log start {log.removed_before_offset} for {local.found.path.name}, which ends at "
            f"offset {log.log_end_offset}: not this log's; take its line out"
        )
        raise LogFileError(ProblemKind.LOG_END_BELOW_LOG_START, path, reason)


def with_known_producers(allowed: Sequence[LocalDeletion]) -> Sequence[LocalDeletion]:
    """So many that the log still begins with the state of its producers: without it nobody could
    tell which transactions are open.

    Raises:
        LogFileError: not even the first may go.
    """
    for count in range(len(allowed), 0, -1):
        try:
            read_producer_snapshot(allowed[count - 1].segment.producer_snapshot_path)
        except LogFileError:
            if count == 1:
                raise
        else:
            return allowed[:count]
    return ()
