"""A broker's log that the tier's log start does not belong to."""

from services.api.remote_log_manager import Problem, ProblemKind
from services.rlm.local_log import LocalLog, LocalPartition


def log_end_problem(local: LocalPartition, log: LocalLog, log_start_offset: int) -> Problem | None:
    """Why nothing of the log may be copied under the tier's log start; None: it may be.

    A log start is only raised to what all in-sync replicas had reached. A log that ends below it
    has lost its tail, or is a new one on an empty disk: its offsets mean other records than those
    that were there. Kafka (LogLoader) would delete such a log and begin anew at the log start; the
    files are the broker's, so that here a person decides.

    Raises:
        LogFileError, SegmentVanishedError: the folder cannot be read now.
    """
    if log.log_end_offset >= log_start_offset:
        return None
    # The log start may be younger than the look, and the log have grown up to it since.
    now = local.look()
    if now is None or now.log_end_offset >= log_start_offset:
        return None
    reason = (
        f"the log ends at offset {now.log_end_offset}, below the tier's log start "
        f"{log_start_offset}: it is not the log that was copied (a replaced disk, a lost tail, a "
        "leader that was elected uncleanly), and none of it is copied nor can be read here; bring "
        "the partition's log back from a replica or a backup. What producers have written to it "
        "since is on the brokers only: move it to another topic before their retention takes it, "
        "and only then delete this one and create it anew"
    )
    kind = ProblemKind.LOG_END_BELOW_LOG_START
    return Problem(
        kind, str(local.found.path), reason, now.segments[0].base_offset, len(now.rolled)
    )
