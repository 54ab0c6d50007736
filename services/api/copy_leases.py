"""RLMM: leases, under which a copy is its copier's to end."""

from collections.abc import Sequence
from typing import Protocol, TypeAlias

from services.api.errors import RemoteStorageError
from services.api.ids import RemoteLogSegmentId
from services.api.validation import require

MIN_LEASE_MS = 1_000
MAX_LEASE_MS = 3_600_000

RenewOutcome: TypeAlias = RemoteStorageError | None
"""None: the lease holds."""


class CopyLeases(Protocol):
    """What keeps copies leased; a part of RemoteLogMetadataManager, which says what holds for all.

    A copy that was added with a lease is given up by nobody but its broker until the lease ends, by
    the database's clock: DeletionRefusedError. Its end alone changes nothing, and the partition's
    revision stays.
    """

    def renew_copy_leases(
        self, segment_ids: Sequence[RemoteLogSegmentId], lease_ms: int, broker_id: int
    ) -> list[RenewOutcome]:
        """Have the leases of up to MAX_BATCH copies last for `lease_ms` from now on at least; one
        outcome each, in order. None gets shorter by this. One that has ended, and a copy without a
        lease, is leased again. Not an event: the partitions' revisions stay.

        Args:
            broker_id: which makes the copies.

        Raises:
            InvalidRequestError: there are none or too many, or a segment comes twice; `lease_ms` or
                `broker_id` is out of bounds.
            RetriableRemoteStorageError: the database cannot be reached; some may be renewed.

        Items' errors:
            RetriableRemoteStorageError: others hold the partition up; ask again. It is not waited
                for so long that the other leases could end.
            RemoteResourceNotFoundError: the segment id or its partition is not known.
            InvalidStateTransitionError: it is no longer COPY_SEGMENT_STARTED, or another broker
                added it: the copy is given up and has to stop.
        """
        ...


def require_lease(lease_ms: int) -> None:
    """Raise InvalidRequestError where no lease may last so long."""
    bounds = f"{MIN_LEASE_MS} to {MAX_LEASE_MS}"
    is_within = MIN_LEASE_MS <= lease_ms <= MAX_LEASE_MS
    require(is_within, "lease_ms", f"must be {bounds}, is {lease_ms}")


def require_may_lease(lease_ms: int | None, broker_id: int) -> None:
    """require_lease, of a copy that begins, by a broker that can be told from others.

    Raises:
        InvalidRequestError: the lease is out of bounds, or nobody knows whose it would be.
    """
    if lease_ms is not None:
        require_lease(lease_ms)
        require(broker_id >= 0, "lease_ms", "the copy's broker_id must be known, is -1")
