"""Delete the objects that outlived a broker's deletion, once their time has passed."""

from collections.abc import Iterator

from services.api.calls import MutationContext
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager, all_kept_segments
from services.api.remote_storage_manager import MAX_DELETE_BATCH, RemoteStorageManager
from services.api.topic_config import RetentionOwner
from services.common.batches import batches
from services.workflows.deletion import UNKNOWN_BROKER, DeletionOutcome, confirm_deletion


def delete_kept_segments(
    rlmm: RemoteLogMetadataManager,
    rsm: RemoteStorageManager,
    deleted_by: RetentionOwner,
    now_ms: int,
    topic: str = "",
    plan_id: str | None = None,
) -> Iterator[DeletionOutcome]:
    """Delete the objects of kept segments that are due, and yield an outcome each.

    Objects that are gone, such as those that a bucket's lifecycle has deleted, count as deleted.
    Deletes only as far as the iterator is consumed.

    Args:
        deleted_by: RLM or SWEEP.
        topic: only of topics with this name; "": of all.

    Raises:
        RetriableRemoteStorageError: RSM or RLMM is unreachable; retry.
    """
    context = MutationContext(
        reason="objects deleted",
        rule_detail="sediment.delete.grace.ms has passed",
        plan_id=plan_id,
        retention_owner=deleted_by,
    )
    for batch in batches(all_kept_segments(rlmm, topic=topic, due_only=True), MAX_DELETE_BATCH):
        errors = rsm.delete_log_segment_data_batch(batch)
        outcomes = list(map(DeletionOutcome, batch, errors))
        yield from confirm_deletion(rlmm, outcomes, context, UNKNOWN_BROKER, now_ms)
