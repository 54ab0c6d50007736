"""Renew the leases of the copies that this process runs."""

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from uuid import UUID

from services.api.errors import (
    InvalidStateTransitionError,
    RemoteResourceNotFoundError,
    RemoteStorageError,
    RetriableRemoteStorageError,
)
from services.api.ids import RemoteLogSegmentId
from services.api.remote_log_metadata_manager import RemoteLogMetadataManager
from services.common.quantities import counted

RENEWALS_PER_LEASE = 3
RETRIES_PER_LEASE = 20
LONGEST_RETRY_S = 1.0

_REFUSALS = (RemoteResourceNotFoundError, InvalidStateTransitionError)
"""The copy has ended or is unknown. After any other error, the renewal is retried."""

_log = logging.getLogger(__name__)


class CopyCancelledError(Exception):
    """The error of a copy that was cancelled; the next pass cleans up the attempt."""


def boot_time_s() -> float:
    """Return the seconds of a clock that runs during suspend if the platform has one."""
    if sys.platform == "linux":
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class LeaseLostError(CopyCancelledError):
    """The error of a copy that lost its lease and must not finish.

    Another process may have ended the copy by now.
    """


class CopyLease:
    """The lease of one copy. A lost lease stays lost, even if RLMM renews it. Thread-safe."""

    def __init__(
        self, segment_id: RemoteLogSegmentId, lease_ms: int, clock: Callable[[], float]
    ) -> None:
        self.segment_id = segment_id
        self.lease_ms = lease_ms
        self._clock = clock
        self._lock = threading.Lock()
        self._until_s = clock() + lease_ms / 1000
        self._lost = ""

    def is_held(self) -> bool:
        with self._lock:
            return self._is_held()

    def require_held(self) -> None:
        """Raise LeaseLostError if RLMM refused to renew the lease, or the lease may be over."""
        if not self.is_held():
            raise LeaseLostError(f"{self.segment_id}: the copy is abandoned: {self._lost}")

    def renewed(self, requested_s: float) -> None:
        """Extend the lease that RLMM renewed at `requested_s`, unless it expired here meanwhile."""
        with self._lock:
            if self._is_held():
                self._until_s = max(self._until_s, requested_s + self.lease_ms / 1000)

    def refused(self, why: str) -> None:
        with self._lock:
            self._lost = self._lost or why

    def _is_held(self) -> bool:
        if not self._lost and self._clock() >= self._until_s:
            self._lost = "its lease expired before it was renewed"
        return not self._lost


class CopyLeases:
    """Acquire and renew the leases of all copies of this process.

    One thread renews them while there are any. Thread-safe.
    """

    def __init__(
        self,
        rlmm: RemoteLogMetadataManager,
        broker_id: int,
        lease_ms: int,
        clock: Callable[[], float] = boot_time_s,
    ) -> None:
        self._rlmm = rlmm
        self._broker_id = broker_id
        self._lease_ms = lease_ms
        self._clock = clock
        self._changed = threading.Condition()
        self._running: set[UUID] = set()
        self._ended: dict[UUID, float] = {}
        self._renewed: dict[UUID, CopyLease] = {}
        self._renewer: threading.Thread | None = None

    @contextmanager
    def of(self, segment_id: RemoteLogSegmentId) -> Iterator[CopyLease]:
        """Acquire the lease of a copy, before it is registered, until the block ends.

        After that, `is_ours` is true of the copy for as long as RLMM may still have the lease.

        Raises:
            RetriableRemoteStorageError: if no thread to renew the lease can be started.
        """
        with self._changed:
            self._start_renewer()
            self._running.add(segment_id.id)
        try:
            yield CopyLease(segment_id, self._lease_ms, self._clock)
        finally:
            with self._changed:
                self._running.remove(segment_id.id)
                now_s = self._clock()
                self._ended = {id: end_s for id, end_s in self._ended.items() if end_s > now_s}
                self._ended[segment_id.id] = now_s + self._lease_ms / 1000
                self._renewed.pop(segment_id.id, None)
                self._changed.notify_all()

    def begin_renewal(self, lease: CopyLease) -> None:
        """Renew the lease from now on; its copy is registered."""
        with self._changed:
            self._renewed[lease.segment_id.id] = lease

    @property
    def running(self) -> frozenset[UUID]:
        """Return the ids of the segments whose copies have a lease of `of` now."""
        with self._changed:
            return frozenset(self._running)

    def is_ours(self, segment_id: UUID) -> bool:
        """Return whether this process began the leased copy."""
        with self._changed:
            ends_s = self._ended.get(segment_id)
            is_recent = ends_s is not None and ends_s > self._clock()
            return segment_id in self._running or is_recent

    def renew(self) -> bool:
        """Renew all leases once; return whether RLMM answered for all of them."""
        with self._changed:
            due = [lease for lease in self._renewed.values() if lease.is_held()]
        if not due:
            return True
        requested_s = self._clock()
        ids = [lease.segment_id for lease in due]
        try:
            outcomes = self._rlmm.renew_copy_leases(ids, self._lease_ms, self._broker_id)
        except RemoteStorageError as e:
            copies = counted(len(due), "copy", "copies")
            _log.warning("the leases of %s were not renewed; retrying: %s", copies, e)
            return False
        is_answered = True
        for lease, error in zip(due, outcomes, strict=True):
            if error is None:
                lease.renewed(requested_s)
            elif isinstance(error, _REFUSALS):
                lease.refused(str(error))
            else:
                _log.warning("%s: its lease was not renewed; retrying: %s", lease.segment_id, error)
                is_answered = False
        return is_answered

    def _start_renewer(self) -> None:
        if self._renewer is not None:
            return
        renewer = threading.Thread(target=self._run_renewer, name="copy-leases", daemon=True)
        try:
            renewer.start()
        except (RuntimeError, MemoryError) as e:
            raise RetriableRemoteStorageError(
                f"no thread could be started to renew leases; retrying the copy later: {e}"
            ) from e
        self._renewer = renewer

    def _run_renewer(self) -> None:
        lease_s = self._lease_ms / 1000
        retry_s = min(lease_s / RETRIES_PER_LEASE, LONGEST_RETRY_S)
        is_answered = True
        while self._wait(lease_s / RENEWALS_PER_LEASE if is_answered else retry_s):
            try:
                is_answered = self.renew()
            except Exception:  # noqa: BLE001 - a boundary: without this thread all copies stop
                _log.exception("the leases of copies were not renewed; retrying")
                is_answered = False

    def _wait(self, wait_s: float) -> bool:
        """Wait until leases are due for renewal; return False if there are no copies any more."""
        until_s = time.monotonic() + wait_s
        with self._changed:
            while self._running:
                remaining_s = until_s - time.monotonic()
                if remaining_s <= 0:
                    return True
                self._changed.wait(remaining_s)
            self._renewer = None
            return False
