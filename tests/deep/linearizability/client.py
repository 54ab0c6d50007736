"""Call RLMM, or its model, for one operation and return the reply as a history keeps it."""

from services.api.calls import MutationOutcome
from services.api.errors import RemoteStorageError, RetriableRemoteStorageError
from services.api.ids import TopicIdPartition
from services.api.remote_log_metadata_manager import UpdateOutcome
from tests.deep.linearizability.operations import (
    Add,
    Announce,
    Announced,
    Answered,
    Changed,
    HighestOffset,
    Listed,
    ListSegments,
    LogSize,
    LookUp,
    Lost,
    Mutation,
    NextWithTxnIndex,
    Operation,
    PutDeletion,
    RaiseLogStart,
    Read,
    Refused,
    Reply,
    ResetLeaderEpoch,
    Undelete,
    Update,
    UpdateBatch,
)
from tests.deep.model.reference import Manager

LEASE_MS = 3_600_000
"""No history takes an hour: a lease ends when its copy does."""


def ask(rlmm: Manager, tp: TopicIdPartition, operation: Operation) -> Reply:
    """Make the call. A refusal is a reply; after a retriable error the reply is Lost."""
    try:
        if isinstance(operation, Read):
            return _read(rlmm, tp, operation)
        return _mutate(rlmm, tp, operation)
    except RetriableRemoteStorageError as e:
        return Lost(str(e))
    except RemoteStorageError as e:
        return Refused(type(e).__name__)


def _mutate(rlmm: Manager, tp: TopicIdPartition, operation: Mutation) -> Changed | Announced:
    match operation:
        case Add(metadata, context, is_leased):
            lease_ms = LEASE_MS if is_leased else None
            outcome = rlmm.add_remote_log_segment_metadata(metadata, context, lease_ms=lease_ms)
            return Changed((outcome,))
        case Update(item):
            outcome = rlmm.update_remote_log_segment_metadata(item.update, item.context)
            return Changed((outcome,))
        case UpdateBatch(items):
            outcomes = rlmm.update_remote_log_segment_metadata_batch(items)
            return Changed(tuple(_item_reply(each) for each in outcomes))
        case PutDeletion(deletion, context):
            return Changed((rlmm.put_remote_partition_delete_metadata(deletion, context),))
        case Undelete(context):
            return Changed((rlmm.undelete_partition(tp, context),))
        case ResetLeaderEpoch(leader_epoch, context):
            return Changed((rlmm.reset_leader_epoch(tp, leader_epoch, context),))
        case RaiseLogStart(offset, context):
            return Changed((rlmm.raise_log_start_offset(tp, offset, context),))
        case Announce(leadership, broker_id):
            rlmm.on_partition_leadership_changes([leadership], [], broker_id)
            return Announced()


def _item_reply(outcome: UpdateOutcome) -> MutationOutcome | Refused:
    if isinstance(outcome, RemoteStorageError):
        return Refused(type(outcome).__name__)
    return outcome


def _read(rlmm: Manager, tp: TopicIdPartition, operation: Read) -> Answered | Listed:
    match operation:
        case LookUp(epoch, offset):
            found = rlmm.remote_log_segment_metadata(tp, epoch, offset)
            return Answered(found.value, found.revision)
        case NextWithTxnIndex(epoch, offset):
            found = rlmm.next_segment_with_txn_index(tp, epoch, offset)
            return Answered(found.value, found.revision)
        case HighestOffset(epoch):
            highest = rlmm.highest_offset_for_epoch(tp, epoch)
            return Answered(highest.value, highest.revision)
        case LogSize(epoch):
            size = rlmm.remote_log_size(tp, epoch)
            return Answered(size.value, size.revision)
        case ListSegments(epoch, states, min_offset, if_revision_not):
            page = rlmm.list_remote_log_segments(
                tp,
                epoch,
                states=states,
                min_offset=min_offset,
                if_revision_not=if_revision_not,
            )
            return Listed(page)
