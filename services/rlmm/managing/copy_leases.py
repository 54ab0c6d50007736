"""RLMM on SQL: leases of copies under way."""

from collections.abc import Sequence

from services.api.copy_leases import RenewOutcome
from services.api.ids import RemoteLogSegmentId
from services.rlmm import lease_renewals
from services.rlmm.managing.database import OnDatabase


class SqlCopyLeases(OnDatabase):
    """Satisfies services.api.copy_leases.CopyLeases."""

    def renew_copy_leases(
        self, segment_ids: Sequence[RemoteLogSegmentId], lease_ms: int, broker_id: int
    ) -> list[RenewOutcome]:
        return lease_renewals.renew_all(self._transactions, segment_ids, lease_ms, broker_id)
